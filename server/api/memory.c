/* memory.c: GET /v1/sessions/{id}/memory: how a session's state looks inside (slate/memory.h).
 *
 * The state is copied on the loop, a few megabytes at most a millisecond, and measured in libuv's
 * pool: a reference to its slot would take one of the slab's from the turns. Half-lives feed tokens
 * through the model, beside the engine, so they are asked for (?half_life=N), and one request at a
 * time measures; a second one is told to come back.
 *
 * A version is measured once while its state is in memory: the session keeps what was measured, as
 * long as that is small beside the state, and loses it with the state. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "proto/response.h"
#include "server/api/waiting.h"
#include "server/residency.h"
#include "slate/memory.h"

enum {
    HALF_LIFE_TOKENS_MAX = 1024,
    SMALL_SHARE = 25 /* of a state's bytes, at most the 25th is kept of what was measured of it */
};

struct sl_memory_seen {
    unsigned char incarnation[16];
    uint64_t version;
    struct sl_stamp stamp;
    uint64_t wanted; /* tokens for half-lives; 0: none */
    uint64_t half_life_over;
    size_t n_heads;
    struct sl_memory_head heads[];
};

struct look {
    struct sl_exchange *ex; /* NULL: the client has gone */
    struct sl_app *app;
    uint64_t wanted;         /* tokens, as asked for; 0: not at all */
    uint64_t half_life_over; /* as far as the model goes */
    struct sl_memory_view view;
    char id[SL_SESSION_ID_MAX + 1];
    unsigned char incarnation[16];
    struct sl_stamp stamp;
    void *state;
    uint32_t *tokens; /* what the session would be fed next, ≥ 1 */
    size_t n_tokens;
    struct sl_memory_head *heads;
    uv_work_t work;
    enum sl_code code;
    struct sl_error err;
};

static void look_free(struct look *l)
{
    sl_free(l->state);
    sl_free(l->tokens);
    sl_free(l->heads);
    sl_free(l);
}

static void tell(struct sl_exchange *ex, const unsigned char incarnation[16],
                 const struct sl_memory_view *v)
{
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_write_memory(&b, v);
    sl_app_session_headers_of(ex, v->session, incarnation, v->version);
    sl_app_reply_json(ex, 200, &b);
}

/* What was measured of the session as it is, with half-lives over so many tokens; or NULL. */
static const struct sl_memory_seen *seen_of(const struct sl_session *s, uint64_t wanted)
{
    const struct sl_memory_seen *m = s->in_memory ? s->seen : NULL;
    bool same = m && m->version == s->version && sl_stamps_are_same(&m->stamp, &s->stamp) &&
                !memcmp(m->incarnation, s->incarnation, sizeof m->incarnation);
    return same && (!wanted || wanted == m->wanted) ? m : NULL;
}

static void tell_again(struct sl_exchange *ex, const struct sl_session *s, bool half_lives,
                       const struct sl_memory_seen *m)
{
    const struct sl_memory_view view = {.session = s->id,
                                        .version = s->version,
                                        .tokens_seen = s->tokens_seen,
                                        .state_bytes =
                                            sl_model_info(sl_app_of(ex)->model)->state_bytes,
                                        .half_life_over = half_lives ? m->half_life_over : 0,
                                        .heads = m->heads,
                                        .n_heads = m->n_heads};
    tell(ex, s->incarnation, &view);
}

/* With the session, where that is as it was. Without memory it is measured again. */
static void keep(const struct look *l)
{
    struct sl_session *s;
    struct sl_error none;
    struct sl_memory_seen *m;
    size_t n = l->view.n_heads * sizeof *m->heads;
    if (sizeof *m + n > l->view.state_bytes / SMALL_SHARE ||
        sl_sessions_find(l->app->sessions, sl_exchange_tenant(l->ex), l->id, &s, &none) ||
        !(m = sl_malloc(sizeof *m + n)))
        return;
    *m = (struct sl_memory_seen){.version = l->view.version,
                                 .stamp = l->stamp,
                                 .wanted = l->wanted,
                                 .half_life_over = l->half_life_over,
                                 .n_heads = l->view.n_heads};
    memcpy(m->incarnation, l->incarnation, sizeof m->incarnation);
    memcpy(m->heads, l->heads, n);
    struct sl_memory_seen *before = s->seen;
    s->seen = m;
    if (!seen_of(s, 0)) { /* it has gone on, or out of memory */
        s->seen = before;
        before = m;
    }
    sl_free(before);
}

static void look_ends(struct look *l)
{
    l->app->measuring = false;
    if (l->ex && l->code) {
        sl_exchange_fail(l->ex, &l->err);
    } else if (l->ex) {
        keep(l);
        tell(l->ex, l->incarnation, &l->view);
    }
    look_free(l);
}

