/* common.c: the helpers of app.h. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/app.h"

enum sl_code sl_app_ready(const struct sl_app *app, struct sl_error *err)
{
    if (app->turns)
        return SL_OK;
    return sl_fail(err, SL_E_LOADING, "the model is being loaded; /readyz says when it is there");
}

enum sl_code sl_app_refuse_idempotency_key(const struct sl_exchange *ex, struct sl_error *err)
{
    if (!sl_exchange_header(ex, "Idempotency-Key"))
        return SL_OK;
    return sl_fail_param(err, SL_E_UNSUPPORTED, "Idempotency-Key",
                         "Idempotency-Key is for turns on a session (POST /v1/generate); a new "
                         "session is safe to retry with an id of your own, a change with If-Match");
}

enum sl_code sl_app_no_body(struct sl_exchange *ex, struct sl_error *err)
{
    size_t n;
    const char *body = sl_exchange_body(ex, &n);
    enum sl_code c = sl_empty_decode(body, n, err);
    sl_exchange_drop_body(ex);
    return c;
}

enum sl_code sl_app_tenant(const struct sl_exchange *ex, struct sl_tenant **ret,
                           struct sl_error *err)
{
    struct sl_tenant *t = sl_tenants_get(sl_app_of(ex)->tenants, sl_exchange_tenant(ex));
    if (!t)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a tenant");
    *ret = t;
    return SL_OK;
}

int64_t sl_app_default_ttl(const struct sl_app *app)
{
    return (int64_t)((app->config->session_ttl_ms + 999) / 1000); /* none shorter than asked for */
}

enum sl_code sl_app_check_model(const struct sl_app *app, const char *name, struct sl_error *err)
{
    if (!name)
        return SL_OK;
    for (size_t i = 0; i < app->n_model_names; i++)
        if (strcmp(app->model_names[i], name) == 0)
            return SL_OK;
    return sl_fail_param(err, SL_E_MODEL_NOT_FOUND, "model",
                         "there is no model '%.128s' here; this server serves '%s'%s", name,
                         app->model_names[0],
                         app->n_model_names > 1 ? " and others, see /v1/models" : "");
}

enum sl_code sl_app_session_name(const struct sl_exchange *ex, const char *id, const char **ret,
                                 struct sl_error *err)
{
    const char *header = sl_exchange_header(ex, "X-Slate-Session");
    if (header && id && strcmp(header, id) != 0)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "session",
                             "the header X-Slate-Session names '%.128s', the request '%.128s'",
                             header, id);
    const char *name = id ? id : header;
    enum sl_code c = SL_OK;
    if (name)
        c = sl_session_id_check(name, strlen(name), id ? "session" : "X-Slate-Session", err);
    if (!c)
        *ret = name;
    return c;
}

enum sl_code sl_app_session(struct sl_exchange *ex, const char *id, struct sl_session **ret,
                            struct sl_error *err)
{
    const char *name;
    enum sl_code c = sl_app_session_name(ex, id, &name, err);
    if (c)
        return c;
    if (!name) {
        *ret = NULL;
        return SL_OK;
    }
    c = sl_sessions_find(sl_app_of(ex)->sessions, sl_exchange_tenant(ex), name, ret, err);
    if (!c)
        sl_exchange_of_session(ex, name);
    return c;
}

void sl_app_session_headers_of(struct sl_exchange *ex, const char *id,
                               const unsigned char incarnation[16], uint64_t version)
{
    char etag[SL_ETAG_SIZE];
    sl_etag_format(etag, incarnation, version);
    sl_exchange_of_session(ex, id);
    sl_exchange_add_header(ex, "ETag", "%s", etag);
}

void sl_app_session_headers(struct sl_exchange *ex, const struct sl_session *s)
{
    sl_app_session_headers_of(ex, s->id, s->incarnation, s->version);
}

enum sl_code sl_app_match(struct sl_exchange *ex, const struct sl_session *s, struct sl_error *err)
{
    enum sl_code c = sl_session_match(s, sl_exchange_header(ex, "If-Match"), err);
    if (c)
        sl_app_session_headers(ex, s);
    return c;
}

void sl_app_tell_differences(struct sl_exchange *ex, const struct sl_snapshot_info *info)
{
    const struct {
        bool differs;
        const char *what;
    } row[] = {{info->other_weights_type, "weights_type"},
               {info->other_numerics, "numerics"},
               {info->other_tokenizer, "tokenizer"},
               {info->edited, "edited"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].differs)
            sl_exchange_add_header(ex, "X-Slate-Snapshot-Differs", "%s", row[i].what);
}

void sl_app_session_view(const struct sl_app *app, const struct sl_session *s,
                         struct sl_session_view *ret)
{
    *ret = (struct sl_session_view){
        .id = s->id,
        .model = app->model_names[0],
        .version = s->version,
        .tokens_seen = s->tokens_seen,
        .in_memory = s->in_memory,
        .busy = s->leased || s->held_elsewhere,
        .bytes = sl_model_info(app->model)->state_bytes,
        .kept_bytes = sl_session_kept(app->sessions, s),
        .created_at = s->created_at,
        .used_at = s->used_at,
        .expires_at = s->ttl_s ? s->used_at + s->ttl_s : 0,
        .ttl_s = s->ttl_s,
        .metadata = {.s = s->metadata, .n = s->n_metadata},
    };
}

static bool is_refusal(enum sl_code c)
{
    return c == SL_E_SERVER_FULL || c == SL_E_SESSIONS_FULL || c == SL_E_DRAINING;
}

void sl_app_count_turn(const struct sl_app *app, const struct sl_run_result *res)
{
    struct sl_metrics *m = sl_server_metrics(app->server);
    sl_metric_add(m, SL_M_TURNS, 1);
    /* What the client did wrong is no failure of the server's, nor is what it refused. */
    if (res->error.code && sl_code_http(res->error.code) >= 500 && !is_refusal(res->error.code))
        sl_metric_add(m, SL_M_TURNS_FAILED, 1);
    sl_metric_add(m, SL_M_PROMPT_TOKENS, (double)res->prompt_tokens);
    sl_metric_add(m, SL_M_COMPLETION_TOKENS, (double)res->n_tokens);
}

static void release_body(void *arg)
{
    sl_free(arg);
}

void sl_app_reply_json(struct sl_exchange *ex, int status, struct sl_buf *b)
{
    struct sl_error err;
    if (sl_buf_code(b, &err)) {
        sl_buf_done(b);
        sl_exchange_fail(ex, &err);
        return;
    }
    size_t n;
    char *body = sl_buf_take(b, &n);
    sl_exchange_reply_ref(ex, status, "application/json", body, n, release_body, body);
}
