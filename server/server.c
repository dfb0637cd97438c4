/* server.c: see server.h. */
#include "server/server.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/net.h"

enum {
    SIGNALS = 3,
    CUT_AFTER_MS = 5000,   /* after the drain's limit */
    FLUSH_LIMIT_MS = 2000, /* for last bytes to slow clients, when closing */
    AWAIT_MS = 5,          /* between looks at those who have not asked yet */
    AWAIT_ALL_MS = 1000,   /* for all of them: who comes all the time does not keep it running */
    FILES_BESIDES = 64     /* descriptors that are no connections */
};

struct sl_server {
    const struct sl_config *config;
    struct sl_conn_env env;
    struct sl_net net;
    struct sl_server_hooks hooks;
    enum sl_server_state state;
    bool limit_over;
    int exit_code;
    uv_loop_t loop;
    uv_signal_t signals[SIGNALS];
    uv_timer_t limit;   /* of draining, then of closing */
    uv_timer_t closing; /* begins CLOSING from the loop itself, never from inside a handler */
    uv_idle_t hurry;    /* with it: the last look does not wait */
    uv_check_t last_look;
    double n_heard; /* connections and bytes, when it was looked last */
    uint64_t await_until_ms;
    bool signalled;
    bool has_handles;

    uv_work_t reload; /* keys, read again in the pool */
    bool reloading, reload_again;
    struct sl_keys *new_keys;
    bool new_exposed;
    struct sl_error reload_err;
};

/* --- closing --------------------------------------------------------------------------------- */

static void on_flush_limit(uv_timer_t *t)
{
    struct sl_server *s = t->data;
    sl_net_cut_all(&s->net);
}

/* From here the loop holds nothing of ours that keeps it running. */
static void stop_loop(struct sl_server *s)
{
    uv_timer_stop(&s->limit);
    uv_stop(&s->loop);
}

static void on_empty(void *arg)
{
    struct sl_server *s = arg;
    if (s->state == SL_SERVER_CLOSING)
        stop_loop(s);
}

static void close_all(struct sl_server *s)
{
    sl_net_stop_listening(&s->net);
    sl_net_stop_all(&s->net);
    uv_timer_start(&s->limit, on_flush_limit, FLUSH_LIMIT_MS, 0);
    if (s->net.n_conns == 0)
        stop_loop(s);
}

static void on_closing(uv_timer_t *t);

static void on_hurry(uv_idle_t *h)
{
    (void)h;
}

/* Right after a look at the sockets that did not wait: whoever was let in by the system until then
 * is answered (503, and so asks another server), not cut off. */
static void on_last_look(uv_check_t *h)
{
    struct sl_server *s = h->data;
    double n_heard = s->env.metrics.value[SL_M_ACCEPTED] + s->env.metrics.value[SL_M_RECEIVED];
    bool over = uv_now(&s->loop) >= s->await_until_ms;
    bool awaits = !over && sl_net_awaits(&s->net);
    if (n_heard == s->n_heard || awaits || over) {
        uv_check_stop(&s->last_look);
        uv_idle_stop(&s->hurry);
        if (!awaits)
            close_all(s);
        else
            uv_timer_start(&s->closing, on_closing, AWAIT_MS, 0);
    }
    s->n_heard = n_heard;
}

static void on_closing(uv_timer_t *t)
{
    struct sl_server *s = t->data;
    s->n_heard = -1; /* two looks at least */
    uv_idle_start(&s->hurry, on_hurry);
    uv_check_start(&s->last_look, on_last_look);
}

static void begin_closing(struct sl_server *s)
{
    if (s->state == SL_SERVER_CLOSING)
        return;
    s->state = SL_SERVER_CLOSING;
    s->env.closing_down = s->env.closing = true;
    sl_metric_set(&s->env.metrics, SL_M_READY, 0);
    uv_timer_stop(&s->limit);
    s->await_until_ms = uv_now(&s->loop) + AWAIT_ALL_MS;
    uv_timer_start(&s->closing, on_closing, 0, 0);
}

void sl_server_stop(struct sl_server *s, int exit_code)
{
    s->exit_code = exit_code;
    begin_closing(s);
}

