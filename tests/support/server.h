/* server.h: the program itself as a child of a test, and sockets to talk to it byte by byte.
 *
 * A server of a test listens on a free port of 127.0.0.1 (or where its arguments say) and dies with
 * the test. Nothing sleeps: each wait is for output, bytes or an end, and has a deadline
 * (SERVER_DEADLINE_MS); passing it fails the test with what the server has logged. */
#ifndef SLATE_TESTS_SERVER_H
#define SLATE_TESTS_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { SERVER_DEADLINE_MS = 60000 };

/* A list of arguments; and what a request as text begins with, or is. */
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define HOST "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" HOST "\r\n"

struct server {
    pid_t pid;
    int out, err;   /* the child's stdout and stderr */
    char base[160]; /* "http://127.0.0.1:PORT", "unix:PATH" */
    unsigned port;  /* 0: a unix socket */
    char unix_path[108];
    char *log; /* all of stderr that was read so far; never NULL */
    size_t n_log;
};

/* Starts `$SLATE_BUILD/slate serve --listen 127.0.0.1:0 --store memory ARGS…` (build/release
 * without SLATE_BUILD; args ends with NULL; a --listen or --store in it counts) and waits until it
 * is ready. */
struct server *server_start(const char *const *args);
/* The same, but returns as soon as it listens: the model may still be loading. */
struct server *server_start_loading(const char *const *args);
/* The same in a network namespace of `ip netns`, which takes root; NULL: here. What listens on a
 * unix socket there is reached from here. */
struct server *server_start_in(const char *netns, const char *const *args);

/* Servers that are started from now on get so many descriptors and no more; 0: as many as they ask
 * for. */
void server_file_limit(unsigned n);

/* Reads its log until `text` has appeared in it. */
void server_wait_log(struct server *s, const char *text);
/* … until it has appeared n times since the start. */
void server_wait_log_times(struct server *s, const char *text, unsigned n);

/* Sends the signal (0: none), waits for the end, frees. Returns the exit code; -signal when one
 * ended it. */
int server_end(struct server *s, int signal);
/* SIGTERM, and the exit code must be 0. */
void server_stop(struct server *s);

/* Runs `slate ARGS…` to its end: exit code, stdout and stderr (to be freed; may be NULL). */
int program_run(const char *const *args, char **ret_out, char **ret_err);

/* --- raw sockets -------------------------------------------------------------------------------*/

struct raw {
    int fd;
    char *in; /* received and not yet taken */
    size_t n_in;
    bool eof, reset;
};

struct raw_response {
    int status;
    char *head;    /* status line and headers, with their line ends */
    char *body;    /* of a chunked one: the decoded bytes; followed by a NUL */
    size_t n_body; /* bytes */
    bool chunked;
};

struct raw *raw_open(const struct server *s);
void raw_close(struct raw *r); /* NULL is fine */

void raw_send(struct raw *r, const void *bytes, size_t n); /* fails the test if it cannot */
void raw_puts(struct raw *r, const char *text);
/* As much as the socket takes at once; bytes, or -1 when it is broken. */
ssize_t raw_send_some(struct raw *r, const void *bytes, size_t n);

/* Reads one response. no_body: of a HEAD request. Interim (1xx) responses are responses. */
struct raw_response *raw_read(struct raw *r, bool no_body);
void raw_response_free(struct raw_response *p);
/* The value of a header, copied to dst; false: it is not there. */
bool raw_header(const struct raw_response *p, const char *name, char *dst, size_t dst_size);

/* Waits until the server has closed the connection; fails if other bytes come before. true: with
 * an orderly end of file, false: by a reset. */
bool raw_wait_closed(struct raw *r);
/* Reads to the end; was that among it? */
bool raw_says(struct raw *r, const char *text);
/* Waits until some text has come (and takes nothing). */
void raw_wait_text(struct raw *r, const char *text);

/* One request on a connection of its own, with Connection: close added by the caller's text. */
struct raw_response *raw_ask(const struct server *s, const char *text);

/* Reads one response, which must have that status. */
void raw_expect(struct raw *r, int status);
/* raw_ask(), and head or body of the answer must hold `part`. */
void raw_expect_ask(const struct server *s, const char *text, int status, const char *part);

/* The value of a metric ("slate_requests_running"). */
double raw_metric(const struct server *s, const char *name);

/* Asks for a stream that goes on for a very long time, with much text in each event. */
void raw_long_stream(struct raw *r);

#endif
