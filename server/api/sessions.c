/* sessions.c: the routes of /v1/sessions.
 *
 * All but one answer at once from the registry. POST /v1/sessions may read a first prompt: then the
 * session is there (and busy) while it is read, and is removed again where that fails or the client
 * goes, so that nobody finds half of what was asked for. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/app.h"

static void reply_session(struct sl_exchange *ex, int status, const struct sl_session *s)
{
    struct sl_session_view view;
    struct sl_buf b;
    sl_app_session_view(sl_app_of(ex), s, &view);
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session(&b, &view);
    sl_app_session_headers(ex, s);
    if (status == 201)
        sl_exchange_add_header(ex, "Location", "/v1/sessions/%s", s->id);
    sl_app_reply_json(ex, status, &b);
}

/* What a route on one session begins with: it is found and If-Match holds. */
static enum sl_code find_named(struct sl_exchange *ex, struct sl_session **ret,
                               struct sl_error *err)
{
    struct sl_session *s;
    enum sl_code c = sl_app_ready(sl_app_of(ex), err);
    if (!c)
        c = sl_app_session(ex, sl_exchange_param(ex, "id"), &s, err);
    if (c)
        return c;
    c = sl_session_match(s, sl_exchange_header(ex, "If-Match"), err);
    if (c)
        sl_app_session_headers(ex, s);
    else
        *ret = s;
    return c;
}

/* New sessions would be lost with the process. */
static enum sl_code check_not_draining(const struct sl_app *app, struct sl_error *err)
{
    enum sl_server_state state = sl_server_state(app->server);
    if (state != SL_SERVER_DRAINING && state != SL_SERVER_CLOSING)
        return SL_OK;
    return sl_fail(err, SL_E_DRAINING, "the server is shutting down and takes no new sessions");
}

/* --- create ----------------------------------------------------------------------------------- */

/* A creation whose first prompt is being read. */
struct creation {
    struct sl_exchange *ex; /* NULL: the client has gone */
    struct sl_app *app;
    struct sl_session *session; /* leased until `done` */
    struct sl_run *run;
};

static enum sl_code why_nothing_was_read(const struct sl_run_result *res, struct sl_error *err)
{
    if (res->error.code) {
        *err = res->error;
        return err->code;
    }
    if (res->finish == SL_FINISH_PAUSED)
        return sl_fail(err, SL_E_DRAINING,
                       "the server shut down while the prompt was read; the session was not made");
    return sl_fail(err, SL_E_BAD_REQUEST,
                   "the reading of the prompt was cancelled; the session was not made");
}

static void on_read(struct sl_run *r, void *user)
{
    struct creation *k = user;
    struct sl_error err;
    const struct sl_run_result *res = sl_run_result(r);
    sl_app_count_turn(k->app, res);
    if (res->committed && k->ex) {
        reply_session(k->ex, 201, k->session);
    } else {
        enum sl_code c = sl_sessions_delete(k->app->sessions, k->session, &err);
        assert(c == SL_OK); /* its lease ended with the run */
        if (k->ex) {
            (void)why_nothing_was_read(res, &err);
            sl_exchange_fail(k->ex, &err);
        }
    }
    sl_run_close(r);
    sl_free(k);
}

static void on_create_abort(struct sl_exchange *ex, void *user)
{
    struct creation *k = user;
    sl_metric_add(sl_server_metrics(k->app->server), SL_M_TURNS_ABORTED, 1);
    k->ex = NULL;
    sl_run_cancel(k->run, false);
    sl_exchange_cut(ex);
}

static const struct sl_exchange_events create_events = {.abort = on_create_abort};