void sl_server_drained(struct sl_server *s)
{
    if (s->state == SL_SERVER_DRAINING)
        begin_closing(s);
}

/* --- draining -------------------------------------------------------------------------------- */

static bool nothing_in_flight(const struct sl_server *s)
{
    return s->env.metrics.value[SL_M_IN_FLIGHT] < 0.5;
}

static void on_exchange_freed(void *arg)
{
    struct sl_server *s = arg;
    if (s->state == SL_SERVER_DRAINING && !s->hooks.drain && nothing_in_flight(s))
        sl_server_drained(s);
}

static void on_drain_limit(uv_timer_t *t)
{
    struct sl_server *s = t->data;
    if (s->limit_over || !s->hooks.drain_limit) {
        sl_log(SL_LOG_WARN, "drain limit: what still runs is cut",
               SL_LI("in_flight", s->env.metrics.value[SL_M_IN_FLIGHT]));
        sl_server_drained(s);
        return;
    }
    s->limit_over = true;
    uv_timer_start(&s->limit, on_drain_limit, CUT_AFTER_MS, 0);
    s->hooks.drain_limit(s->hooks.app);
}

static void drain(struct sl_server *s)
{
    s->state = SL_SERVER_DRAINING;
    sl_log(SL_LOG_INFO, "draining", SL_LI("limit_ms", s->config->drain_timeout_ms));
    uv_timer_start(&s->limit, on_drain_limit, s->config->drain_timeout_ms, 0);
    if (s->hooks.drain)
        s->hooks.drain(s->hooks.app);
    else if (nothing_in_flight(s))
        sl_server_drained(s);
}

static void on_leaving_over(uv_timer_t *t)
{
    drain(t->data);
}

void sl_server_drain(struct sl_server *s)
{
    uint64_t delay = s->state == SL_SERVER_READY ? s->config->drain_delay_ms : 0;
    if (s->state >= SL_SERVER_LEAVING)
        return;
    s->state = SL_SERVER_LEAVING;
    s->env.closing_down = true;
    sl_metric_set(&s->env.metrics, SL_M_READY, 0);
    if (!delay) {
        drain(s);
        return;
    }
    sl_log(SL_LOG_INFO, "leaving", SL_LI("delay_ms", delay));
    uv_timer_start(&s->limit, on_leaving_over, delay, 0);
}

/* --- keys, read again ------------------------------------------------------------------------ */

static void reload_work(uv_work_t *w)
{
    struct sl_server *s = w->data;
    if (sl_keys_open(&s->new_keys, s->config->api_keys, &s->new_exposed, &s->reload_err) != SL_OK)
        s->new_keys = NULL;
}

static void warn_of_keys(const struct sl_server *s, bool exposed)
{
    const char *keyless = sl_keys_keyless(s->env.keys);
    if (exposed)
        sl_log(SL_LOG_WARN, "the key file can be read by others (chmod o-rwx)",
               SL_LS("file", s->config->api_keys));
    if (keyless)
        sl_log(SL_LOG_WARN, "the key file has quotas for a tenant that has no key",
               SL_LS("tenant", keyless));
}

static void start_reload(struct sl_server *s);

static void reload_done(uv_work_t *w, int status)
{
    struct sl_server *s = w->data;
    s->reloading = false;
    if (s->new_keys && status == 0) {
        sl_keys_close(s->env.keys);
        s->env.keys = s->new_keys;
        s->new_keys = NULL;
        sl_log(SL_LOG_INFO, "keys were read again", SL_LI("keys", sl_keys_count(s->env.keys)));
        warn_of_keys(s, s->new_exposed);
        if (s->hooks.keys)
            s->hooks.keys(s->hooks.app);
    } else {
        sl_log(SL_LOG_ERROR, "keys were not read again; those from before stay valid",
               SL_LS("why", s->reload_err.message));
    }
    if (s->reload_again && s->state < SL_SERVER_CLOSING)
        start_reload(s);
}

static void start_reload(struct sl_server *s)
{
    s->reload_again = s->reloading; /* once more, with what the file holds then */
    if (s->reloading)
        return;
    s->reload.data = s;
    s->reloading = uv_queue_work(&s->loop, &s->reload, reload_work, reload_done) == 0;
}

