/* generate.c: POST /v1/generate, /v1/completions, /v1/chat/completions: one path for the three.
 *
 *   decode -> refuse what is not served yet -> model, session, If-Match -> text -> seed -> run
 *   news, writable -> answer.c        done -> answer.c        the client goes -> on_disconnect
 *
 * A stream's head goes out with the first token, so that whatever fails before it is a plain HTTP
 * error; or after --ping-interval, where the first token takes that long. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "engine/base/mem.h"
#include "server/api/generation.h"

/* --- the end of a generation ------------------------------------------------------------------ */

/* What a run has copied, or nobody needs any more. */
static void forget_request(struct sl_generation *g)
{
    sl_pool_done(&g->req.pool);
    g->req.input = (struct sl_input){.kind = SL_INPUT_NONE};
    g->req.session = g->req.model = NULL;
    g->req.initial_state = NULL;
    g->req.stops = NULL;
    g->req.stop_tokens = NULL;
    g->req.sampling.bias = NULL;
    sl_server_free_body(g->app->server, g->n_body);
    g->n_body = 0;
}

static void on_timer_closed(uv_handle_t *h)
{
    sl_free(h->data);
}

/* After it *g is gone (at the latest when the loop has closed its timer). */
static void generation_free(struct sl_generation *g)
{
    assert(!g->ex);
    if (g->run)
        sl_run_close(g->run);
    forget_request(g);
    sl_generate_done(&g->req);
    sl_text_stream_done(&g->text);
    sl_buf_done(&g->state);
    sl_free(g->key);
    if (g->has_timer)
        uv_close((uv_handle_t *)&g->head_timer, on_timer_closed);
    else
        sl_free(g);
}

void sl_generation_settle(struct sl_generation *g)
{
    if (!g->ex && g->over && !g->awaits_state)
        generation_free(g);
}

/* --- events ----------------------------------------------------------------------------------- */

static int64_t now_us(void)
{
    return (int64_t)(uv_hrtime() / 1000);
}

static void stream(struct sl_generation *g)
{
    /* An answer that broke off: its client does not know what the turn gave, so there was none. */
    if (sl_answer_stream(g) && !g->over)
        sl_run_cancel(g->run, false);
}

/* A copy: the answer names the stop that ended it, when the request is long gone. */
static void add_stop(struct sl_generation *g, const void *bytes, size_t n)
{
    assert(g->n_stops < SL_STOPS_MAX && n <= SL_STOP_BYTES_MAX);
    memcpy(g->stop_bytes[g->n_stops], bytes, n);
    g->stops[g->n_stops] = (struct sl_stop){.bytes = g->stop_bytes[g->n_stops], .n = n};
    g->n_stops++;
}

/* What goes on is the paused turn's: its settings, and where its text stood. */
static void adopt(struct sl_generation *g)
{
    const struct sl_paused_turn *p = g->run ? sl_run_paused(g->run) : NULL;
    if (!p || g->adopted)
        return;
    g->adopted = true;
    g->req.logprobs = p->logprobs;
    g->req.sampling.seed = p->sampling.seed;
    g->chat = p->chat_template ? sl_chat_template_find(p->chat_template) : NULL;
    g->reply_started = p->reply_started;
    g->n_stops = 0;
    for (size_t i = 0; i < p->n_stops; i++)
        add_stop(g, p->stops[i].bytes, p->stops[i].n);
    sl_buf_put(&g->text.raw, p->utf8_tail, p->n_utf8_tail);
}

static void on_news(struct sl_run *r, void *user)
{
    struct sl_generation *g = user;
    adopt(g);
    const struct sl_turn *t = sl_run_turn(r);
    if (!g->first_us && t && sl_turn_released(t))
        g->first_us = now_us();
    if (g->ex && g->req.stream)
        stream(g);
}

static void observe(const struct sl_generation *g, const struct sl_run_result *res)
{
    struct sl_metrics *m = sl_server_metrics(g->app->server);
    int64_t now = now_us(), first = g->first_us ? g->first_us : now;
    sl_app_count_turn(g->app, res);
    sl_metric_observe(m, SL_M_REQUEST_DURATION, (double)(now - g->started_us) / 1e6);
    if (res->n_tokens)
        sl_metric_observe(m, SL_M_FIRST_TOKEN, (double)(first - g->started_us) / 1e6);
    if (res->n_tokens > 1)
        sl_metric_observe(m, SL_M_PER_TOKEN,
                          (double)(now - first) / 1e6 / (double)(res->n_tokens - 1));
}

