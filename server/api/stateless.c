/* stateless.c: initial_state and return_state: the client keeps the memory, the server nothing.
 *
 * Inside, the memory is a session like any other, so that it has the same bits; but of a tenant
 * that no key can have, never in the store, and gone with the answer. */
#include "engine/base/mem.h"
#include "proto/answer_room.h"
#include "server/api/generation.h"
#include "server/residency.h"

/* Of a snapshot besides its state: what a header has, a penalty ring, a paused turn. */
enum { SNAPSHOT_FIXED = 1 << 20 };

size_t sl_stateless_room(const struct sl_generation *g)
{
    size_t n = sl_model_info(g->app->model)->state_bytes;
    return g->req.return_state ? (n + SNAPSHOT_FIXED) / 3 * 4 + 4 : 0;
}

enum sl_code sl_stateless_check(const struct sl_generation *g, struct sl_error *err)
{
    const char *field = g->req.initial_state ? "initial_state" : "return_state";
    if (g->session[0])
        return sl_fail_param(err, SL_E_INVALID_VALUE, field,
                             "%s is for requests without a session: with one the server keeps the "
                             "memory (GET /v1/sessions/%s/snapshot gives it)",
                             field, g->session);
    if (g->req.dialect != SL_DIALECT_SLATE && g->req.return_state)
        return sl_fail_param(err, SL_E_UNSUPPORTED, "return_state",
                             "return_state is answered by /v1/generate only");
    if (sl_stateless_room(g) > SL_RESPONSE_BYTES_MAX - 2 * SL_ANSWER_ROOM_FIXED)
        return sl_fail_param(err, SL_E_SNAPSHOT_TOO_LARGE, "return_state",
                             "a state of this model has %zu bytes, which no answer of up to %d MiB "
                             "holds in base64; GET /v1/sessions/{id}/snapshot gives a session's",
                             sl_model_info(g->app->model)->state_bytes,
                             SL_RESPONSE_BYTES_MAX >> 20);
    return SL_OK;
}

void sl_stateless_forget(struct sl_generation *g)
{
    sl_sessions_forget(g->app->sessions, g->ephemeral);
    g->ephemeral = NULL;
}

/* The session is nobody's: what came pending is of the caller's tokens (see sl_op_take_pending()).
 */
static enum sl_code run(struct sl_generation *g, struct sl_session *s, struct sl_error *err)
{
    uint64_t n = sl_unread(s->n_pending), now = uv_now(sl_server_loop(g->app->server));
    enum sl_code c = n ? sl_tenant_take_tokens(g->tenant, n, now, err) : SL_OK;
    if (c)
        return c;
    c = sl_generation_run(g, s, err);
    if (c)
        sl_tenant_return_tokens(g->tenant, n, now);
    return c;
}

static void on_made(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_generation *g = arg;
    struct sl_error own;
    if (err) {
        sl_generation_fail(g, err);
        return;
    }
    g->ephemeral = s;
    if (g->ex && !run(g, s, &own))
        return;
    if (g->ex)
        sl_answer_fail(g, &own);
    g->over = true; /* no run will be */
    sl_stateless_forget(g);
    sl_generation_settle(g);
}

void sl_stateless_start(struct sl_generation *g)
{
    const struct sl_generate_request *q = &g->req;
    struct sl_sessions *ss = g->app->sessions;
    struct sl_text none = {NULL, 0};
    const void *state = sl_initial_states_default(g->app->initial);
    if (q->initial_state)
        sl_sessions_restore(ss, SL_EPHEMERAL_TENANT, NULL, NULL, 0, none, SL_RESTORE_SNAPSHOT,
                            q->initial_state, q->n_initial_state, false, &g->restoring, on_made, g);
    else if (state)
        sl_sessions_restore(ss, SL_EPHEMERAL_TENANT, NULL, NULL, 0, none, SL_RESTORE_STATE, state,
                            sl_model_info(g->app->model)->state_bytes, false, &g->restoring,
                            on_made, g);
    else
        sl_sessions_create(ss, SL_EPHEMERAL_TENANT, NULL, 0, none, false, on_made, g);
}

static void on_encoded(void *arg, struct sl_session *s, const struct sl_encoded *e,
                       const struct sl_error *err)
{
    struct sl_generation *g = arg;
    (void)s;
    if (e) {
        sl_buf_put_base64(&g->state, e->data, e->n);
        sl_free(e->data);
        (void)sl_buf_code(&g->state, &g->state_error);
    } else {
        g->state_error = *err;
    }
    g->awaits_state = false;
    sl_generation_finish(g);
}

void sl_stateless_over(struct sl_generation *g)
{
    if (!g->ex || !g->req.return_state || sl_run_result(g->run)->error.code) {
        sl_generation_finish(g);
        return;
    }
    g->awaits_state = true;
    sl_sessions_encode(g->app->sessions, g->ephemeral, SL_DTYPE_F32, on_encoded, g);
}