/* --- signals --------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *h, int number)
{
    struct sl_server *s = h->data;
    if (number == SIGHUP) {
        if (s->config->api_keys)
            start_reload(s);
        return;
    }
    if (s->signalled) { /* the second one: at once */
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        _exit(128 + number); /* process 1, in a container: what it does not handle is dropped */
    }
    s->signalled = true; /* the first one, also where a request has begun the drain */
    sl_server_drain(s);
}

static enum sl_code open_handles(struct sl_server *s, struct sl_error *err)
{
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP};
    uv_timer_init(&s->loop, &s->limit);
    uv_timer_init(&s->loop, &s->closing);
    uv_idle_init(&s->loop, &s->hurry);
    uv_check_init(&s->loop, &s->last_look);
    s->limit.data = s->closing.data = s->last_look.data = s;
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&s->loop, &s->signals[i]);
        s->signals[i].data = s;
    }
    s->has_handles = true;
    for (int i = 0; i < SIGNALS; i++) {
        int e = uv_signal_start(&s->signals[i], on_signal, numbers[i]);
        if (e)
            return sl_fail(err, SL_E_INTERNAL, "signals cannot be received: %s", uv_strerror(e));
        uv_unref((uv_handle_t *)&s->signals[i]);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write() */
    return SL_OK;
}

/* Each connection is a descriptor; the usual soft limit of 1,024 is less than --max-connections may
 * ask for. Where the hard one is, too, there are fewer connections, so that clients never take the
 * descriptors that the store needs. */
static size_t raise_file_limit(uint64_t connections)
{
    struct rlimit r;
    rlim_t want = (rlim_t)(connections + FILES_BESIDES), had;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return (size_t)connections;
    had = r.rlim_cur;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0)
        r.rlim_cur = had;
    if (r.rlim_cur >= want)
        return (size_t)connections;
    size_t n = r.rlim_cur > FILES_BESIDES ? (size_t)(r.rlim_cur - FILES_BESIDES) : 1;
    sl_log(SL_LOG_WARN, "the limit of open files is low for --max-connections",
           SL_LI("files", r.rlim_cur), SL_LI("connections", n));
    return n;
}

/* --- open and close -------------------------------------------------------------------------- */

static enum sl_code open_env(struct sl_server *s, struct sl_error *err)
{
    unsigned char random[8];
    struct sl_conn_env *env = &s->env;
    env->config = s->config;
    env->access.config = s->config;
    env->server = s;
    env->freed = on_exchange_freed;
    env->freed_arg = s;
    sl_router_init(&env->router);
    enum sl_code c = sl_listen_parse(&env->access.listen, s->config->listen, err);
    if (!c)
        c = sl_metrics_init(&env->metrics, err);
    if (c)
        return c;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return sl_fail(err, SL_E_INTERNAL, "the system gave no random numbers");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(env->id_prefix + 2 * i, 3, "%02x", random[i]);
    if (!s->config->api_keys)
        return SL_OK;
    bool exposed = false;
    c = sl_keys_open(&env->keys, s->config->api_keys, &exposed, err);
    if (!c)
        warn_of_keys(s, exposed);
    return c;
}

enum sl_code sl_server_open(struct sl_server **ret, const struct sl_config *config,
                            struct sl_error *err)
{
    enum sl_code c = sl_config_check(config, err);
    if (c)
        return c;
    struct sl_server *s = sl_calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the server");
    s->config = config;
    s->env.max_connections = raise_file_limit(config->max_connections);
    int e = uv_loop_init(&s->loop);
    if (e) {
        sl_free(s);
        return sl_fail(err, SL_E_INTERNAL, "the event loop cannot be made: %s", uv_strerror(e));
    }
    c = open_env(s, err);
    if (!c)
        c = sl_longwork_open(&s->env.longwork, &s->loop, err);
    if (!c)
        c = open_handles(s, err);
    if (!c)
        c = sl_net_open(&s->net, &s->loop, &s->env, err);
    if (c) {
        sl_server_close(s);
        return c;
    }
    s->net.empty = on_empty;
    s->net.empty_arg = s;
    *ret = s;
    return SL_OK;
}

