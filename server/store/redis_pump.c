/* redis_pump.c: ops from the call to the callback: lines, what is sent when, deadlines. See
 * redis.h. */
#include "server/store/redis.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "engine/base/mem.h"

/* --- queues -------------------------------------------------------------------------------------
 */

static void queue_push(struct sl_rd_queue *q, struct sl_rd_op *op)
{
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
}

static struct sl_rd_op *queue_pop(struct sl_rd_queue *q)
{
    struct sl_rd_op *op = q->head;
    if (op) {
        q->head = op->next;
        if (!q->head)
            q->tail = &q->head;
        op->next = NULL;
    }
    return op;
}

static void queue_remove(struct sl_rd_queue *q, const struct sl_rd_op *op)
{
    for (struct sl_rd_op **p = &q->head; *p; p = &(*p)->next) {
        if (*p != op)
            continue;
        *p = op->next;
        if (!*p)
            q->tail = p;
        return;
    }
}

/* --- lines --------------------------------------------------------------------------------------
 */

static struct sl_rd_line **bucket_of(struct sl_redis *r, const char *name)
{
    uint64_t h = XXH3_64bits_withSeed(name, strlen(name), r->line_seed);
    return &r->lines[h & (SL_REDIS_LINES - 1)];
}

static struct sl_rd_line *find_line(struct sl_redis *r, const char *tenant, const char *id)
{
    struct sl_rd_line *l = sl_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    snprintf(l->name, sizeof l->name, "%s/%s", tenant, id);
    struct sl_rd_line **bucket = bucket_of(r, l->name);
    for (struct sl_rd_line *p = *bucket; p; p = p->next) {
        if (strcmp(p->name, l->name) == 0) {
            sl_free(l);
            return p;
        }
    }
    l->next = *bucket;
    *bucket = l;
    return l;
}

static void free_line(struct sl_redis *r, struct sl_rd_line *l)
{
    struct sl_rd_line **p = bucket_of(r, l->name);
    while (*p != l)
        p = &(*p)->next;
    *p = l->next;
    sl_free(l);
}

/* --- ops ----------------------------------------------------------------------------------------
 */

static int64_t now_ms(const struct sl_redis *r)
{
    return (int64_t)uv_now(r->loop);
}

void sl_rd_touch(struct sl_rd_op *op)
{
    op->deadline_ms = now_ms(op->r) + (int64_t)op->r->timeout_ms;
}

static void link_op(struct sl_redis *r, struct sl_rd_op *op)
{
    op->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = op;
    r->newest = op;
}

static void unlink_op(struct sl_redis *r, struct sl_rd_op *op)
{
    *(op->newer ? &op->newer->older : &r->newest) = op->older;
    *(op->older ? &op->older->newer : &r->oldest) = op->newer;
}

static void stand_in_line(struct sl_rd_op *op)
{
    struct sl_rd_line *l = op->line;
    if (l->last)
        l->last->after = op;
    else
        l->first = op;
    l->last = op;
    if (l->first == op)
        queue_push(&op->r->arrivals, op);
}

static void starve(struct sl_redis *r, const struct sl_rd_call *call)
{
    if (r->n_starved < SL_REDIS_RESERVE) {
        r->starved[r->n_starved++] = *call;
        return;
    }
    struct sl_error err;
    (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a call of the store");
    r->n_ops--;
    sl_rd_tell_error(call, &err);
}

struct sl_rd_op *sl_rd_new_op(struct sl_redis *r, const struct sl_rd_call *call, const char *tenant,
                              const char *id)
{
    assert(!r->closed && sl_tenant_valid(tenant, strlen(tenant)));
    assert(!id || sl_session_id_valid(id, strlen(id)));
    bool full = r->n_ops >= SL_REDIS_OPS_MAX;
    struct sl_rd_op *op = sl_calloc(1, sizeof *op);
    struct sl_rd_line *line = op && id ? find_line(r, tenant, id) : NULL;
    r->n_ops++;
    uv_async_send(&r->wake);
    if (!op || (id && !line)) {
        sl_free(op);
        starve(r, call);
        return NULL;
    }
    op->r = r;
    op->call = *call;
    op->line = line;
    memcpy(op->tenant, tenant, strlen(tenant));
    if (id)
        memcpy(op->id, id, strlen(id));
    link_op(r, op);
    sl_rd_touch(op);
    if (full)
        op->code =
            sl_fail(&op->err, SL_E_STORE_UNAVAILABLE,
                    "%d calls wait for the store's answer, which is the limit", SL_REDIS_OPS_MAX);
    if (line)
        stand_in_line(op);
    else
        queue_push(&r->arrivals, op);
    return op;
}

void sl_rd_finish(struct sl_rd_op *op)
{
    assert(!op->over);
    op->over = true;
    queue_push(&op->r->finished, op);
}

void sl_rd_send_soon(struct sl_rd_op *op)
{
    queue_push(&op->r->to_send, op);
}

void sl_rd_transfer(struct sl_rd_op *op)
{
    if (op->is_transfer) {
        sl_rd_send_soon(op);
        return;
    }
    op->waits_turn = true;
    queue_push(&op->r->transfers, op);
}

void sl_rd_send_later(struct sl_rd_op *op)
{
    queue_push(&op->r->later, op);
}

static void start(struct sl_rd_op *op)
{
    if (op->args.failed && !op->code)
        op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "no memory for a call of the store");
    sl_rd_touch(op); /* it may have waited for others of its session, each with its own time */
    if (op->code)
        sl_rd_finish(op);
    else if (op->call.kind == SL_RD_SNAP)
        sl_rd_transfer(op);
    else
        sl_rd_send_soon(op);
}

