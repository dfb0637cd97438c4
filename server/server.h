/* server.h: the loop, the listening socket, signals, and what the parts share.
 *
 * Owner: the loop's thread (the main one). The application (sessions and engine; see cli/serve.c)
 * hangs on it through hooks and routes; the server knows nothing of it.
 *
 * State:  LOADING ──sl_server_ready()──> READY ──SIGTERM, SIGINT, sl_server_drain()──> LEAVING
 *         ──--drain-delay──> DRAINING ──sl_server_drained() or the limit──> CLOSING ──>
 *         sl_server_run() returns
 *
 * While LEAVING everything is served as before, only /readyz says 503: until balancers have seen it
 * and send nothing here any more, so that nobody is refused. While DRAINING the socket stays open
 * (so that running sessions can be read); handlers refuse new turns with SL_E_DRAINING. CLOSING:
 * what still comes is answered with that, for a second at most; then there are no more accepts, who
 * is in the middle of a request is told, what has been written is flushed, connections are closed.
 * A second signal ends the process at once.
 *
 * Use:
 *     sl_server_open(&s, &config, &err)      the address is taken from here on
 *     sl_server_add_routes(s, rows, n) …
 *     sl_server_set_hooks(s, &hooks)
 *     … load the model (in libuv's pool, or before run) …; sl_server_ready(s)
 *     rc = sl_server_run(s);  sl_server_close(s); */
#ifndef SLATE_SERVER_SERVER_H
#define SLATE_SERVER_SERVER_H

#include <uv.h>

#include "server/auth.h"
#include "server/config.h"
#include "server/metrics.h"
#include "server/router.h"

enum sl_server_state {
    SL_SERVER_LOADING,
    SL_SERVER_READY,
    SL_SERVER_LEAVING,
    SL_SERVER_DRAINING,
    SL_SERVER_CLOSING
};

struct sl_server;

struct sl_server_hooks { /* all on the loop's thread; each function may be NULL */
    void *app;           /* what sl_exchange_app() gives */
    /* No new turns from now on; call sl_server_drained() once the running ones have ended (also
     * from inside). NULL: drained at once when the last exchange has ended. */
    void (*drain)(void *app);
    /* --drain-timeout is over: end what runs (`paused`) now. After another 5 s everything is cut.
     */
    void (*drain_limit)(void *app);
    /* A route of the flag SL_ROUTE_SESSION: calls the handler, now or when it is known what there
     * is of the session {id}; or answers itself. */
    void (*named)(struct sl_exchange *ex, void (*handler)(struct sl_exchange *ex));
    /* Before a scrape: set what others count. */
    void (*collect)(void *app, struct sl_metrics *m);
    /* In a scrape: metrics that have rows of their own. */
    void (*more_metrics)(void *app, FILE *f);
    /* The key file was read (sl_server_keys()): at sl_server_set_hooks(), and again at SIGHUP. */
    void (*keys)(void *app);
};

/* Reads keys, opens loop, socket and signals; listens. The config must outlive the server.
 * Errors: USAGE, ADDRESS_IN_USE, INTERNAL, NO_MEMORY, those of sl_keys_open(). */
SL_NODISCARD enum sl_code sl_server_open(struct sl_server **ret, const struct sl_config *config,
                                         struct sl_error *err);
void sl_server_add_routes(struct sl_server *s, const struct sl_route *rows, size_t n);
void sl_server_set_hooks(struct sl_server *s, const struct sl_server_hooks *hooks);

/* Runs the loop until the end. Returns the exit code: 0 after a drain, 1 what was given to
 * sl_server_stop(). Prints `listening on ADDRESS` to stdout first. */
int sl_server_run(struct sl_server *s);

/* After run (or instead of it). The app must have given all it has on the loop to uv_close(); their
 * callbacks run in here, and so do the aborts of exchanges that are still open. */
void sl_server_close(struct sl_server *s); /* NULL is fine */

void sl_server_ready(struct sl_server *s);
void sl_server_drain(struct sl_server *s);               /* as SIGTERM; again: nothing */
void sl_server_drained(struct sl_server *s);             /* the app has no running turns any more */
void sl_server_stop(struct sl_server *s, int exit_code); /* without a drain: loading failed */

enum sl_server_state sl_server_state(const struct sl_server *s);
uv_loop_t *sl_server_loop(struct sl_server *s);
struct sl_longwork *sl_server_longwork(struct sl_server *s);
const struct sl_config *sl_server_config(const struct sl_server *s);
struct sl_metrics *sl_server_metrics(struct sl_server *s);
void sl_server_free_body(struct sl_server *s, size_t n);         /* of sl_exchange_keep_body() */
const struct sl_keys *sl_server_keys(const struct sl_server *s); /* NULL: nobody needs one */
/* Calls collect and writes all metrics; *ret is freed with sl_free(). Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_server_scrape(struct sl_server *s, char **ret, size_t *ret_n,
                                           struct sl_error *err);
const char *sl_server_address(const struct sl_server *s); /* "127.0.0.1:8080", with the real port */

/* server/api/ops.c: /livez, /readyz, /metrics, POST /v1/admin/drain. */
extern const struct sl_route sl_ops_routes[];
extern const size_t sl_ops_n_routes;

#endif
