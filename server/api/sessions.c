/* sessions.c: the routes of /v1/sessions.
 *
 * What changes a session answers when the change is durable, so every handler may answer later; a
 * client that goes meanwhile changes nothing. POST /v1/sessions may read a first prompt: then the
 * session is there (and busy, and on this server alone, and with nothing that could be copied)
 * while it is read, is written with it, and is removed again where that fails or the client goes,
 * so that nobody finds half of what was asked for. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/api/waiting.h"

/* New sessions would be lost with the process. */
static enum sl_code check_not_draining(const struct sl_app *app, struct sl_error *err)
{
    enum sl_server_state state = sl_server_state(app->server);
    if (state != SL_SERVER_DRAINING && state != SL_SERVER_CLOSING)
        return SL_OK;
    return sl_fail(err, SL_E_DRAINING, "the server is shutting down and takes no new sessions");
}

/* --- create ----------------------------------------------------------------------------------- */

/* A creation on its way: the session is made, then its first prompt is read. */
struct creation {
    struct sl_exchange *ex; /* NULL: the client has gone */
    struct sl_app *app;
    struct sl_session_request q;
    struct sl_session *session; /* others may delete it while no run has it */
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
    uint64_t version; /* that it was made with: before its prompt was read, or, where the client
                         went when that was committed, after it */
    const char *tenant;
    struct sl_restoring restoring; /* from a snapshot */
    size_t n_body;                 /* bytes that q counts with */
    struct sl_run *run;
    struct sl_error err;
};

static bool reads(const struct sl_session_request *q)
{
    return q->input.kind != SL_INPUT_NONE;
}

static void forget_request(struct creation *k)
{
    sl_session_request_done(&k->q);
    sl_server_free_body(k->app->server, k->n_body);
    k->n_body = 0;
}

static void creation_free(struct creation *k)
{
    assert(!k->ex);
    if (k->run)
        sl_run_close(k->run);
    forget_request(k);
    sl_free(k);
}

static void creation_fails(struct creation *k, const struct sl_error *err)
{
    if (k->ex)
        sl_exchange_fail(k->ex, err);
    k->ex = NULL;
    creation_free(k);
}

static void undo(struct creation *k);

static void on_free(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct creation *k = arg;
    (void)s;
    if (err)
        creation_fails(k, &k->err); /* it has gone */
    else
        undo(k);
}

/* Whoever waited for the session may have it now; it goes after that. */
static void on_undone(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct creation *k = arg;
    bool busy = err && err->code == SL_E_SESSION_BUSY && s && s->leased;
    if (busy)
        sl_sessions_when_free(k->app->sessions, s, on_free, k);
    else
        creation_fails(k, &k->err); /* what was wrong first is what the client is told */
}

static bool is_as_it_was_made(const struct creation *k, const struct sl_session *s)
{
    return memcmp(s->incarnation, k->incarnation, sizeof k->incarnation) == 0 &&
           s->version == k->version;
}

/* Of a session that is free: somebody may have deleted it since, or had a turn on it, which is
 * acknowledged then. */
static void undo(struct creation *k)
{
    struct sl_error none;
    struct sl_session *s = NULL;
    if (sl_sessions_find(k->app->sessions, k->tenant, k->id, &s, &none) || !is_as_it_was_made(k, s))
        creation_fails(k, &k->err);
    else
        sl_sessions_delete(k->app->sessions, s, on_undone, k);
}

static void creation_succeeds(struct creation *k)
{
    sl_exchange_done(k->ex);
    sl_app_tell_differences(k->ex, &k->restoring.info);
    sl_app_reply_session(k->ex, 201, k->session);
    k->ex = NULL;
    creation_free(k);
}

static void why_nothing_was_read(const struct sl_run_result *res, struct sl_error *err)
{
    if (res->error.code)
        *err = res->error;
    else if (res->finish == SL_FINISH_PAUSED)
        (void)sl_fail(err, SL_E_DRAINING,
                      "the server shut down while the prompt was read; the session was not made");
    else
        (void)sl_fail(err, SL_E_BAD_REQUEST,
                      "the reading of the prompt was cancelled; the session was not made");
}

static void on_read(struct sl_run *r, void *user)
{
    struct creation *k = user;
    const struct sl_run_result *res = sl_run_result(r);
    sl_app_count_turn(k->app, res);
    if (res->committed && k->ex) {
        creation_succeeds(k);
        return;
    }
    if (res->committed) {
        k->version = res->version;
        undo(k);
        return;
    }
    why_nothing_was_read(res, &k->err);
    sl_sessions_discard(k->app->sessions, k->session, on_undone, k);
}