/* Its session's next one can come; it calls back and is gone. */
static void end(struct sl_rd_op *op)
{
    struct sl_redis *r = op->r;
    struct sl_rd_line *l = op->line;
    assert(!op->flight && !op->working);
    if (l) {
        assert(l->first == op);
        l->first = op->after;
        if (l->first) {
            queue_push(&r->arrivals, l->first);
        } else {
            l->last = NULL;
            free_line(r, l);
        }
    }
    r->n_transfers -= op->is_transfer;
    unlink_op(r, op);
    r->n_ops--;
    sl_store_count(&r->stats, op->tenant, op->id, op->code, &op->err);
    r->stats.commits += op->code == SL_OK && op->write_sent;
    sl_rd_owe(op);
    sl_rd_tell(op);
    sl_rd_free_op(op);
}

/* --- sending ------------------------------------------------------------------------------------
 */

static void drop(struct sl_redis *r, const char *why)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_STORE_UNAVAILABLE, "redis %s:%u: %s", r->address.host, r->address.port,
                  why);
    sl_rd_conn_drop(&r->conn, &err);
}

static void on_flight(redisAsyncContext *ac, void *reply, void *arg)
{
    struct sl_rd_flight *f = arg;
    struct sl_redis *r = f->r;
    struct sl_rd_op *op = f->op;
    redisReply *seen = reply;
    (void)ac;
    r->in_flight -= f->bytes;
    sl_free(f);
    if (seen && r->io->reply)
        seen = r->io->reply(seen);
    if (op)
        op->flight = NULL;
    if (op && !seen) {
        r->stats.retries++;
        op->untold |= op->write_sent && !op->in_pieces;
        sl_rd_send_soon(op);
    } else if (op) {
        sl_rd_take(op, seen);
    }
    if (reply && !seen)
        drop(r, "the connection broke");
    if (seen)
        sl_rd_pump(r); /* what it finished is told while the reply is there */
}

enum { FRONT = 3 /* EVALSHA, which, how many keys */, KEYS = 5 };

/* The keys are made here: they follow from the names. */
static void add_keys(const struct sl_rd_op *op, const char **argv, size_t *lens,
                     char keys[KEYS][SL_REDIS_NAME_MAX])
{
    snprintf(keys[0], sizeof keys[0], "slate1:{%s/%s}", op->tenant, op->id);
    snprintf(keys[1], sizeof keys[1], "slate1:{%s/%s}:t", op->tenant, op->id);
    snprintf(keys[2], sizeof keys[2], "slate1:{%s/%s}:a", op->tenant, op->id);
    snprintf(keys[3], sizeof keys[3], "slate1:all");
    snprintf(keys[4], sizeof keys[4], "slate1:ids:%s", op->tenant);
    for (int i = 0; i < KEYS; i++) {
        argv[FRONT + i] = keys[i];
        lens[FRONT + i] = strlen(keys[i]);
    }
}

/* A piece of a snapshot that is read is no script. */
static int piece_command(const struct sl_rd_op *op, const char **argv, size_t *lens,
                         char keys[KEYS][SL_REDIS_NAME_MAX])
{
    snprintf(keys[0], sizeof keys[0], "slate1:{%s/%s}:s:%s", op->tenant, op->id, op->number);
    snprintf(keys[1], sizeof keys[1], "%zu", op->at);
    snprintf(keys[2], sizeof keys[2], "%zu", op->at + SL_REDIS_PIECE - 1);
    argv[0] = "GETRANGE";
    for (int i = 0; i < 3; i++)
        argv[1 + i] = keys[i];
    for (int i = 0; i < 4; i++)
        lens[i] = strlen(argv[i]);
    return 4;
}

