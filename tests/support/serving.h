/* serving.h: a server under a bench: started, asked, ended. Failures end the program. */
#ifndef SLATE_TESTS_SERVING_H
#define SLATE_TESTS_SERVING_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct serving {
    pid_t pid;
    char base[128];
    double ready_s; /* from the start of the process until /readyz said 200 */
    CURL *curl;     /* one connection, kept */
    bool closes;    /* it ends a connection after an answer that was streamed, without a word */
};

struct answer {
    long status;
    double seconds;       /* until the last byte */
    double first_seconds; /* until the first */
    char text[8192];      /* the beginning of the body */
    size_t n;
};

void serving_die(const char *what); /* ends the program */

/* args[0] is its name; it is looked for as a shell does, and ends when this program does. Its
 * standard output goes to `out`; -1: nowhere, nor does what it complains of. */
pid_t serving_child(const char *program, const char *const *args, int out);
/* A Redis of this machine that syncs what it acknowledges, its data in that folder, which is there.
 */
pid_t serving_redis(const char *folder, unsigned *ret_port);
unsigned serving_free_port(void); /* one that was free a moment ago */

/* `build/release/slate serve` on a free port with these options, up to a NULL. */
void serving_start(struct serving *s, const char *const *options);
/* A program of llama.cpp's. build: the folder of a build, or of its programs. */
void serving_find_llama(char program[512], const char *build, const char *name);
/* Its server on a free port with these options besides, ready at /health; its weights in memory of
 * its own, as peer.h has it. */
void serving_start_llama(struct serving *s, const char *build, const char *const *options);
void serving_end(struct serving *s, int signal); /* SIGTERM or SIGKILL, and waits */

/* POST where there is a body ("" is one), else GET; path "/v1/…". */
void serving_ask(struct serving *s, struct answer *ret, const char *path, const char *body);
/* The same, which must be answered with 2xx. */
void serving_must(struct serving *s, struct answer *ret, const char *path, const char *body);
/* The number behind "name": in an answer. */
double answer_number(const struct answer *a, const char *name);

/* body(arg, i, text) and path(arg, i, text) write the i-th of n requests; `at_once` of them are
 * under way at a time. All must be answered with 2xx. Seconds. */
struct serving_load {
    size_t n, at_once;
    void (*make)(void *arg, size_t i, char path[160], char body[512]);
    void *arg;
};
double serving_run(struct serving *s, const struct serving_load *l);

#endif