static void on_create_abort(struct sl_exchange *ex, void *user)
{
    struct creation *k = user;
    sl_metric_add(sl_server_metrics(k->app->server), SL_M_TURNS_ABORTED, 1);
    k->ex = NULL;
    sl_exchange_cut(ex);
    if (k->run)
        sl_run_cancel(k->run, false);
    else if (k->restoring.op)
        sl_sessions_give_up(&k->restoring); /* which may be its end */
    else
        forget_request(k);
}

static const struct sl_exchange_events create_events = {.abort = on_create_abort};

static enum sl_code start_reading(struct creation *k, struct sl_error *err)
{
    struct sl_app *app = k->app;
    const struct sl_input *in = &k->q.input;
    struct sl_rendered rendered;
    enum sl_code c = sl_app_render(app, in, k->session->tokens_seen > 0, false, &rendered, err);
    struct sl_text text = rendered.text;
    struct sl_run_spec spec = {.tenant = k->session->owner,
                               .session = k->session,
                               .text = in->kind == SL_INPUT_TOKENS ? NULL : &text,
                               .verbatim = rendered.contents,
                               .n_verbatim = rendered.n_contents,
                               .tokens = in->tokens,
                               .n_tokens = in->n_tokens,
                               .sampling = SL_SAMPLING_DEFAULT,
                               .logprobs = -1,
                               .keeps_lease = true,
                               .done = on_read,
                               .user = k};
    if (!c)
        c = sl_run_start(app->turns, &spec, &k->run, err);
    sl_rendered_done(&rendered);
    if (!c)
        forget_request(k); /* the run has copied what it needs */
    return c;
}

/* The session is there. */
static void on_made(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct creation *k = arg;
    if (err) {
        creation_fails(k, err);
        return;
    }
    k->session = s;
    k->tenant = s->tenant;
    memcpy(k->id, s->id, strlen(s->id) + 1);
    memcpy(k->incarnation, s->incarnation, sizeof k->incarnation);
    k->version = s->version;
    if (k->ex && !reads(&k->q))
        creation_succeeds(k);
    else if (!k->ex || start_reading(k, &k->err))
        undo(k);
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

static void on_source(void *arg, struct sl_session *from, const struct sl_error *err)
{
    struct creation *k = arg;
    const struct sl_session_request *q = &k->q;
    const char *id = NULL;
    struct sl_error own;
    if (err || !k->ex)
        creation_fails(k, err);
    else if (new_id(k->ex, q->id, &id, &own)) /* it was fine before */
        creation_fails(k, &own);
    else
        sl_sessions_fork(k->app->sessions, from, &q->at, id, q->has_ttl, q->ttl_s, q->metadata,
                         false, reads(q), on_made, k);
}

/* Errors are those that need no waiting; else on_made() follows. */
static enum sl_code make_session(struct creation *k, struct sl_error *err)
{
    struct sl_app *app = k->app;
    const struct sl_session_request *q = &k->q;
    const char *tenant = sl_exchange_tenant(k->ex), *id = NULL;
    int64_t ttl_s = q->has_ttl ? q->ttl_s : sl_app_default_ttl(app);
    const void *state = sl_initial_states_default(app->initial);
    enum sl_code c = new_id(k->ex, q->id, &id, err);
    if (!c && q->from_initial_state_name)
        c = sl_initial_states_find(app->initial, q->from_initial_state_name,
                                   "from.initial_state_name", &state, err);
    if (c)
        return c;
    if (q->from_session)
        sl_sessions_look(app->sessions, tenant, q->from_session, on_source, k);
    else if (q->from_snapshot)
        sl_sessions_restore(app->sessions, tenant, NULL, id, ttl_s, q->metadata,
                            SL_RESTORE_SNAPSHOT, q->from_snapshot, q->n_from_snapshot, reads(q),
                            &k->restoring, on_made, k);
    else if (q->from_initial_state)
        sl_sessions_restore(app->sessions, tenant, NULL, id, ttl_s, q->metadata,
                            SL_RESTORE_INITIAL_STATE, q->from_initial_state,
                            q->n_from_initial_state, reads(q), &k->restoring, on_made, k);
    else if (state)
        sl_sessions_restore(app->sessions, tenant, NULL, id, ttl_s, q->metadata, SL_RESTORE_STATE,
                            state, sl_model_info(app->model)->state_bytes, reads(q), &k->restoring,
                            on_made, k);
    else
        sl_sessions_create(app->sessions, tenant, id, ttl_s, q->metadata, reads(q), on_made, k);
    return SL_OK;
}

static enum sl_code create(struct creation *k, struct sl_error *err)
{
    size_t n;
    struct sl_app *app = k->app;
    enum sl_code c = sl_app_ready(app, err);
    if (c)
        return c;
    const char *body = sl_exchange_body(k->ex, &n);
    c = sl_session_create_decode(&k->q, body, n, &app->limits, err);
    k->n_body = sl_exchange_keep_body(k->ex); /* it may wait long for a place in memory */
    if (!c)
        c = sl_app_refuse_idempotency_key(k->ex, err);
    if (!c)
        c = check_not_draining(app, err);
    if (!c)
        c = sl_app_check_model(app, k->q.model, err);
    if (c)
        return c;
    sl_exchange_on(k->ex, &create_events, k);
    return make_session(k, err);
}

static void post_sessions(struct sl_exchange *ex)
{
    struct sl_error err;
    struct creation *k = sl_calloc(1, sizeof *k);
    if (!k) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
        sl_exchange_fail(ex, &err);
        return;
    }
    k->ex = ex;
    k->app = sl_app_of(ex);
    if (create(k, &err))
        creation_fails(k, &err);
}