/* What was sent before may count, whatever hinders it now: only the deadline ends that. */
static void cannot_send(struct sl_rd_op *op, const char *what)
{
    if (op->write_sent || !what) {
        sl_rd_send_later(op);
        return;
    }
    op->code = sl_fail(&op->err, SL_E_NO_MEMORY, "%s", what);
    sl_rd_finish(op);
}

static void send_op(struct sl_rd_op *op)
{
    struct sl_redis *r = op->r;
    const char *argv[FRONT + KEYS + SL_REDIS_ARGS_MAX];
    size_t lens[FRONT + KEYS + SL_REDIS_ARGS_MAX], bytes = 0;
    char keys[KEYS][SL_REDIS_NAME_MAX];
    int n = FRONT + KEYS + op->args.n;
    struct sl_rd_flight *f = sl_calloc(1, sizeof *f);
    if (!f) {
        cannot_send(op, "no memory for a call of the store");
        return;
    }
    if (op->call.kind == SL_RD_LOAD && op->in_pieces) {
        n = piece_command(op, argv, lens, keys);
        bytes = SL_REDIS_PIECE; /* what comes back */
    } else {
        argv[0] = op->whole_script ? "EVAL" : "EVALSHA";
        argv[1] = op->whole_script ? sl_lua_scripts[op->script] : r->shas[op->script];
        argv[2] = "5";
        for (int i = 0; i < FRONT; i++)
            lens[i] = strlen(argv[i]);
        add_keys(op, argv, lens, keys);
        for (int i = 0; i < op->args.n; i++) {
            argv[FRONT + KEYS + i] = op->args.mem + op->args.at[i];
            lens[FRONT + KEYS + i] = op->args.len[i];
        }
    }
    for (int i = 0; i < n; i++)
        bytes += lens[i];
    *f = (struct sl_rd_flight){r, op, bytes};
    if (!sl_rd_conn_command(&r->conn, n, argv, lens, on_flight, f)) {
        sl_free(f);
        cannot_send(op, NULL); /* the connection is about to end */
        return;
    }
    op->flight = f;
    op->sent++;
    op->asked_ms = now_ms(r);
    if (!op->in_pieces && op->call.kind >= SL_RD_HEAD && op->call.kind <= SL_RD_REMOVE)
        op->write_sent = true;
    r->in_flight += bytes;
}

static void start_transfers(struct sl_redis *r)
{
    struct sl_rd_op *op;
    while (r->n_transfers < SL_REDIS_TRANSFERS_MAX && (op = queue_pop(&r->transfers))) {
        r->n_transfers++;
        op->is_transfer = true;
        op->waits_turn = false;
        sl_rd_touch(op);
        if (op->call.kind == SL_RD_SNAP)
            sl_rd_begin_snap(op);
        else
            sl_rd_send_soon(op);
    }
}

/* --- deadlines ----------------------------------------------------------------------------------
 */

static void give_up(struct sl_rd_op *op)
{
    struct sl_redis *r = op->r;
    const char *why = r->conn.state != SL_RD_UP && r->conn.why.code ? r->conn.why.message : NULL;
    op->given_up = true;
    if (op->write_sent)
        op->code = sl_fail(&op->err, SL_E_COMMIT_UNKNOWN,
                           "redis %s:%u did not answer, so whether this counts is not known (the "
                           "session's version tells): %.200s",
                           r->address.host, r->address.port, why ? why : "it is too slow");
    else if (why)
        op->code = sl_fail(&op->err, SL_E_STORE_UNAVAILABLE, "the store is not there: %.300s", why);
    else
        op->code =
            sl_fail(&op->err, SL_E_STORE_UNAVAILABLE, "redis %s:%u does not answer within %llu ms",
                    r->address.host, r->address.port, (unsigned long long)r->timeout_ms);
    sl_rd_finish(op);
}

/* True: it was in flight, so the connection is not worth anything. */
static bool expire(struct sl_rd_op *op)
{
    struct sl_redis *r = op->r;
    bool flies = op->flight != NULL;
    enum { N_QUEUES = 4 }; /* arrivals: a call may come in the very round of the loop */
    struct sl_rd_queue *const queues[N_QUEUES] = {&r->arrivals, &r->to_send, &r->later,
                                                  &r->transfers};
    for (size_t i = 0; i < N_QUEUES; i++)
        queue_remove(queues[i], op);
    if (flies)
        op->flight->op = NULL;
    op->flight = NULL;
    give_up(op);
    return flies;
}