/* Starts to read what the request brings; on failure the session is the caller's as it was. */
static enum sl_code start_reading(struct sl_exchange *ex, struct sl_session *s,
                                  const struct sl_input *in, struct sl_error *err)
{
    struct sl_app *app = sl_app_of(ex);
    struct sl_text text = in->text;
    struct sl_buf rendered;
    struct creation *k = sl_calloc(1, sizeof *k);
    if (!k)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the request");
    *k = (struct creation){.ex = ex, .app = app, .session = s};
    enum sl_code c = SL_OK;
    sl_buf_init(&rendered, sl_app_rendered_max(app));
    if (in->kind == SL_INPUT_MESSAGES) {
        sl_chat_render(&rendered, app->chat, in->messages, in->n_messages, s->n_pending > 0, false);
        text = (struct sl_text){.s = rendered.data, .n = rendered.len};
        c = sl_buf_code(&rendered, err);
    }
    struct sl_run_spec spec = {.session = s,
                               .text = in->kind == SL_INPUT_TOKENS ? NULL : &text,
                               .tokens = in->tokens,
                               .n_tokens = in->n_tokens,
                               .sampling = SL_SAMPLING_DEFAULT,
                               .logprobs = -1,
                               .done = on_read,
                               .user = k};
    if (!c)
        c = sl_run_start(app->turns, &spec, &k->run, err);
    sl_buf_done(&rendered);
    if (c) {
        sl_free(k);
        return c;
    }
    sl_exchange_on(ex, &create_events, k);
    return SL_OK;
}

static enum sl_code refuse_later_sources(const struct sl_session_request *q, struct sl_error *err)
{
    const char *what = q->from_snapshot        ? "a snapshot"
                       : q->from_initial_state ? "an initial state"
                                               : NULL;
    if (!what)
        return SL_OK;
    return sl_fail_param(err, SL_E_UNSUPPORTED, "from",
                         "from: %s is not supported yet; a session's id is", what);
}

/* The new session's id: the body's, or the header's (by which a balancer chose this server). */
static enum sl_code new_id(const struct sl_exchange *ex, const char *id, const char **ret,
                           struct sl_error *err)
{
    const char *header = sl_exchange_header(ex, "X-Slate-Session");
    *ret = id ? id : header;
    if (!header)
        return SL_OK;
    if (id && strcmp(header, id) != 0)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "id",
                             "the header X-Slate-Session names '%.128s', the request '%.128s'",
                             header, id);
    return sl_session_id_check(header, strlen(header), "X-Slate-Session", err);
}

static enum sl_code make_session(struct sl_exchange *ex, const struct sl_session_request *q,
                                 struct sl_session **ret, struct sl_error *err)
{
    struct sl_app *app = sl_app_of(ex);
    const char *tenant = sl_exchange_tenant(ex), *id = NULL;
    struct sl_session *from;
    enum sl_code c = new_id(ex, q->id, &id, err);
    if (c)
        return c;
    if (!q->from_session)
        return sl_sessions_create(app->sessions, tenant, id, q->has_ttl ? q->ttl_s : 0, q->metadata,
                                  ret, err);
    c = sl_sessions_find(app->sessions, tenant, q->from_session, &from, err);
    return c ? c
             : sl_sessions_fork(app->sessions, from, id, q->has_ttl, q->ttl_s, q->metadata, ret,
                                err);
}

static enum sl_code create(struct sl_exchange *ex, struct sl_session_request *q,
                           struct sl_error *err)
{
    size_t n;
    struct sl_app *app = sl_app_of(ex);
    struct sl_session *s;
    enum sl_code c = sl_app_ready(app, err);
    if (c)
        return c;
    const char *body = sl_exchange_body(ex, &n);
    c = sl_session_create_decode(q, body, n, &app->limits, err);
    if (!c)
        c = sl_app_refuse_idempotency_key(ex, err);
    if (!c)
        c = check_not_draining(app, err);
    if (!c)
        c = refuse_later_sources(q, err);
    if (!c)
        c = sl_app_check_model(app, q->model, err);
    if (!c)
        c = make_session(ex, q, &s, err);
    if (c)
        return c;
    if (q->input.kind == SL_INPUT_NONE) {
        reply_session(ex, 201, s);
        return SL_OK;
    }
    c = start_reading(ex, s, &q->input, err);
    if (c) {
        enum sl_code gone = sl_sessions_delete(app->sessions, s, NULL);
        assert(gone == SL_OK);
    }
    return c;
}

static void post_sessions(struct sl_exchange *ex)
{
    struct sl_error err;
    struct sl_session_request q = {0};
    if (create(ex, &q, &err))
        sl_exchange_fail(ex, &err);
    sl_session_request_done(&q);
}

/* --- list ------------------------------------------------------------------------------------- */

struct listing {
    const struct sl_app *app;
    struct sl_buf *b;
    const char *last_id;
};

