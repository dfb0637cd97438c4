/* models.c: GET /v1/models, GET /v1/models/{id}, POST /v1/tokenize, POST /v1/detokenize.
 *
 * What is long is tokenised (and written as JSON) as long work, so that no other connection waits
 * for it: the tokenizer may be used from any thread. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/app.h"
#include "server/longwork.h"
#include "server/text.h"

enum { LONG_TOKENS = 16 * 1024, TOKEN_BYTES = 4 }; /* so many are long; what one counts for */

/* --- models ----------------------------------------------------------------------------------- */

static void fill_view(const struct sl_app *app, const char *name, struct sl_model_view *ret)
{
    *ret = (struct sl_model_view){.id = name,
                                  .created = app->started_at,
                                  .info = sl_model_info(app->model),
                                  .tokenizer = sl_tokenizer_kind(app->tokenizer),
                                  .chat_template = app->chat ? app->chat->name : NULL};
    ret->initial_states = sl_initial_states_names(app->initial, &ret->n_initial_states);
}

static enum sl_code list_models(const struct sl_app *app, struct sl_buf *b, struct sl_error *err)
{
    enum sl_code c = sl_app_ready(app, err);
    if (c)
        return c;
    struct sl_model_view *views = sl_calloc(app->n_model_names, sizeof *views);
    if (!views)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu models", app->n_model_names);
    for (size_t i = 0; i < app->n_model_names; i++)
        fill_view(app, app->model_names[i], &views[i]);
    sl_write_model_list(b, views, app->n_model_names);
    sl_free(views);
    return SL_OK;
}

static void reply_or_fail(struct sl_exchange *ex, struct sl_buf *b, enum sl_code c,
                          const struct sl_error *err)
{
    if (c) {
        sl_buf_done(b);
        sl_exchange_fail(ex, err);
    } else {
        sl_app_reply_json(ex, 200, b);
    }
}

static void get_models(struct sl_exchange *ex)
{
    struct sl_buf b;
    struct sl_error err;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    enum sl_code c = list_models(sl_app_of(ex), &b, &err);
    reply_or_fail(ex, &b, c, &err);
}

static void get_model(struct sl_exchange *ex)
{
    struct sl_buf b;
    struct sl_error err;
    struct sl_model_view view;
    const struct sl_app *app = sl_app_of(ex);
    const char *name = sl_exchange_param(ex, "id");
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    enum sl_code c = sl_app_ready(app, &err);
    if (!c)
        c = sl_app_check_model(app, name, &err);
    if (!c) {
        fill_view(app, name, &view);
        sl_write_model(&b, &view);
    }
    reply_or_fail(ex, &b, c, &err);
}

/* --- tokenize and detokenize ------------------------------------------------------------------ */

struct job {
    struct sl_long_job job;
    struct sl_exchange *ex;
    const struct sl_tokenizer *tokenizer;
    struct sl_tokenize_request req;
    void (*run)(struct job *j);
    struct sl_buf out;
    enum sl_code code;
    struct sl_error err;
};

static void tokenize(struct job *j)
{
    const struct sl_text *t = &j->req.text;
    struct sl_token_list ids = {0};
    const struct sl_tokenizer_text text = {.s = t->s, .n = t->n};
    j->code = sl_tokenizer_encode(j->tokenizer, &text, &ids, &j->err);
    if (!j->code)
        sl_write_tokenized(&j->out, ids.v, ids.n);
    sl_token_list_done(&ids);
}

static void detokenize(struct job *j)
{
    struct sl_text text;
    struct sl_text_stream ts;
    sl_text_stream_init(&ts, j->tokenizer);
    ts.begins = true;
    j->code = sl_text_stream_add(&ts, j->req.tokens, j->req.n_tokens, true, &text, &j->err);
    if (!j->code)
        sl_write_detokenized(&j->out, text.n ? text.s : "", text.n);
    sl_text_stream_done(&ts);
}

static void finish(struct job *j)
{
    reply_or_fail(j->ex, &j->out, j->code, &j->err);
    sl_tokenize_request_done(&j->req);
    sl_free(j);
}

static struct job *of_long(struct sl_long_job *job)
{
    return (struct job *)(void *)job; /* its first member */
}

static void run_long(struct sl_long_job *job)
{
    struct job *j = of_long(job);
    j->run(j);
}

static void on_long_done(struct sl_long_job *job)
{
    finish(of_long(job));
}

/* Nobody waits for it any more. */
static void on_abort(struct sl_exchange *ex, void *user)
{
    struct job *j = user;
    if (sl_longwork_remove(sl_server_longwork(sl_exchange_server(ex)), &j->job))
        finish(j);
}

static const struct sl_exchange_events events = {.abort = on_abort};

static enum sl_code
prepare(struct job *j, enum sl_code (*decode)(struct sl_tokenize_request *, const void *, size_t,
                                              const struct sl_limits *, struct sl_error *))
{
    size_t n;
    const struct sl_app *app = sl_app_of(j->ex);
    enum sl_code c = sl_app_ready(app, &j->err);
    if (c)
        return c;
    const char *body = sl_exchange_body(j->ex, &n);
    c = decode(&j->req, body, n, &app->limits, &j->err);
    sl_exchange_drop_body(j->ex);
    if (!c)
        c = sl_app_check_model(app, j->req.model, &j->err);
    j->tokenizer = app->tokenizer;
    return c;
}

static void start(struct sl_exchange *ex,
                  enum sl_code (*decode)(struct sl_tokenize_request *, const void *, size_t,
                                         const struct sl_limits *, struct sl_error *),
                  void (*run)(struct job *j))
{
    struct sl_error err;
    struct job *j = sl_calloc(1, sizeof *j);
    if (!j) {
        (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
        sl_exchange_fail(ex, &err);
        return;
    }
    j->ex = ex;
    j->run = run;
    j->job = (struct sl_long_job){.work = run_long, .done = on_long_done};
    sl_buf_init(&j->out, SL_RESPONSE_BYTES_MAX);
    j->code = prepare(j, decode);
    bool is_long = j->req.text.n > SL_LONG_BYTES || j->req.n_tokens >= LONG_TOKENS;
    if (!j->code && is_long) {
        sl_exchange_on(ex, &events, j);
        sl_longwork_add(sl_server_longwork(sl_exchange_server(ex)), &j->job,
                        j->req.text.n + TOKEN_BYTES * j->req.n_tokens);
        return;
    }
    if (!j->code)
        j->run(j);
    finish(j);
}

static void post_tokenize(struct sl_exchange *ex)
{
    start(ex, sl_tokenize_decode, tokenize);
}

static void post_detokenize(struct sl_exchange *ex)
{
    start(ex, sl_detokenize_decode, detokenize);
}

const struct sl_route sl_model_routes[] = {
    {SL_GET, "/v1/models", SL_ROLE_USER, 0, SL_BODY_NONE, get_models},
    {SL_GET, "/v1/models/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, get_model},
    {SL_POST, "/v1/tokenize", SL_ROLE_USER, 0, SL_BODY_JSON, post_tokenize},
    {SL_POST, "/v1/detokenize", SL_ROLE_USER, 0, SL_BODY_JSON, post_detokenize},
};
const size_t sl_model_n_routes = sizeof sl_model_routes / sizeof *sl_model_routes;
