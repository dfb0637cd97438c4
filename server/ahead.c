/* ahead.c: the JSON of a large body is read, and forgotten again, where nobody waits for it (see
 * longwork.h): a second for 16 MiB, in which the loop serves the others. */
#include "proto/ahead.h"
#include "engine/base/mem.h"
#include "server/conn.h"

struct long_body {
    struct sl_long_job job;
    struct sl_exchange *ex; /* NULL: it only has to be freed */
    void (*next)(struct sl_exchange *ex);
    struct sl_json_ahead *json; /* NULL: there was no memory; the handler reads it */
};

static struct long_body *of_job(struct sl_long_job *j)
{
    return (struct long_body *)(void *)j; /* its first member */
}

static void read_body(struct sl_long_job *j)
{
    struct long_body *b = of_job(j);
    b->json = sl_json_ahead_read(b->ex->body, b->ex->n_body);
}

static void on_read(struct sl_long_job *j)
{
    struct long_body *b = of_job(j);
    if (b->json)
        sl_json_ahead_offer(b->json);
    sl_exchange_on(b->ex, NULL, NULL);
    if (b->ex->conn)
        b->next(b->ex);
    else
        sl_exchange_cut(b->ex);
}

/* The client has gone. */
static void on_abort(struct sl_exchange *ex, void *user)
{
    struct long_body *b = user;
    if (!sl_longwork_remove(ex->env->longwork, &b->job))
        return; /* on_read() sees it */
    ex->ahead = NULL;
    sl_free(b);
    sl_exchange_cut(ex);
}

static const struct sl_exchange_events events = {.abort = on_abort};

bool sl_exchange_read_ahead(struct sl_exchange *ex, void (*next)(struct sl_exchange *ex))
{
    struct sl_longwork *w = ex->env->longwork;
    bool is_json = ex->match.route->body == SL_BODY_JSON && ex->body;
    struct long_body *b =
        w && is_json && ex->n_body > SL_LONG_BYTES ? sl_calloc(1, sizeof *b) : NULL;
    if (!b)
        return false;
    *b = (struct long_body){.job = {.work = read_body, .done = on_read}, .ex = ex, .next = next};
    ex->ahead = b;
    sl_exchange_on(ex, &events, b);
    sl_longwork_add(w, &b->job, ex->n_body);
    return true;
}

static void free_body(struct sl_long_job *j)
{
    sl_json_ahead_free(of_job(j)->json);
}

static void on_freed(struct sl_long_job *j)
{
    sl_free(of_job(j));
}

void sl_exchange_forget_ahead(struct sl_exchange *ex)
{
    struct long_body *b = ex->ahead;
    if (!b)
        return;
    ex->ahead = NULL;
    if (b->json)
        sl_json_ahead_withdraw(b->json);
    b->job.work = free_body;
    b->job.done = on_freed;
    /* Else those that came with it would all be read before the first of them is freed. */
    sl_longwork_add_first(ex->env->longwork, &b->job);
}
