/* redis.c: opening and closing. See redis.h. */
#include "server/store/redis.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/mem.h"

/* --- closing ------------------------------------------------------------------------------------
 */

static void free_redis(struct sl_redis *r)
{
    sl_rd_forget_owed(r);
    sl_free(r->starved);
    sl_free(r);
}

static void one_handle_less(struct sl_redis *r)
{
    if (--r->n_handles > 0)
        return;
    void (*closed)(void *arg) = r->closed_cb;
    void *arg = r->closed_arg;
    free_redis(r);
    if (closed)
        closed(arg);
}

static void on_handle_closed(uv_handle_t *h)
{
    one_handle_less(h->data);
}

static void on_conn_closed(void *arg)
{
    one_handle_less(arg);
}

void sl_rd_close_handles(struct sl_redis *r)
{
    r->n_handles = 3;
    uv_close((uv_handle_t *)&r->wake, on_handle_closed);
    uv_close((uv_handle_t *)&r->tick, on_handle_closed);
    sl_rd_conn_close(&r->conn, on_conn_closed);
}

/* --- open and close -----------------------------------------------------------------------------
 */

/* A first connection on a loop of its own: what is wrong is told before anything is served. */
struct probe {
    struct sl_rd_conn conn;
    uv_timer_t limit;
    bool is_up, is_over;
    unsigned n_open;
};

static void probe_handle_closed(void *arg)
{
    ((struct probe *)arg)->n_open--;
}

static void probe_timer_closed(uv_handle_t *h)
{
    probe_handle_closed(h->data);
}

static void probe_ends(struct probe *p)
{
    if (p->is_over)
        return;
    p->is_over = true;
    uv_close((uv_handle_t *)&p->limit, probe_timer_closed);
    sl_rd_conn_close(&p->conn, probe_handle_closed);
}

static void probe_up(void *arg)
{
    struct probe *p = arg;
    p->is_up = true;
    probe_ends(p);
}

static void probe_down(void *arg, const struct sl_error *why)
{
    if (why->code != SL_E_STORE_UNAVAILABLE) /* waiting does not help */
        probe_ends(arg);
}

static void probe_limit(uv_timer_t *t)
{
    probe_ends(t->data);
}

static void fill_conn(struct sl_rd_conn *c, struct sl_redis *r, uv_loop_t *loop, bool durable)
{
    *c = (struct sl_rd_conn){.loop = loop,
                             .io = r->io,
                             .address = &r->address,
                             .durable = durable,
                             .timeout_ms = r->timeout_ms,
                             .schema = SL_LUA_SCHEMA,
                             .new_schema = SL_LUA_SCHEMA_NEW,
                             .schema_key = "slate1:schema",
                             .scripts = sl_lua_scripts,
                             .n_scripts = SL_LUA_N,
                             .shas = r->shas,
                             .up = sl_rd_on_up,
                             .down = sl_rd_on_down,
                             .arg = r};
}

