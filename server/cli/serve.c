/* serve.c: `slate serve`: everything wired together.
 *
 *   options -> address -> (libuv's pool: model, tokenizer, slab) -> sessions, turns -> ready
 *
 * The address is taken first: a port in use is told before gigabytes are read; and /livez answers
 * while they are. What needs the model is refused with LOADING until then (sl_app_ready()).
 *
 * At the end the loop runs on until nothing of ours is left on it, so that every part is closed
 * with nobody inside. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/forward.h"
#include "proto/json.h"
#include "server/app.h"
#include "server/cli/cli.h"
#include "server/cli/load.h"
#include "server/residency.h"

enum { EXPIRY_MS = 5000 };
#define DEFAULT_MEMORY ((uint64_t)4 << 30)
#define DEFAULT_SESSIONS 1024u

struct serving {
    struct sl_config config;
    struct sl_app app;
    struct sl_loaded loaded;
    size_t n_sessions, n_turn_slots;
    uint64_t replay_limit;
    const char *default_name[1];
    uv_work_t work;
    bool is_loading; /* the pool is at it */
    bool has_expiry;
    uv_check_t rounds;
    bool has_rounds;
    bool is_flushed;
    size_t n_unsaved;
    int64_t begun_us;
    enum sl_code code; /* of loading */
    struct sl_error err;
};

static int64_t unix_seconds(void)
{
    return (int64_t)time(NULL);
}

/* --- how many sessions ------------------------------------------------------------------------ */

static bool has_store(const struct sl_config *c)
{
    return strcmp(c->store, "memory") != 0;
}

static enum sl_code check_fits(const struct sl_config *c, size_t n, size_t slot, uint64_t budget,
                               const char *what, struct sl_error *err)
{
    const double mib = 1024.0 * 1024.0;
    uint64_t n_turns = 2 * c->max_running;
    if (!budget || n + n_turns <= budget / slot)
        return SL_OK;
    return sl_fail(err, SL_E_USAGE,
                   "the states of sessions (%zu%s) and of running turns (2 for each of %" PRIu64
                   "), %.3g MiB each, need %.0f MiB, but %s %.0f MiB: see --sessions-in-memory, "
                   "--max-running and --memory",
                   n, c->keep_turns && !has_store(c) ? ", with --keep-turns" : "", c->max_running,
                   (double)slot / mib, (double)(n + n_turns) * (double)slot / mib, what,
                   (double)budget / mib);
}

/* Slots of turns that wait for the store (turns.h): one for each that may run, so that a sync has
 * many of them and the engine is busy meanwhile. A model whose states are large takes long for its
 * turns, and few wait: for them there is a sixteenth of the memory. */
static uint64_t slots_to_commit(const struct sl_config *c, uint64_t slots)
{
    enum { SHARE = 16 };
    uint64_t n = slots / SHARE < c->max_running ? slots / SHARE : c->max_running;
    return has_store(c) ? n : 0;
}

