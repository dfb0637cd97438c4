/* redis_owed.c: leases that Redis may have given, or still has, after their calls had been given
 * up: they are given back as soon as there is a connection again, so that other servers need not
 * wait until their time is over.
 *
 * A take that was sent may be done at any time until then, its answer lost, its fence not known.
 * But who holds a lease is written down as node:call, which no other call has: a lease that this
 * server has taken anew meanwhile has another name, and so has one of another server. A release
 * that was given up has its fence, which every take makes another one. So both may come as late as
 * they like, and twice.
 *
 * They stand in no session's line: a client that asks for the session again does not wait behind
 * them. There are SL_REDIS_OWED_MAX at most, each for as long as a lease lasts; what is more ends
 * by itself, as all did before. Loop's thread. */
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/redis.h"

static struct sl_rd_owed *take_first(struct sl_redis *r)
{
    struct sl_rd_owed *o = r->owed;
    r->owed = o->next;
    r->n_owed--;
    if (!r->owed)
        r->owed_end = &r->owed;
    return o;
}

static void put(struct sl_redis *r, struct sl_rd_owed *o)
{
    if (r->n_owed == SL_REDIS_OWED_MAX)
        sl_free(take_first(r)); /* mostly the one that ends first */
    o->next = NULL;
    *r->owed_end = o;
    r->owed_end = &o->next;
    r->n_owed++;
}

/* Is it known that Redis has given no lease for it, or has none any more? */
static bool is_settled(const struct sl_rd_op *op)
{
    if (op->call.kind == SL_RD_RELEASE)
        return op->code == SL_OK;
    return op->call.kind != SL_RD_TAKE || !op->code || !op->sent ||
           op->code == SL_E_SESSION_NOT_FOUND || op->code == SL_E_SESSION_BUSY;
}

void sl_rd_owe(struct sl_rd_op *op)
{
    struct sl_redis *r = op->r;
    struct sl_rd_owed *o = op->owed;
    int64_t now = (int64_t)uv_now(r->loop);
    op->owed = NULL;
    if (o) { /* an attempt to give it back: what Redis said of it counts, whatever it was */
        if (op->given_up && now < o->until_ms)
            put(r, o);
        else
            sl_free(o);
        return;
    }
    if (is_settled(op) || !(o = sl_calloc(1, sizeof *o)))
        return;
    o->until_ms = now + (int64_t)r->lease_ms;
    o->fence = op->fence;
    memcpy(o->tenant, op->tenant, sizeof o->tenant);
    memcpy(o->id, op->id, sizeof o->id);
    memcpy(o->holder, op->holder, sizeof o->holder);
    put(r, o);
}

static void on_given_back(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    (void)code;
    (void)err;
}

static bool give_back(struct sl_redis *r, struct sl_rd_owed *o)
{
    const struct sl_rd_call call = {.kind = SL_RD_RELEASE, .cb.done = on_given_back};
    struct sl_rd_op *op = sl_rd_new_op(r, &call, o->tenant, NULL);
    if (!op)
        return false;
    memcpy(op->id, o->id, sizeof op->id);
    op->owed = o;
    op->script = o->holder[0] ? SL_LUA_DISOWN : SL_LUA_RELEASE;
    sl_rd_arg_text(&op->args, o->tenant);
    sl_rd_arg_text(&op->args, o->id);
    if (o->holder[0])
        sl_rd_arg_text(&op->args, o->holder);
    else
        sl_rd_arg_number(&op->args, o->fence);
    return true;
}

void sl_rd_give_back_owed(struct sl_redis *r)
{
    int64_t now = (int64_t)uv_now(r->loop);
    for (size_t i = r->n_owed; i > 0 && r->n_ops < SL_REDIS_OPS_MAX; i--) {
        struct sl_rd_owed *o = take_first(r);
        if (now >= o->until_ms) {
            sl_free(o);
        } else if (!give_back(r, o)) { /* no memory: not again and again */
            sl_free(o);
            return;
        }
    }
}

void sl_rd_forget_owed(struct sl_redis *r)
{
    while (r->owed)
        sl_free(take_first(r));
}
