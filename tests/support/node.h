/* node.h: a server with a folder of its own that outlives it: stopped, killed, started again,
 * moved.
 *
 * Failures fail the test. */
#ifndef SLATE_TESTS_NODE_H
#define SLATE_TESTS_NODE_H

#include "tests/support/api.h"
#include "tests/support/server.h"

enum { NODE_OPTIONS_MAX = 24 };

struct node {
    struct api a; /* a.server NULL: it is down */
    char dir[300];
    char store[320];
    char threads[32];
    bool slow; /* the next start runs on the scalar kernels: the same bits, many times later */
    const char *options[NODE_OPTIONS_MAX];
    size_t n_options;
    unsigned n_starts;
};

/* An empty folder under $SLATE_BUILD; options: of `slate serve`, up to a NULL; not started. */
void node_init(struct node *n, const char *name, const char *const *options);
void node_done(struct node *n); /* ends it with SIGTERM where it is up; the folder goes */

/* After a failed test: ends the server if it is up, and prints its log if it died. */
void node_abandon(struct node *n);

/* Each start has another number of threads than the one before (1, 2, 3, 1, …). */
void node_start(struct node *n);
void node_stop(struct node *n); /* SIGTERM; it must exit with 0 */
void node_kill(struct node *n); /* SIGKILL; no call may be under way */
/* The same in two steps: the signal, while calls run; then, when they were finished, the end. */
void node_signal(struct node *n, int signal);
void node_wait(struct node *n, int signal);

/* Its files may not grow beyond that, as on a full disk; 0: they may again. Only the soft limit,
 * which can be raised. Until it ends. */
void node_limit_files(struct node *n, uint64_t bytes);

/* --- sessions ----------------------------------------------------------------------------------*/

/* "/v1/sessions/ID" and what fmt says behind it: a copy that lasts for the next 16 calls. */
const char *session_path(const char *id, const char *rest);
/* The answer to a POST without a body ("/pause", "/resume", "/cancel"). */
struct reply *session_post(struct client *c, const char *id, const char *action);
int64_t session_version(struct client *c, const char *id);
bool session_in_memory(struct client *c, const char *id);

/* The bytes of GET …/snapshot. */
struct bytes {
    char *p; /* sl_free() */
    size_t n;
    char etag[128];
};
struct bytes snapshot_get(struct client *c, const char *id, const char *query);
struct reply *snapshot_put(struct client *c, const char *id, const void *p, size_t n,
                           const char *extra);

/* One turn with everything told, drawn with that seed: two sessions are the same when theirs are.
 */
void turn_of(struct client *c, struct gen *g, const char *id, const char *prompt, unsigned seed);
struct call *turn_start(struct client *c, const char *id, const char *prompt, unsigned seed);

/* --- streams that are interrupted
 * ---------------------------------------------------------------*/

/* POST /v1/generate as a stream; fmt as generate()'s. */
struct call *stream_start(struct client *c, const char *fmt, ...) CLIENT_PRINTF(2, 3);
/* Tokens that have arrived (return_tokens). */
size_t stream_tokens(const struct reply *r);
/* Until that many tokens have arrived, or it is over. */
void stream_until(struct call *k, size_t n_tokens);

/* POST /v1/sessions/{id}/pause, only sent. */
struct call *pause_start(struct client *c, const char *id);

/* What one turn gave, in parts. */
struct parts {
    struct output all; /* all.final: the last part's */
    struct reply *last;
    size_t n;       /* parts */
    size_t at[256]; /* tokens there were after each */
};
void parts_init(struct parts *p);
void parts_add(struct parts *p, struct reply *r); /* takes r; 200 and whole */
bool parts_paused(const struct parts *p);         /* is the last one's finish_reason "paused"? */
void parts_done(struct parts *p);

#endif