/* --- list ------------------------------------------------------------------------------------- */

struct listing {
    struct sl_exchange *ex; /* NULL: the client has gone */
    const struct sl_app *app;
    struct sl_buf b;
    char last_id[SL_SESSION_ID_MAX + 1];
};

static void list_item(const struct sl_session *s, size_t i, void *arg)
{
    struct listing *l = arg;
    struct sl_session_view view;
    sl_app_session_view(l->app, s, &view);
    sl_write_session_list_item(&l->b, i, &view);
    sl_session_copy_id(l->last_id, s);
}

static void list_done(bool more, const struct sl_error *err, void *arg)
{
    struct listing *l = arg;
    if (l->ex && err) {
        sl_exchange_fail(l->ex, err);
    } else if (l->ex) {
        sl_write_session_list_end(&l->b, more, l->last_id[0] ? l->last_id : NULL);
        sl_app_reply_json(l->ex, 200, &l->b);
    }
    sl_buf_done(&l->b);
    sl_free(l);
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
    struct listing *l = c ? NULL : sl_calloc(1, sizeof *l);
    if (!c && !l)
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    l->app = app;
    sl_buf_init(&l->b, SL_RESPONSE_BYTES_MAX);
    sl_exchange_hold(ex, &l->ex);
    sl_write_session_list_begin(&l->b);
    sl_sessions_list(app->sessions, sl_exchange_tenant(ex), &q,
                     &(struct sl_sessions_lister){list_item, list_done, l});
}

/* --- one session ------------------------------------------------------------------------------ */

static void get_session(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    if (sl_app_find_named(ex, &s, &err))
        sl_exchange_fail(ex, &err);
    else
        sl_app_reply_session(ex, 200, s);
}

static void patch_session(struct sl_exchange *ex)
{
    size_t n;
    struct sl_session *s;
    struct sl_error err;
    struct sl_session_request q = {0};
    struct sl_app *app = sl_app_of(ex);
    struct sl_waiting *w = NULL;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_session_patch_decode(&q, body, n, &app->limits, &err);
        sl_exchange_drop_body(ex);
    }
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        sl_sessions_patch(app->sessions, s, q.has_ttl, q.ttl_s, q.metadata, sl_waiting_done, w);
    sl_session_request_done(&q);
}

static void delete_session(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    sl_session_copy_id(w->deleted, s);
    sl_sessions_delete(sl_app_of(ex)->sessions, s, sl_waiting_done, w);
}

/* If-Match names one version, not several, nor any. */
static bool names_this_version(const struct sl_exchange *ex, const struct sl_session *s)
{
    const char *if_match = sl_exchange_header(ex, "If-Match");
    char etag[SL_ETAG_SIZE];
    sl_etag_format(etag, s->incarnation, s->version);
    return if_match && !strcmp(if_match, etag);
}