static enum sl_code count_slots(const struct sl_config *c, size_t state_bytes, size_t *ret_sessions,
                                size_t *ret_turns, struct sl_error *err)
{
    size_t slot = (state_bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    size_t each = has_store(c) ? 1 : 1 + (size_t)c->keep_turns; /* slots of a session */
    uint64_t available = sl_memory_available(), budget = c->memory;
    if (!budget)
        budget = !available || available / 4 > DEFAULT_MEMORY ? DEFAULT_MEMORY : available / 4;
    uint64_t slots = budget / slot, to_commit = slots_to_commit(c, slots);
    uint64_t running = 2 * c->max_running, n_turns = running + to_commit;
    uint64_t n = slots > n_turns + each ? (slots - n_turns) / each : 1;
    if (c->sessions_in_memory)
        n = c->sessions_in_memory;
    else if (!c->memory && n > DEFAULT_SESSIONS)
        n = DEFAULT_SESSIONS;
    enum sl_code code = check_fits(c, n * each, slot, c->memory, "--memory is", err);
    if (!code)
        code = check_fits(c, n * each, slot, available, "available are", err);
    if (code)
        return code;
    uint64_t most = c->memory ? c->memory : available;
    uint64_t left = most ? most / slot - n * each - running : to_commit;
    *ret_sessions = n;
    *ret_turns = running + (to_commit < left ? to_commit : left);
    return SL_OK;
}

/* --- loading ---------------------------------------------------------------------------------- */

/* Tokens that a quarter of a second reads: what a load may cost at most. Of a large model the first
 * few rows take long enough to tell, and a start should not wait for more; of others the best of
 * some rounds counts. */
static enum sl_code measure_replay(const struct sl_model *m, size_t n_threads, uint64_t *ret,
                                   struct sl_error *err)
{
    enum { FEW = 16, ROWS = 64, ROUNDS = 4, PER_SECOND = 4, LONG_NS = 20000000 };
    uint32_t tokens[ROWS] = {0};
    struct sl_workers *w = NULL;
    struct sl_forward *f = NULL;
    void *state = sl_aligned_calloc(sl_model_info(m)->state_bytes);
    enum sl_code c = state ? SL_OK : sl_fail(err, SL_E_NO_MEMORY, "no memory for a state");
    if (!c)
        c = sl_workers_open(&w, n_threads ? n_threads : uv_available_parallelism(), err);
    if (!c)
        c = sl_forward_open(&f, m, w, ROWS, 1, err);
    uint64_t best = UINT64_MAX, ns = 0; /* for a row */
    for (int i = 0; !c && i < ROUNDS && ns < LONG_NS; i++) {
        size_t rows = i ? ROWS : FEW;
        struct sl_segment s = {.state = state, .tokens = tokens, .n_tokens = rows};
        sl_model_state_init(m, state);
        uint64_t begin = uv_hrtime();
        sl_forward_run(f, &s, 1);
        ns = uv_hrtime() - begin;
        best = ns / rows < best ? ns / rows : best;
    }
    if (!c)
        *ret = 1000000000 / PER_SECOND / (best ? best : 1) + 1;
    sl_forward_close(f);
    sl_workers_close(w);
    sl_free(state);
    return c;
}

/* The pool's thread. Touches what nobody else does before it is done. */
static void load(uv_work_t *work)
{
    struct serving *s = work->data;
    s->code = sl_cli_load(&s->loaded, &s->config, &s->err);
    if (s->code)
        return;
    size_t state_bytes = sl_model_info(s->loaded.model)->state_bytes;
    s->code = count_slots(&s->config, state_bytes, &s->n_sessions, &s->n_turn_slots, &s->err);
    if (!s->code && s->config.initial_states.n)
        s->code = sl_initial_states_open(&s->app.initial, s->loaded.model,
                                         &s->config.initial_states, &s->err);
    s->replay_limit = s->config.replay_limit;
    if (!s->code && !s->replay_limit)
        s->code = measure_replay(s->loaded.model, s->config.threads, &s->replay_limit, &s->err);
    if (!s->code)
        s->code = sl_slab_open(
            &s->app.slab,
            sl_sessions_slots(s->n_sessions, has_store(&s->config), s->config.keep_turns) +
                s->n_turn_slots,
            state_bytes, &s->err);
}

static const unsigned char *token_bytes(const void *arg, uint32_t id, size_t *ret_n)
{
    return sl_tokenizer_bytes(arg, id, ret_n);
}

static void name_model(struct serving *s)
{
    struct sl_app *app = &s->app;
    if (s->config.model_names.n) {
        app->model_names = s->config.model_names.v;
        app->n_model_names = s->config.model_names.n;
    } else {
        s->default_name[0] = sl_model_info(app->model)->name;
        app->model_names = s->default_name;
        app->n_model_names = 1;
    }
}

static void on_expiry(uv_timer_t *timer)
{
    struct sl_app *app = timer->data;
    sl_sessions_expire(app->sessions);
}

static void start_expiry(struct serving *s)
{
    uv_timer_t *t = &s->app.expiry;
    s->has_expiry = uv_timer_init(sl_server_loop(s->app.server), t) == 0;
    if (!s->has_expiry)
        return;
    t->data = &s->app;
    uv_timer_start(t, on_expiry, EXPIRY_MS, EXPIRY_MS);
    uv_unref((uv_handle_t *)t);
}

static void tell(const struct serving *s)
{
    const struct sl_model_info *i = sl_model_info(s->app.model);
    size_t n_tokens = sl_tokenizer_size(s->app.tokenizer);
    if (n_tokens > i->vocab_size)
        sl_log(SL_LOG_WARN, "the tokenizer has ids that the model does not know",
               SL_LI("tokenizer_size", n_tokens), SL_LI("model_vocabulary", i->vocab_size));
    if (s->app.chat_unknown)
        sl_log(SL_LOG_WARN, "the model's chat template is not known: messages are refused",
               SL_LS("option", "--chat-template"));
    sl_log(SL_LOG_INFO, "model loaded", SL_LS("model", s->app.model_names[0]),
           SL_LS("arch", i->arch), SL_LI("parameters", i->n_params),
           SL_LS("weights", i->weights_name), SL_LS("kernels", i->kernels),
           SL_LS("prefill", i->prefill_mode),
           SL_LS("tokenizer", sl_tokenizer_kind(s->app.tokenizer)),
           SL_LS("chat_template", s->app.chat ? s->app.chat->name : "none"),
           SL_LI("state_bytes", i->state_bytes), SL_LI("sessions", s->n_sessions),
           SL_LI("ms", ((int64_t)(uv_hrtime() / 1000) - s->begun_us) / 1000));
}

static enum sl_code open_app(struct serving *s, struct sl_error *err)
{
    struct sl_app *app = &s->app;
    const struct sl_config *c = &s->config;
    struct sl_limits limits = SL_LIMITS_DEFAULT;
    limits.max_tokens = c->max_tokens_limit;
    limits.default_max_tokens = c->default_max_tokens;
    limits.vocab_size = sl_model_info(s->loaded.model)->vocab_size;
    app->limits = limits;
    app->model = s->loaded.model;
    app->tokenizer = s->loaded.tokenizer;
    app->vocab = (struct sl_vocab){.bytes = token_bytes, .arg = app->tokenizer};
    enum sl_code code = sl_app_choose_chat(app, s->loaded.chat_template, s->loaded.n_chat_template,
                                           s->loaded.embedded, err);
    if (code)
        return code;
    name_model(s);
    bool stored = has_store(c), fewer = c->max_sessions < s->n_sessions;
    struct sl_sessions_options sessions = {.model = app->model,
                                           .tokenizer = app->tokenizer,
                                           .slab = app->slab,
                                           .loop = sl_server_loop(app->server),
                                           .tenants = app->tenants,
                                           .n_places = s->n_sessions,
                                           .max_sessions = stored || fewer ? (size_t)c->max_sessions
                                                                           : s->n_sessions,
                                           .store = stored ? c->store : NULL,
                                           .keep_turns = c->keep_turns,
                                           .max_names = (size_t)c->max_checkpoints,
                                           .keep_transcript = c->keep_transcript,
                                           .store_timeout_ms = c->store_timeout_ms,
                                           .lease_ms = c->lease_ms,
                                           .durability = (enum sl_durability)c->durability,
                                           .replay_limit = s->replay_limit,
                                           .now = unix_seconds};
    code = sl_sessions_open(&app->sessions, &sessions, err);
    if (code)
        return code;
    struct sl_turns_options opt = {.max_running = c->max_running,
                                   .max_slots = s->n_turn_slots,
                                   .max_waiting = c->max_waiting,
                                   .max_queued_prefill = c->max_queued_prefill,
                                   .max_tokens = limits.max_tokens,
                                   .n_threads = c->threads,
                                   .begin_token = s->loaded.begin_token,
                                   .initial_state = sl_initial_states_default(app->initial),
                                   .longwork = sl_server_longwork(app->server)};
    code = sl_turns_open(&app->turns, sl_server_loop(app->server), app->model, app->tokenizer,
                         app->sessions, sl_server_metrics(app->server), &opt, err);
    if (code)
        return code;
    start_expiry(s);
    tell(s);
    return SL_OK;
}

static void on_loaded(uv_work_t *work, int status)
{
    struct serving *s = work->data;
    assert(status == 0); /* nobody cancels it */
    (void)status;
    s->is_loading = false;
    if (sl_server_state(s->app.server) != SL_SERVER_LOADING)
        return; /* it was told to end meanwhile */
    if (!s->code)
        s->code = open_app(s, &s->err);
    if (s->code)
        sl_server_stop(s->app.server, sl_cli_fail("serve", &s->err));
    else
        sl_server_ready(s->app.server);
}

/* --- the server's hooks ----------------------------------------------------------------------- */

/* Once in each round of the loop, while it waits for what is still asked of sessions: a snapshot, a
 * fork, the state of a turn that has just ended. */
static void on_round(uv_check_t *h)
{
    struct serving *s = h->data;
    if (s->app.sessions && sl_sessions_busy(s->app.sessions))
        return;
    uv_check_stop(h);
    sl_server_drained(s->app.server);
}

/* No turn runs any more. What is only in memory goes to the store when no request can come any more
 * that would change it: close_app(). */
static void on_drained(void *arg)
{
    struct serving *s = arg;
    s->rounds.data = s;
    if (!s->has_rounds)
        s->has_rounds = uv_check_init(sl_server_loop(s->app.server), &s->rounds) == 0;
    uv_check_start(&s->rounds, on_round);
    on_round(&s->rounds);
}

static void on_drain(void *arg)
{
    struct sl_app *app = arg;
    struct serving *s = (struct serving *)((char *)app - offsetof(struct serving, app));
    if (app->turns)
        sl_turns_drain(app->turns, on_drained, s);
    else
        on_drained(s);
}

static void on_drain_limit(void *arg)
{
    struct sl_app *app = arg;
    if (app->turns)
        sl_turns_drain_limit(app->turns);
}

static void collect_sessions(const struct sl_app *app, struct sl_metrics *m)
{
    struct sl_residency_stats r;
    struct sl_store_stats st;
    sl_residency_stats(app->sessions, &r);
    sl_metric_set(m, SL_M_SESSIONS, (double)sl_sessions_count(app->sessions));
    sl_metric_set(m, SL_M_KEPT_BYTES, (double)sl_sessions_kept(app->sessions));
    sl_metric_set(m, SL_M_SESSIONS_IN_MEMORY, (double)sl_sessions_in_memory(app->sessions));
    sl_metric_set(m, SL_M_SESSION_LOADS, (double)r.loads);
    sl_metric_set(m, SL_M_SESSION_REREADS, (double)r.reread_tokens);
    sl_metric_set(m, SL_M_SESSION_SAVES, (double)r.saves);
    sl_metric_set(m, SL_M_SESSION_EVICTIONS, (double)r.evictions);
    sl_metric_set(m, SL_M_SESSION_FAILURES, (double)r.failures);
    sl_metric_set(m, SL_M_SESSIONS_EXPIRED, (double)sl_sessions_expired(app->sessions));
    if (!sl_sessions_store(app->sessions))
        return;
    sl_store_stats(sl_sessions_store(app->sessions), &st);
    sl_metric_set(m, SL_M_STORE_COMMITS, (double)st.commits);
    sl_metric_set(m, SL_M_STORE_SYNCS, (double)st.syncs);
    sl_metric_set(m, SL_M_STORE_FAILURES, (double)st.failures);
    sl_metric_set(m, SL_M_STORE_DAMAGED, (double)st.damaged);
    sl_metric_set(m, SL_M_STORE_RETRIES, (double)st.retries);
    sl_metric_set(m, SL_M_STORE_RECONNECTS, (double)st.reconnects);
    sl_metric_set(m, SL_M_STORE_LOG_BYTES, (double)st.log_bytes);
    sl_metric_set(m, SL_M_STORE_READ_ONLY, st.read_only);
}

static void on_collect(void *arg, struct sl_metrics *m)
{
    const struct sl_app *app = arg;
    if (app->turns)
        sl_turns_collect(app->turns, m);
    if (app->sessions)
        collect_sessions(app, m);
}

static void on_more_metrics(void *arg, FILE *f)
{
    const struct sl_app *app = arg;
    if (app->sessions)
        sl_tenants_write_metrics(app->tenants, sl_sessions_are_shared(app->sessions), f);
}

static void on_keys(void *arg)
{
    const struct sl_app *app = arg;
    struct sl_error err;
    if (sl_tenants_set_keys(app->tenants, sl_server_keys(app->server),
                            uv_now(sl_server_loop(app->server)), &err))
        sl_log(SL_LOG_ERROR, "not all tenants have their new quotas", SL_LS("why", err.message));
}

/* --- the whole -------------------------------------------------------------------------------- */

static void only_note(void *arg)
{
    *(bool *)arg = true;
}

static void on_flushed(void *arg, size_t n_failed, const struct sl_error *first)
{
    struct serving *s = arg;
    s->is_flushed = true;
    s->n_unsaved = n_failed;
    if (n_failed)
        sl_log(SL_LOG_ERROR, "sessions could not be stored", SL_LI("sessions", n_failed),
               SL_LS("why", first->message));
}

/* Nothing changes a session any more; then all are in the store. */
static void flush(struct serving *s, uv_loop_t *loop)
{
    struct sl_sessions *ss = s->app.sessions;
    while (sl_sessions_busy(ss))
        uv_run(loop, UV_RUN_ONCE);
    sl_sessions_flush(ss, on_flushed, s);
    while (!s->is_flushed || sl_sessions_busy(ss))
        uv_run(loop, UV_RUN_ONCE);
}

/* After the server's end. */
static void close_app(struct serving *s)
{
    struct sl_app *app = &s->app;
    uv_loop_t *loop = sl_server_loop(app->server);
    if (s->has_rounds)
        uv_close((uv_handle_t *)&s->rounds, NULL);
    while (s->is_loading)
        uv_run(loop, UV_RUN_ONCE);
    if (app->turns) {
        bool idle = false;
        sl_turns_drain(app->turns, only_note, &idle);
        sl_turns_drain_limit(app->turns);
        while (!idle)
            uv_run(loop, UV_RUN_ONCE);
        if (s->has_expiry)
            uv_close((uv_handle_t *)&app->expiry, NULL);
        flush(s, loop);
        sl_turns_close(app->turns);
    }
    sl_sessions_close(app->sessions, NULL, NULL);
    while (uv_run(loop, UV_RUN_DEFAULT)) /* the end of sl_server_run() may still stop a run */
        ;
    sl_tenants_close(app->tenants);
    sl_slab_close(app->slab);
    sl_initial_states_close(app->initial);
    sl_cli_load_done(&s->loaded);
}

static int run(struct serving *s)
{
    struct sl_server *server = NULL;
    struct sl_error err;
    const struct sl_config *conf = &s->config;
    const struct sl_quotas quotas = {.most = {[SL_QUOTA_SESSIONS] = conf->tenant_sessions,
                                              [SL_QUOTA_BYTES] = conf->tenant_bytes,
                                              [SL_QUOTA_RUNNING] = conf->tenant_running,
                                              [SL_QUOTA_TOKENS] = conf->tenant_tokens}};
    enum sl_code c = sl_cli_chat_template(conf->chat_template, &err);
    if (!c && !(s->app.tenants = sl_tenants_open(&quotas)))
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory for the tenants");
    if (!c)
        c = sl_server_open(&server, &s->config, &err);
    if (c) {
        sl_tenants_close(s->app.tenants);
        return sl_cli_fail("serve", &err);
    }
    s->app.server = server;
    s->app.config = &s->config;
    s->app.started_at = unix_seconds();
    s->begun_us = (int64_t)(uv_hrtime() / 1000);
    sl_server_add_routes(server, sl_ops_routes, sl_ops_n_routes);
    sl_server_add_routes(server, sl_generate_routes, sl_generate_n_routes);
    sl_server_add_routes(server, sl_session_routes, sl_session_n_routes);
    sl_server_add_routes(server, sl_model_routes, sl_model_n_routes);
    struct sl_server_hooks hooks = {.app = &s->app,
                                    .drain = on_drain,
                                    .drain_limit = on_drain_limit,
                                    .named = sl_app_named,
                                    .collect = on_collect,
                                    .more_metrics = on_more_metrics,
                                    .keys = on_keys};
    sl_server_set_hooks(server, &hooks);
    s->work.data = s;
    s->is_loading = uv_queue_work(sl_server_loop(server), &s->work, load, on_loaded) == 0;
    assert(s->is_loading);
    int rc = sl_server_run(server);
    close_app(s);
    sl_server_close(server);
    return rc ? rc : s->n_unsaved ? SL_EXIT_FAILED : rc;
}

static void warn_stray(void *arg, const char *name)
{
    (void)arg;
    sl_log(SL_LOG_WARN, "a variable of the environment names no option of slate serve: ignored",
           SL_LS("variable", name));
}

int sl_cli_serve(int argc, char **argv)
{
    struct serving *s = sl_calloc(1, sizeof *s);
    struct sl_args args = {0};
    struct sl_error err;
    int rc = SL_EXIT_OK;
    if (!s) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory");
        return sl_cli_fail("serve", &err);
    }
    struct sl_option_set set = {.dst = &s->config};
    set.rows = sl_config_options(&set.n);
    enum sl_code c = sl_options_parse(&set, 1, SL_CMD_SERVE, argc, argv, &args, &err);
    if (!c && args.help) {
        sl_options_help(&set, 1, SL_CMD_SERVE);
        goto out;
    }
    if (!c && args.n_rest)
        c = sl_fail(&err, SL_E_USAGE, "'%s' is no option; see slate serve --help", args.rest[0]);
    if (!c)
        c = sl_config_check(&s->config, &err);
    if (c) {
        rc = sl_cli_fail("serve", &err);
        goto out;
    }
    sl_log_setup((enum sl_log_level)s->config.log_level, s->config.log_format == SL_LOG_JSON);
    sl_options_each_stray(&set, 1, warn_stray, NULL);
    sl_json_init();
    rc = run(s);
out:
    sl_options_done(&set, 1, &args);
    sl_free(s);
    return rc;
}