static void measure(uv_work_t *work)
{
    struct look *l = work->data;
    const struct sl_model *m = l->app->model;
    l->code = sl_memory_measure(m, l->state, l->heads, &l->err);
    if (!l->code && l->half_life_over)
        l->code = sl_memory_half_lives(m, l->state, l->tokens, l->n_tokens, l->half_life_over,
                                       l->heads, &l->err);
}

static void on_measured(uv_work_t *work, int status)
{
    (void)status;
    look_ends(work->data);
}

/* What the session is at this moment. */
static enum sl_code take_picture(struct look *l, const struct sl_session *s)
{
    const struct sl_model *m = l->app->model;
    size_t n = sl_memory_heads(m), bytes = sl_model_info(m)->state_bytes;
    size_t n_tokens = s->n_pending ? s->n_pending : 1;
    l->heads = sl_calloc(n, sizeof *l->heads);
    l->tokens = sl_calloc(n_tokens, sizeof *l->tokens);
    l->state = sl_aligned_calloc(bytes);
    if (!l->heads || !l->tokens || !l->state)
        return sl_fail(&l->err, SL_E_NO_MEMORY, "no memory to measure session '%s'", l->id);
    if (s->state)
        memcpy(l->state, s->state, bytes);
    else
        sl_model_state_init(m, l->state);
    /* Where the model has an end: as far as that. */
    size_t room = sl_model_room(m, l->state);
    l->half_life_over = room > 0 && l->wanted > room ? room : l->wanted;
    if (s->n_pending) /* else token 0: of an empty session nobody knows what it will be fed */
        memcpy(l->tokens, s->pending, s->n_pending * sizeof *l->tokens);
    l->n_tokens = n_tokens;
    memcpy(l->incarnation, s->incarnation, sizeof l->incarnation);
    l->stamp = s->stamp;
    l->view = (struct sl_memory_view){.session = l->id,
                                      .version = s->version,
                                      .tokens_seen = s->tokens_seen,
                                      .state_bytes = bytes,
                                      .half_life_over = l->half_life_over,
                                      .heads = l->heads,
                                      .n_heads = n};
    return SL_OK;
}

static void on_ready(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct look *l = arg;
    if (err) {
        l->code = err->code;
        l->err = *err;
    } else if (l->ex) {
        l->code = take_picture(l, s);
    }
    l->work.data = l;
    if (!err && l->ex && !l->code) {
        if (!uv_queue_work(sl_server_loop(l->app->server), &l->work, measure, on_measured))
            return;
        l->code = sl_fail(&l->err, SL_E_INTERNAL, "no work for the pool");
    }
    look_ends(l);
}

static enum sl_code wanted_tokens(const struct sl_exchange *ex, uint64_t *ret, struct sl_error *err)
{
    const char *s = sl_exchange_query(ex, "half_life");
    uint64_t n = 0;
    *ret = 0;
    if (!s)
        return SL_OK;
    for (const char *p = s; *p; p++) {
        n = *p >= '0' && *p <= '9' && n <= HALF_LIFE_TOKENS_MAX ? 10 * n + (uint64_t)(*p - '0')
                                                                : UINT64_MAX;
        if (n > HALF_LIFE_TOKENS_MAX)
            break;
    }
    if (n < 1 || n > HALF_LIFE_TOKENS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "half_life",
                             "half_life is '%.32s'; it is the number of tokens to measure over, 1 "
                             "to %d",
                             s, HALF_LIFE_TOKENS_MAX);
    *ret = n;
    return SL_OK;
}

void sl_get_memory(struct sl_exchange *ex)
{
    struct sl_session *s;
    struct sl_error err;
    uint64_t wanted = 0;
    struct look *l = NULL;
    const struct sl_memory_seen *seen;
    enum sl_code c = sl_app_find_named(ex, &s, &err);
    struct sl_app *app = sl_app_of(ex);
    if (!c)
        c = wanted_tokens(ex, &wanted, &err);
    if (!c)
        c = sl_session_check_made(s, &err);
    if (!c && (seen = seen_of(s, wanted)) != NULL) {
        tell_again(ex, s, wanted > 0, seen);
        return;
    }
    if (!c && app->measuring)
        c = sl_fail(&err, SL_E_SERVER_FULL,
                    "another session's memory is being measured; one is at a time");
    if (!c && !(l = sl_calloc(1, sizeof *l)))
        c = sl_fail(&err, SL_E_NO_MEMORY, "no memory for the request");
    if (c) {
        sl_exchange_fail(ex, &err);
        return;
    }
    app->measuring = true;
    l->app = app;
    l->wanted = wanted;
    sl_session_copy_id(l->id, s);
    sl_exchange_hold(ex, &l->ex);
    sl_sessions_ready(app->sessions, s, on_ready, l);
}