static void post_fork(struct sl_exchange *ex)
{
    size_t n;
    struct sl_session *from;
    struct sl_error err;
    struct sl_session_request q = {0};
    struct sl_app *app = sl_app_of(ex);
    struct sl_waiting *w = NULL;
    enum sl_code c = sl_app_find_named(ex, &from, &err);
    if (!c)
        c = sl_app_refuse_idempotency_key(ex, &err);
    if (!c)
        c = check_not_draining(app, &err);
    if (!c) {
        const char *body = sl_exchange_body(ex, &n);
        c = sl_session_fork_decode(&q, body, n, &app->limits, &err);
        sl_exchange_drop_body(ex);
    }
    if (!c)
        c = sl_waiting_new(&w, ex, 201, &err);
    if (c)
        sl_exchange_fail(ex, &err);
    else
        sl_sessions_fork(app->sessions, from, &q.at, q.id, q.has_ttl, q.ttl_s, q.metadata,
                         names_this_version(ex, from), false, sl_waiting_done, w);
    sl_session_request_done(&q);
}

static void reply_cancelled(struct sl_exchange *ex, const char *id, bool ran)
{
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_session_cancelled(&b, id, ran);
    sl_exchange_done(ex);
    sl_exchange_of_session(ex, id);
    sl_app_reply_json(ex, 200, &b);
}

/* The turn ran on another server, and is over. */
static void on_ended_elsewhere(void *arg, struct sl_session *s, bool ran,
                               const struct sl_error *err)
{
    struct sl_waiting *w = arg;
    if (w->ex && !err) {
        reply_cancelled(w->ex, s->id, ran);
        w->ex = NULL;
    }
    sl_waiting_done(w, s, err);
}

static void post_cancel(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    struct sl_waiting *w = NULL;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    if (!c)
        c = sl_app_no_body(ex, &err);
    bool elsewhere = !c && !s->leased && s->held_elsewhere;
    if (elsewhere)
        c = sl_waiting_new(&w, ex, 200, &err);
    if (c) {
        sl_exchange_fail(ex, &err);
    } else if (elsewhere) {
        sl_sessions_ask(w->app->sessions, s, SL_ASK_CANCEL, on_ended_elsewhere, w);
    } else {
        bool running = s->run != NULL;
        if (running)
            sl_run_cancel(s->run, true);
        reply_cancelled(ex, s->id, running);
    }
}

const struct sl_route sl_session_routes[] = {
    {SL_POST, "/v1/sessions", SL_ROLE_USER, 0, SL_BODY_JSON, post_sessions},
    {SL_GET, "/v1/sessions", SL_ROLE_USER, 0, SL_BODY_NONE, get_sessions},
    {SL_GET, "/v1/sessions/{id}", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_NONE, get_session},
    {SL_PATCH, "/v1/sessions/{id}", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON, patch_session},
    {SL_DELETE, "/v1/sessions/{id}", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_NONE, delete_session},
    {SL_POST, "/v1/sessions/{id}/fork", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON, post_fork},
    {SL_POST, "/v1/sessions/{id}/pause", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     sl_post_pause},
    {SL_POST, "/v1/sessions/{id}/resume", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     sl_post_resume},
    {SL_GET, "/v1/sessions/{id}/snapshot", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_NONE,
     sl_get_snapshot},
    {SL_PUT, "/v1/sessions/{id}/snapshot", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_BYTES,
     sl_put_snapshot},
    {SL_GET, "/v1/sessions/{id}/memory", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_NONE,
     sl_get_memory},
    {SL_GET, "/v1/sessions/{id}/checkpoints", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_NONE,
     sl_get_checkpoints},
    {SL_POST, "/v1/sessions/{id}/checkpoints", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     sl_post_checkpoints},
    {SL_DELETE, "/v1/sessions/{id}/checkpoints/{name}", SL_ROLE_USER, SL_ROUTE_SESSION,
     SL_BODY_NONE, sl_delete_checkpoint},
    {SL_POST, "/v1/sessions/{id}/rewind", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     sl_post_rewind},
    {SL_POST, "/v1/sessions/{id}/rebuild", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     sl_post_rebuild},
    {SL_POST, "/v1/sessions/{id}/cancel", SL_ROLE_USER, SL_ROUTE_SESSION, SL_BODY_JSON,
     post_cancel},
};
const size_t sl_session_n_routes = sizeof sl_session_routes / sizeof *sl_session_routes;