void sl_generation_finish(struct sl_generation *g)
{
    const struct sl_run_result *res = sl_run_result(g->run);
    const struct sl_error *err = res->error.code ? &res->error : &g->state_error;
    if (g->ex && res->committed && g->session[0])
        sl_exchange_done(g->ex);
    if (g->ex && err->code)
        sl_answer_fail(g, err);
    else if (g->ex && g->req.stream)
        stream(g);
    else if (g->ex)
        sl_answer_whole(g);
    if (g->ephemeral)
        sl_stateless_forget(g);
    sl_generation_settle(g);
}

static void on_done(struct sl_run *r, void *user)
{
    struct sl_generation *g = user;
    adopt(g);
    g->over = true;
    observe(g, sl_run_result(r));
    if (g->ephemeral)
        sl_stateless_over(g);
    else
        sl_generation_finish(g);
}

static void on_answer(struct sl_run *r, void *user, struct sl_buf *b)
{
    (void)r;
    adopt(user);
    sl_answer_body(user, b);
}

static void on_writable(struct sl_exchange *ex, void *user)
{
    struct sl_generation *g = user;
    (void)ex;
    stream(g);
    sl_generation_settle(g);
}

static void on_abort(struct sl_exchange *ex, void *user)
{
    struct sl_generation *g = user;
    if (!g->over) {
        sl_metric_add(sl_server_metrics(g->app->server), SL_M_TURNS_ABORTED, 1);
        if (g->run && g->req.on_disconnect != SL_ON_DISCONNECT_CONTINUE)
            sl_run_cancel(g->run, g->req.on_disconnect == SL_ON_DISCONNECT_COMMIT);
    }
    g->ex = NULL;
    sl_exchange_cut(ex);
    if (g->restoring.op) {
        sl_sessions_give_up(&g->restoring); /* which may be its end */
        return;
    }
    if (!g->run)
        forget_request(g);
    sl_generation_settle(g);
}

static const struct sl_exchange_events events = {.abort = on_abort, .writable = on_writable};

static void on_head_timer(uv_timer_t *timer)
{
    struct sl_generation *g = timer->data;
    if (!g->ex || !g->req.stream)
        return;
    if (!g->run) { /* it waits for its session: headers may still come, or a kept answer */
        uv_timer_start(timer, on_head_timer, g->app->config->ping_interval_ms, 0);
        return;
    }
    sl_answer_begin(g);
    if (!g->ex && !g->over)
        sl_run_cancel(g->run, false);
}

/* --- request -> turn -------------------------------------------------------------------------- */

static enum sl_code find_session(struct sl_generation *g, struct sl_session **ret,
                                 struct sl_error *err)
{
    struct sl_session *s;
    enum sl_code c = sl_app_session(g->ex, g->req.session, &s, err);
    if (c)
        return c;
    if (s) {
        sl_session_copy_id(g->session, s);
        memcpy(g->incarnation, s->incarnation, sizeof g->incarnation);
    } else if (sl_exchange_header(g->ex, "If-Match")) {
        c = sl_fail_param(err, SL_E_INVALID_VALUE, "If-Match",
                          "the header If-Match was sent, but no session is named");
    } else if (g->req.input.kind == SL_INPUT_RESUME && !g->req.initial_state) {
        c = sl_fail_param(err, SL_E_MISSING_FIELD, "session",
                          "resume needs a session, or an initial_state");
    }
    if (!c)
        *ret = s;
    return c;
}

/* The client's stops, then the template's: those that are special tokens of the model as tokens. */
static enum sl_code gather_stops(struct sl_generation *g, struct sl_error *err)
{
    const struct sl_generate_request *q = &g->req;
    size_t n_strings = 0, n_tokens = 0;
    int64_t ids[SL_CHAT_STOPS_MAX];
    const char *const *stops = g->chat ? g->chat->stops : NULL;
    size_t n = 0;
    while (stops && q->max_tokens && n < SL_CHAT_STOPS_MAX && stops[n]) {
        ids[n] = sl_app_special_token(g->app, stops[n]);
        n_tokens += ids[n] >= 0;
        n_strings += ids[n] < 0;
        n++;
    }
    if (q->n_stops > SL_STOPS_MAX - n_strings || q->n_stop_tokens > SL_STOP_TOKENS_MAX - n_tokens)
        return sl_fail_param(err, SL_E_INVALID_VALUE, n_strings ? "stop" : "stop_tokens",
                             "%zu stop strings, %zu stop tokens and the chat template's %zu and "
                             "%zu are more than the %d and %d that are allowed",
                             q->n_stops, q->n_stop_tokens, n_strings, n_tokens, SL_STOPS_MAX,
                             SL_STOP_TOKENS_MAX);
    for (size_t i = 0; i < q->n_stops; i++)
        add_stop(g, q->stops[i].bytes, q->stops[i].n);
    for (size_t i = 0; i < q->n_stop_tokens; i++)
        g->stop_tokens[g->n_stop_tokens++] = q->stop_tokens[i];
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0)
            g->stop_tokens[g->n_stop_tokens++] = (uint32_t)ids[i];
        else
            add_stop(g, stops[i], strlen(stops[i]));
    }
    return SL_OK;
}