void sl_server_close(struct sl_server *s)
{
    if (!s)
        return;
    s->state = SL_SERVER_CLOSING;
    sl_net_close(&s->net);
    if (s->has_handles) {
        uv_close((uv_handle_t *)&s->limit, NULL);
        uv_close((uv_handle_t *)&s->closing, NULL);
        uv_close((uv_handle_t *)&s->hurry, NULL);
        uv_close((uv_handle_t *)&s->last_look, NULL);
        for (int i = 0; i < SIGNALS; i++)
            uv_close((uv_handle_t *)&s->signals[i], NULL);
        (void)signal(SIGHUP, SIG_IGN); /* keys are not read any more; that is no reason to die of */
    }
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0) /* uv_stop() from before ends a run early */
        ;
    sl_longwork_close(s->env.longwork);
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        ;
    int e = uv_loop_close(&s->loop);
    assert(e == 0); /* else the app has left something open */
    (void)e;
    sl_keys_close(s->env.keys);
    sl_metrics_done(&s->env.metrics);
    sl_free(s);
}

int sl_server_run(struct sl_server *s)
{
    bool is_unix = s->env.access.listen.kind == SL_LISTEN_UNIX;
    /* Not through stdio: a server that nobody listens to on stdout has not failed for it. */
    if (dprintf(STDOUT_FILENO, "listening on %s%s\n", is_unix ? "" : "http://", s->net.address) < 0)
        sl_log(SL_LOG_WARN, "standard output cannot be written", SL_LS("address", s->net.address));
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    sl_log(SL_LOG_INFO, "stopped", SL_LI("exit_code", s->exit_code));
    return s->exit_code;
}

/* --- what the parts ask for ------------------------------------------------------------------ */

void sl_server_add_routes(struct sl_server *s, const struct sl_route *rows, size_t n)
{
    sl_router_add(&s->env.router, rows, n);
}

void sl_server_set_hooks(struct sl_server *s, const struct sl_server_hooks *hooks)
{
    s->hooks = *hooks;
    s->env.app = hooks->app;
    s->env.named = hooks->named;
    if (hooks->keys)
        hooks->keys(hooks->app);
}

void sl_server_ready(struct sl_server *s)
{
    if (s->state != SL_SERVER_LOADING)
        return;
    s->state = SL_SERVER_READY;
    sl_metric_set(&s->env.metrics, SL_M_READY, 1);
    sl_log(SL_LOG_INFO, "ready", SL_LS("address", s->net.address));
}

enum sl_server_state sl_server_state(const struct sl_server *s)
{
    return s->state;
}

uv_loop_t *sl_server_loop(struct sl_server *s)
{
    return &s->loop;
}

struct sl_longwork *sl_server_longwork(struct sl_server *s)
{
    return s->env.longwork;
}

const struct sl_config *sl_server_config(const struct sl_server *s)
{
    return s->config;
}

struct sl_metrics *sl_server_metrics(struct sl_server *s)
{
    return &s->env.metrics;
}

const struct sl_keys *sl_server_keys(const struct sl_server *s)
{
    return s->env.keys;
}

enum sl_code sl_server_scrape(struct sl_server *s, char **ret, size_t *ret_n, struct sl_error *err)
{
    sl_metric_set(&s->env.metrics, SL_M_BODY_MEMORY, (double)s->env.body_bytes);
    sl_metric_set(&s->env.metrics, SL_M_WRITE_MEMORY, (double)s->env.unread_bytes);
    if (s->hooks.collect)
        s->hooks.collect(s->hooks.app, &s->env.metrics);
    return sl_metrics_write(&s->env.metrics, &s->env.router, s->hooks.more_metrics, s->hooks.app,
                            ret, ret_n, err);
}

void sl_server_free_body(struct sl_server *s, size_t n)
{
    assert(n <= s->env.body_bytes);
    s->env.body_bytes -= n;
}

const char *sl_server_address(const struct sl_server *s)
{
    return s->net.address;
}