static void list_item(const struct sl_session *s, size_t i, void *arg)
{
    struct listing *l = arg;
    struct sl_session_view view;
    sl_app_session_view(l->app, s, &view);
    sl_write_session_list_item(l->b, i, &view);
    l->last_id = s->id;
}

static void get_sessions(struct sl_exchange *ex)
{
    struct sl_app *app = sl_app_of(ex);
    struct sl_list_query q;
    struct sl_error err;
    enum sl_code c = sl_app_ready(app, &err);
    if (!c) {
        const char *query = sl_exchange_query_text(ex);
        c = sl_list_query_decode(&q, query, strlen(query), &app->limits, &err);
    }
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    struct sl_buf b;
    struct listing l = {.app = app, .b = &b};
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session_list_begin(&b);
    bool more = sl_sessions_list(app->sessions, sl_exchange_tenant(ex), &q, list_item, &l);
    sl_write_session_list_end(&b, more, l.last_id);
    sl_app_reply_json(ex, 200, &b);
}

/* --- one session ------------------------------------------------------------------------------ */

static void get_session(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    if (find_named(ex, &s, &err))
        sl_exchange_fail(ex, &err);
    else
        reply_session(ex, 200, s);
}

static void patch_session(struct sl_exchange *ex)
{
    size_t n;
    struct sl_session *s;
    struct sl_error err;
    struct sl_session_request q = {0};
    struct sl_app *app = sl_app_of(ex);
    enum sl_code c = find_named(ex, &s, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_session_patch_decode(&q, body, n, &app->limits, &err);
    }
    if (!c)
        c = sl_sessions_patch(app->sessions, s, q.has_ttl, q.ttl_s, q.metadata, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        reply_session(ex, 200, s);
    sl_session_request_done(&q);
}

static void delete_session(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    char id[SL_SESSION_ID_MAX + 1];
    enum sl_code c = find_named(ex, &s, &err);
    if (!c) {
        memcpy(id, s->id, sizeof id);
        c = sl_sessions_delete(sl_app_of(ex)->sessions, s, &err);
    }
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session_deleted(&b, id);
    sl_exchange_add_header(ex, "X-Slate-Session", "%s", id);
    sl_app_reply_json(ex, 200, &b);
}

static void post_fork(struct sl_exchange *ex)
{
    size_t n;
    struct sl_session *from, *s;
    struct sl_error err;
    struct sl_session_request q = {0};
    struct sl_app *app = sl_app_of(ex);
    enum sl_code c = find_named(ex, &from, &err);
    if (!c)
        c = check_not_draining(app, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_session_fork_decode(&q, body, n, &app->limits, &err);
    }
    if (!c)
        c = sl_sessions_fork(app->sessions, from, q.id, q.has_ttl, q.ttl_s, q.metadata, &s, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        reply_session(ex, 201, s);
    sl_session_request_done(&q);
}

static void post_cancel(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    if (find_named(ex, &s, &err)) {
        sl_exchange_fail(ex, &err);
        return;
    }
    bool running = s->lease != NULL;
    if (running)
        sl_run_cancel(s->lease, true);
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session_cancelled(&b, s->id, running);
    sl_exchange_add_header(ex, "X-Slate-Session", "%s", s->id);
    sl_app_reply_json(ex, 200, &b);
}

const struct sl_route sl_session_routes[] = {
    {SL_POST, "/v1/sessions", SL_ROLE_USER, 0, SL_BODY_JSON, post_sessions},
    {SL_GET, "/v1/sessions", SL_ROLE_USER, 0, SL_BODY_NONE, get_sessions},
    {SL_GET, "/v1/sessions/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, get_session},
    {SL_PATCH, "/v1/sessions/{id}", SL_ROLE_USER, 0, SL_BODY_JSON, patch_session},
    {SL_DELETE, "/v1/sessions/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, delete_session},
    {SL_POST, "/v1/sessions/{id}/fork", SL_ROLE_USER, 0, SL_BODY_JSON, post_fork},
    {SL_POST, "/v1/sessions/{id}/cancel", SL_ROLE_USER, 0, SL_BODY_JSON, post_cancel},
};
const size_t sl_session_n_routes = sizeof sl_session_routes / sizeof *sl_session_routes;