static enum sl_code draw_seed(struct sl_generation *g, struct sl_error *err)
{
    uint64_t seed;
    if (g->req.has_seed)
        return SL_OK;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
    g->req.sampling.seed = seed >> 11; /* every JSON reader keeps 53 bits */
    return SL_OK;
}

/* Bytes for an answer that is told at once, beside the state in it; 0: it is streamed. */
static size_t answer_max(const struct sl_generation *g)
{
    return g->req.stream ? 0 : SL_RESPONSE_BYTES_MAX - sl_stateless_room(g);
}

enum sl_code sl_generation_run(struct sl_generation *g, struct sl_session *s, struct sl_error *err)
{
    const struct sl_generate_request *q = &g->req;
    struct sl_rendered rendered;
    enum sl_code c = sl_app_render(g->app, &q->input, s && s->tokens_seen > 0, q->max_tokens > 0,
                                   &rendered, err);
    struct sl_text text = rendered.text;
    struct sl_run_spec spec = {
        .tenant = g->tenant,
        .session = s,
        .text = q->input.kind == SL_INPUT_TOKENS ? NULL : &text,
        .verbatim = rendered.contents,
        .n_verbatim = rendered.n_contents,
        .tokens = q->input.tokens,
        .n_tokens = q->input.n_tokens,
        .max_tokens = q->max_tokens,
        .fewer_will_do = q->fewer_will_do,
        .max_time_ms = q->max_time_ms,
        .sampling = q->sampling,
        .stops = g->stops,
        .n_stops = g->n_stops,
        .stop_tokens = g->stop_tokens,
        .n_stop_tokens = g->n_stop_tokens,
        .ignore_eos = q->ignore_eos,
        .logprobs = q->logprobs,
        .resume = q->input.kind == SL_INPUT_RESUME,
        .chat_template = g->chat ? g->chat->name : NULL,
        .idempotency_key = g->key,
        .answer_max = answer_max(g),
        .dialect = q->dialect,
        .strict = g->key || (s && sl_exchange_header(g->ex, "If-Match")),
        .answer = on_answer,
        .news = on_news,
        .done = on_done,
        .user = g,
    };
    bool is_empty = !text.n && !q->input.n_tokens && q->input.kind != SL_INPUT_RESUME;
    g->text_begins = g->text.begins = is_empty && !(s && s->tokens_seen);
    memcpy(spec.request_hash, g->body_hash, sizeof spec.request_hash);
    if (!c)
        c = sl_run_start(g->app->turns, &spec, &g->run, err);
    sl_rendered_done(&rendered);
    if (!c)
        forget_request(g);
    return c;
}

/* What can be told of the request alone; *ret_name: the session that it names, or NULL. */
static enum sl_code understand(struct sl_generation *g, const char **ret_name, struct sl_error *err)
{
    size_t n;
    const char *body = sl_exchange_body(g->ex, &n);
    enum sl_code c = g->dialect->decode(&g->req, body, n, &g->app->limits, err);
    sl_keyed_see(g, body, n);
    g->n_body = sl_exchange_keep_body(g->ex); /* it may wait long: for the store, for a place */
    if (c)
        return c;
    /* A token has no more alternatives than the model has tokens. */
    if (g->req.logprobs > 0 && (size_t)g->req.logprobs > g->app->limits.vocab_size)
        g->req.logprobs = (int)g->app->limits.vocab_size;
    if (g->req.input.kind == SL_INPUT_MESSAGES) {
        c = sl_app_has_chat(g->app, err);
        if (c)
            return c;
        g->chat = g->app->chat;
    }
    c = sl_app_tenant(g->ex, &g->tenant, err);
    if (c)
        return c;
    g->stateless = g->req.initial_state || g->req.return_state;
    c = sl_app_check_model(g->app, g->req.model, err);
    return c ? c : sl_app_session_name(g->ex, g->req.session, ret_name, err);
}

static enum sl_code prepare(struct sl_generation *g, struct sl_session **ret, struct sl_error *err)
{
    enum sl_code c = find_session(g, ret, err);
    if (!c && g->stateless)
        c = sl_stateless_check(g, err);
    if (!c)
        c = sl_keyed_take(g, err);
    if (!c)
        c = gather_stops(g, err);
    if (!c)
        c = draw_seed(g, err);
    if (!c)
        c = sl_random_id(g->id, sizeof g->id, g->dialect->id_prefix, err);
    return c;
}

