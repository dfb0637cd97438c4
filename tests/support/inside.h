/* inside.h: the whole program in a thread of the test (sl_cli_serve), so that what it calls can be
 * told to fail; and a client that allocates nothing and keeps no connection.
 *
 * One server at a time. Failures fail the test. */
#ifndef SLATE_TESTS_INSIDE_H
#define SLATE_TESTS_INSIDE_H

#include <stdbool.h>
#include <stddef.h>

enum { INSIDE_OPTIONS_MAX = 16, INSIDE_REPLY_MAX = 1 << 20, INSIDE_BODY_MAX = 512 << 10 };

struct inside {
    char folder[64];                  /* its own; of the socket, the store */
    char reply[INSIDE_REPLY_MAX + 1]; /* the last one, as it came, and a NUL */
    size_t n_reply;
    int status; /* of the reply; 0: none came */
};
extern struct inside inside;

/* store: "memory", "dir" (in the folder) or another store's address. tcp: on a free port of
 * 127.0.0.1, else on a unix socket. options: more of `slate serve`, up to a NULL. Returns when it
 * is ready; 0, or -1. */
int inside_start(const char *store, bool tcp, const char *const *options);
/* Drains; the program's exit code, or -1. */
int inside_stop(void);
/* SIGTERM; the program's exit code, or -1. The folder stays, so that a server with the same options
 * (at another port) finds what this one has left: inside_start_again(), as inside_start(). */
int inside_terminate(void);
int inside_start_again(void);

/* Sends and reads to the end of the connection. lines: header lines, each with its line end; the
 * default says that the body is JSON. false: nothing came. */
bool talk(const char *method, const char *path, const char *body);
bool talk_bytes(const char *method, const char *path, const char *lines, const void *body,
                size_t n);
/* talk() in two steps: sends, and gives a connection; then its reply, to the end of that. */
int talk_begin(const char *method, const char *path, const char *body);
bool talk_end(int connection);
/* talk(), and the status must be that. */
void talk_must(const char *method, const char *path, const char *body, int status);
/* The body of a reply that was not sent in chunks. */
const char *talk_body(size_t *ret_n);

double talk_metric(const char *name);
/* Asks until it is that. */
void talk_until(const char *name, double value);

#endif