/* Is it Redis that it waits for? Not while it waits for others of its session. */
static bool is_waiting(const struct sl_rd_op *op)
{
    return !op->working && !op->over && !op->code && (!op->line || op->line->first == op);
}

/* Its own time runs, and is over. While it waits for other transfers to end theirs does. */
static bool is_late(const struct sl_rd_op *op, int64_t now)
{
    return !op->waits_turn && now >= op->deadline_ms;
}

void sl_rd_on_tick(uv_timer_t *t)
{
    struct sl_redis *r = t->data;
    struct sl_rd_op *op;
    int64_t now = now_ms(r);
    bool silent = false;
    bool away = r->conn.state != SL_RD_UP && r->down_since_ms &&
                now - r->down_since_ms >= (int64_t)r->timeout_ms;
    for (op = r->oldest; op; op = op->newer)
        if (is_waiting(op) && (is_late(op, now) || away))
            silent |= expire(op);
    while ((op = queue_pop(&r->later)))
        sl_rd_send_soon(op);
    if (silent && r->conn.state == SL_RD_UP) {
        struct sl_error err;
        (void)sl_fail(&err, SL_E_STORE_UNAVAILABLE, "redis %s:%u does not answer within %llu ms",
                      r->address.host, r->address.port, (unsigned long long)r->timeout_ms);
        sl_rd_conn_drop(&r->conn, &err);
    }
    sl_rd_pump(r);
}

/* --- the pump -----------------------------------------------------------------------------------
 */

static void tell_starved(struct sl_redis *r)
{
    struct sl_error err;
    size_t n = r->n_starved;
    (void)sl_fail(&err, SL_E_NO_MEMORY, "no memory for a call of the store");
    for (size_t i = 0; i < n; i++) {
        struct sl_rd_call call = r->starved[i]; /* the callback may add some */
        r->n_ops--;
        sl_rd_tell_error(&call, &err);
    }
    r->n_starved -= n;
    memmove(r->starved, r->starved + n, r->n_starved * sizeof *r->starved);
}

static void run_queues(struct sl_redis *r)
{
    struct sl_rd_op *op;
    while (r->finished.head || r->arrivals.head) {
        while ((op = queue_pop(&r->finished)))
            end(op);
        while ((op = queue_pop(&r->arrivals)))
            start(op);
    }
}

static void advance_close(struct sl_redis *r)
{
    if (!r->closing || r->n_ops)
        return;
    r->closed = true;
    sl_rd_close_handles(r);
}

void sl_rd_pump(struct sl_redis *r)
{
    struct sl_rd_op *op;
    if (r->closed)
        return;
    tell_starved(r);
    do {
        run_queues(r);
        if (r->conn.state == SL_RD_UP)
            sl_rd_give_back_owed(r);
        start_transfers(r);
        while (r->conn.state == SL_RD_UP && r->in_flight < SL_REDIS_IN_FLIGHT_MAX &&
               (op = queue_pop(&r->to_send)))
            send_op(op);
    } while (r->finished.head || r->arrivals.head);
    if (r->n_ops && !uv_is_active((uv_handle_t *)&r->tick))
        uv_timer_start(&r->tick, sl_rd_on_tick, SL_REDIS_TICK_MS, SL_REDIS_TICK_MS);
    else if (!r->n_ops)
        uv_timer_stop(&r->tick);
    advance_close(r);
}

/* The replies that came with the one that says what it is have been read by now. */
void sl_rd_on_wake(uv_async_t *a)
{
    struct sl_redis *r = a->data;
    bool astray = r->leads_astray && r->conn.state == SL_RD_UP;
    r->leads_astray = false;
    if (astray)
        drop(r, "it is a read-only replica");
    sl_rd_pump(r);
}

void sl_rd_on_up(void *arg)
{
    struct sl_redis *r = arg;
    r->down_since_ms = 0;
    r->stats.read_only = false;
    r->stats.reconnects = r->conn.n_ups - 1;
    sl_rd_pump(r);
}

void sl_rd_on_down(void *arg, const struct sl_error *why)
{
    struct sl_redis *r = arg;
    (void)why;
    if (!r->down_since_ms)
        r->down_since_ms = now_ms(r);
    r->stats.read_only = true;
    uv_async_send(&r->wake);
}