/* The turn begins now, or when its session's memory is there. */
static enum sl_code begin(struct sl_generation *g, struct sl_error *err)
{
    struct sl_session *s = NULL;
    enum sl_code c = prepare(g, &s, err);
    if (c)
        return c;
    if (g->key)
        return sl_keyed_start(g, s, err);
    if (g->stateless) {
        sl_stateless_start(g);
        return SL_OK;
    }
    if (s)
        c = sl_app_match(g->ex, s, err);
    return c ? c : sl_generation_run(g, s, err);
}

static void on_looked(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_generation *g = arg;
    struct sl_error own;
    (void)s;
    if (!g->ex)
        sl_generation_fail(g, NULL);
    else if (err && err->code != SL_E_SESSION_NOT_FOUND)
        sl_generation_fail(g, err);
    else if (begin(g, &own))
        sl_generation_fail(g, &own);
}

/* Is what is known here of the session enough to begin with? The turn's lease brings the rest up to
 * date (sl_sessions_take()), so only where something is concluded before that the store is asked
 * first: what If-Match and Idempotency-Key are compared with, and whether a chat goes on. */
static bool is_known(const struct sl_generation *g, const char *name)
{
    struct sl_session *s;
    struct sl_sessions *ss = g->app->sessions;
    if (!name || !sl_sessions_are_shared(ss))
        return true;
    return !g->chat && !sl_exchange_header(g->ex, "If-Match") &&
           !sl_exchange_header(g->ex, "Idempotency-Key") &&
           !sl_sessions_find(ss, sl_exchange_tenant(g->ex), name, &s, NULL) && s->in_memory &&
           !s->stale;
}

static enum sl_code start(struct sl_generation *g, struct sl_error *err)
{
    const char *name = NULL;
    enum sl_code c = understand(g, &name, err);
    if (c)
        return c;
    if (is_known(g, name))
        return begin(g, err);
    sl_sessions_look(g->app->sessions, sl_exchange_tenant(g->ex), name, on_looked, g);
    return SL_OK;
}

void sl_generation_fail(struct sl_generation *g, const struct sl_error *err)
{
    if (g->ex)
        sl_answer_fail(g, err);
    g->ex = NULL;
    generation_free(g);
}

static void start_timer(struct sl_generation *g)
{
    uint64_t ms = g->app->config->ping_interval_ms;
    if (!ms)
        return;
    g->has_timer = uv_timer_init(sl_server_loop(g->app->server), &g->head_timer) == 0;
    if (!g->has_timer)
        return;
    g->head_timer.data = g;
    uv_timer_start(&g->head_timer, on_head_timer, ms, 0);
}

static void handle(struct sl_exchange *ex, enum sl_dialect dialect)
{
    struct sl_error err;
    struct sl_app *app = sl_app_of(ex);
    struct sl_generation *g = NULL;
    if (sl_app_ready(app, &err)) {
        sl_exchange_fail(ex, &err);
        return;
    }
    g = sl_calloc(1, sizeof *g);
    if (!g) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
        sl_exchange_fail(ex, &err);
        return;
    }
    g->app = app;
    g->ex = ex;
    g->dialect = &sl_dialects[dialect];
    g->created = (int64_t)time(NULL);
    g->started_us = sl_exchange_started_us(ex);
    sl_text_stream_init(&g->text, app->tokenizer);
    sl_buf_init(&g->state, SL_RESPONSE_BYTES_MAX);
    sl_exchange_on(ex, &events, g);
    start_timer(g);
    if (start(g, &err))
        sl_generation_fail(g, &err);
}

static void post_generate(struct sl_exchange *ex)
{
    handle(ex, SL_DIALECT_SLATE);
}

static void post_completions(struct sl_exchange *ex)
{
    handle(ex, SL_DIALECT_COMPLETIONS);
}

static void post_chat_completions(struct sl_exchange *ex)
{
    handle(ex, SL_DIALECT_CHAT);
}

const struct sl_route sl_generate_routes[] = {
    {SL_POST, "/v1/generate", SL_ROLE_USER, 0, SL_BODY_JSON, post_generate},
    {SL_POST, "/v1/completions", SL_ROLE_USER, 0, SL_BODY_JSON, post_completions},
    {SL_POST, "/v1/chat/completions", SL_ROLE_USER, 0, SL_BODY_JSON, post_chat_completions},
};
const size_t sl_generate_n_routes = sizeof sl_generate_routes / sizeof *sl_generate_routes;
