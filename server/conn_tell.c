/* conn_tell.c: what a connection tells of itself, and nothing changes by; see conn.h. */
#include "server/conn.h"

enum { AWAIT_FIRST_MS = 1000 /* from a connection to its request */ };

bool sl_conn_is_valid(const struct sl_conn *c)
{
    return (c->state != SL_CONN_HANDLING || c->ex) && (!c->ex || c->ex->conn == c) &&
           c->ahead_begin <= c->ahead_end && c->ahead_end <= c->env->config->read_ahead &&
           (c->ahead || c->ahead_end == 0) && (!c->sending || c->n_sending <= c->out.n) &&
           (c->state != SL_CONN_CLOSED || !c->ex);
}

size_t sl_conn_room(const struct sl_conn *c)
{
    return (size_t)c->env->config->read_ahead - (c->ahead_end - c->ahead_begin);
}

size_t sl_conn_backlog(const struct sl_conn *c)
{
    return c->sending ? c->out.n - (c->n_sending - c->ops->unsent(c->t)) : c->out.n;
}

uint64_t sl_conn_taken(const struct sl_conn *c)
{
    return c->n_taken + c->n_sending - c->ops->unsent(c->t);
}

bool sl_conn_is_behind(const struct sl_conn *c, int64_t *ret_ms, uint64_t *ret_taken)
{
    if (!c->behind)
        return false;
    *ret_ms = c->ops->now_ms(c->t) - c->progress_ms;
    *ret_taken = sl_conn_taken(c) - c->seen;
    return true;
}

bool sl_conn_awaits(const struct sl_conn *c)
{
    bool begun = c->first_byte_us != 0;
    if (c->state != SL_CONN_READING || c->eof || (c->used && !begun))
        return false;
    return c->ops->now_ms(c->t) < (begun ? c->head_ms : c->idle_ms) + AWAIT_FIRST_MS;
}