static enum sl_code probe(struct sl_redis *r, bool durable, struct sl_error *err)
{
    uv_loop_t loop;
    struct probe *p = sl_calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to open the store");
    if (uv_loop_init(&loop) != 0) {
        sl_free(p);
        return sl_fail(err, SL_E_INTERNAL, "no loop to open the store");
    }
    fill_conn(&p->conn, r, &loop, durable);
    p->conn.up = probe_up;
    p->conn.down = probe_down;
    p->conn.arg = p;
    p->n_open = 2;
    p->limit.data = p;
    uv_timer_init(&loop, &p->limit);
    p->limit.data = p;
    uv_timer_start(&p->limit, probe_limit, r->timeout_ms, 0);
    enum sl_code c = sl_rd_conn_open(&p->conn, err);
    if (c) {
        p->n_open--;
        uv_close((uv_handle_t *)&p->limit, probe_timer_closed);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    assert(p->n_open == 0);
    if (!c && !p->is_up)
        c = p->conn.why.code ? sl_fail(err, p->conn.why.code, "%s", p->conn.why.message)
                             : sl_fail(err, SL_E_STORE_UNAVAILABLE, "redis %s:%u does not answer",
                                       r->address.host, r->address.port);
    int e = uv_loop_close(&loop);
    assert(e == 0);
    (void)e;
    sl_free(p);
    return c;
}

/* A name for this process, and a seed. */
static enum sl_code draw_names(struct sl_redis *r, struct sl_error *err)
{
    unsigned char random[8 + sizeof r->line_seed];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
    for (size_t i = 0; i < 8; i++)
        snprintf(r->node + 2 * i, 3, "%02x", random[i]);
    memcpy(&r->line_seed, random + 8, sizeof r->line_seed);
    return SL_OK;
}

static enum sl_code open_handles(struct sl_redis *r, bool durable, struct sl_error *err)
{
    fill_conn(&r->conn, r, r->loop, durable);
    if (uv_async_init(r->loop, &r->wake, sl_rd_on_wake) != 0)
        return sl_fail(err, SL_E_INTERNAL, "no handle on the loop for the store");
    r->wake.data = r;
    uv_timer_init(r->loop, &r->tick);
    r->tick.data = r;
    return sl_rd_conn_open(&r->conn, err);
}

enum sl_code sl_rd_open(struct sl_store **ret, const char *rest, const struct sl_store_options *opt,
                        void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                        struct sl_error *err)
{
    struct sl_error own;
    (void)head; /* other servers make and delete sessions too: each is asked for when it is named */
    (void)arg;
    if (!err)
        err = &own;
    struct sl_redis *r = sl_calloc(1, sizeof *r);
    if (r)
        r->starved = sl_calloc(SL_REDIS_RESERVE, sizeof *r->starved);
    if (!r || !r->starved) {
        sl_free(r);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to open the store");
    }
    r->base.kind = &sl_store_redis;
    r->loop = opt->loop;
    r->io = opt->redis_io ? opt->redis_io : &sl_redis_io_system;
    r->max_sessions = opt->max_sessions;
    r->keep_turns = opt->keep_turns;
    r->state_bytes = opt->state_bytes;
    r->token_bytes = opt->token_bytes;
    r->max_names = opt->max_names ? opt->max_names : SL_STORE_NAMES;
    r->timeout_ms = opt->timeout_ms ? opt->timeout_ms : SL_REDIS_TIMEOUT_MS;
    r->lease_ms = opt->lease_ms ? opt->lease_ms : SL_REDIS_LEASE_MS;
    r->owed_end = &r->owed;
    enum { N_QUEUES = 5 };
    struct sl_rd_queue *const queues[N_QUEUES] = {&r->arrivals, &r->to_send, &r->later,
                                                  &r->transfers, &r->finished};
    for (size_t i = 0; i < N_QUEUES; i++)
        queues[i]->tail = &queues[i]->head;
    enum sl_code c = sl_rd_address_parse(&r->address, rest, err);
    if (!c)
        c = draw_names(r, err);
    if (!c)
        c = probe(r, opt->durable, err);
    if (!c)
        c = open_handles(r, opt->durable, err);
    if (c)
        free_redis(r);
    else
        *ret = &r->base;
    return c;
}

struct sl_stamp sl_rd_stamp(struct sl_store *st)
{
    struct sl_redis *r = (struct sl_redis *)(void *)st;
    struct sl_stamp stamp = {.s = ""};
    snprintf(stamp.s, sizeof stamp.s, "%s.%" PRIu64, r->node, ++r->n_calls);
    return stamp;
}

void sl_rd_close(struct sl_store *st, void (*closed)(void *arg), void *arg)
{
    struct sl_redis *r = (struct sl_redis *)(void *)st;
    assert(!r->closing);
    r->closing = true;
    r->closed_cb = closed;
    r->closed_arg = arg;
    uv_async_send(&r->wake);
}
