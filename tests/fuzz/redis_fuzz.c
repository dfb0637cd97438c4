/* redis_fuzz.c: what Redis answers, as values made of the input: any types where others are
 * expected, and answers as they should be with some of their parts exchanged, records included
 * whose hashes are right.
 *
 * The first byte says what was asked (store.h). There is no connection: commands are counted, and
 * answered from here. Each call must call back once, with an error that says something or with what
 * keeps store.h's promises; everything is given back. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/store/redis.h"
#include "tests/fuzz/redis_answers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ANSWERS_MAX = 64 };

static uv_loop_t loop;
static struct sl_redis redis;
static struct { /* the command that was sent */
    redisCallbackFn *fn;
    void *arg;
} sent;
static struct {
    unsigned n;   /* callbacks */
    uint64_t sum; /* of what was looked at, so that it is */
} told;

/* --- what is told ------------------------------------------------------------------------------*/

static void look_at(const void *p, size_t n)
{
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        told.sum += s[i];
}

static void check_error(const struct sl_error *err)
{
    assert(err && err->code != SL_OK && err->message[0]);
    assert(strlen(err->message) < sizeof err->message);
}

static void check_head(const struct sl_store_head *h)
{
    assert(sl_session_id_valid(h->key.id, strlen(h->key.id)));
    assert(strcmp(h->key.tenant, "t") == 0);
    look_at(h->metadata.s, h->metadata.s ? h->metadata.n : 0);
}

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    told.n++;
    assert((code == SL_OK) == (err == NULL));
    if (err)
        check_error(err);
}

static void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    (void)arg;
    told.n++;
    if (err)
        check_error(err);
    assert(err || v);
    assert(!v || !err || err->code == SL_E_SESSION_BUSY);
    if (v) {
        check_head(&v->head);
        look_at(v->held_key, strlen(v->held_key));
    }
}

static void on_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err)
{
    (void)arg;
    told.n++;
    told.sum += fence + runs;
    if (err)
        check_error(err);
}

static void on_heard(void *arg, const struct sl_store_asked *v, size_t n,
                     const struct sl_error *err)
{
    (void)arg;
    told.n++;
    if (err)
        check_error(err);
    for (size_t i = 0; !err && i < n; i++) {
        assert(sl_session_id_valid(v[i].id, strlen(v[i].id)));
        assert(sl_tenant_valid(v[i].tenant, strlen(v[i].tenant)));
        assert(v[i].what < SL_ASKS);
    }
}

static void on_listed(void *arg, const struct sl_store_view *v, size_t n, bool more,
                      const struct sl_error *err)
{
    (void)arg;
    told.n++;
    told.sum += more;
    if (err) {
        check_error(err);
        return;
    }
    assert(v && n <= LIMIT);
    for (size_t i = 0; i < n; i++)
        check_head(&v[i].head);
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    (void)arg;
    told.n++;
    assert((r == NULL) == (err != NULL));
    if (err) {
        check_error(err);
        return;
    }
    check_head(r->head);
    look_at(r->snapshot, r->n_snapshot);
    assert(r->version == r->snapshot_version + r->n_turns);
    assert(r->n_answers <= SL_STORE_ANSWERS_MAX);
    for (size_t i = 0; i < r->n_turns; i++) {
        const struct sl_store_turn *t = &r->turns[i];
        assert(t->version == r->snapshot_version + i + 1 && t->n_generated <= t->n_tokens);
        look_at(t->tokens, t->n_tokens * sizeof *t->tokens);
        look_at(t->continuation.s, t->continuation.n);
        assert(!t->answer || (t->answer >= r->answers && t->answer < r->answers + r->n_answers));
    }
    for (size_t i = 0; i < r->n_answers; i++) {
        look_at(r->answers[i].idempotency_key, strlen(r->answers[i].idempotency_key));
        look_at(r->answers[i].body.s, r->answers[i].body.n);
    }
}

static void on_pointed(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    (void)arg;
    told.n++;
    assert((k == NULL) == (err != NULL));
    if (err) {
        check_error(err);
        return;
    }
    for (size_t i = 0; i < k->n; i++)
        assert(i == 0 || k->v[i - 1].version < k->v[i].version);
    for (size_t i = 0; i < k->n_names; i++)
        assert(sl_session_id_valid(k->names[i].name, strlen(k->names[i].name)));
}

static enum sl_code decode(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    (void)arg;
    (void)err;
    look_at(r->snapshot, r->n_snapshot);
    return SL_OK;
}

/* --- calls -------------------------------------------------------------------------------------*/

static int command(redisAsyncContext *ac, redisCallbackFn *fn, void *arg, int argc,
                   const char **argv, const size_t *argvlen)
{
    (void)ac;
    assert(!sent.fn);
    for (int i = 0; i < argc; i++)
        look_at(argv[i], argvlen[i]);
    sent.fn = fn;
    sent.arg = arg;
    return REDIS_OK;
}

static const struct sl_redis_io io = {.command = command};

static void set_up(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    assert(uv_loop_init(&loop) == 0);
    redis.base.kind = &sl_store_redis;
    redis.loop = &loop;
    redis.io = &io;
    redis.timeout_ms = 3600000;
    redis.lease_ms = 1000;
    memcpy(redis.address.host, "fuzz", 5);
    redis.conn = (struct sl_rd_conn){.loop = &loop,
                                     .io = &io,
                                     .address = &redis.address,
                                     .down = sl_rd_on_down,
                                     .arg = &redis,
                                     .state = SL_RD_UP};
    redis.owed_end = &redis.owed;
    redis.starved = calloc(SL_REDIS_RESERVE, sizeof *redis.starved);
    assert(redis.starved);
    struct sl_rd_queue *const queues[] = {&redis.arrivals, &redis.to_send, &redis.later,
                                          &redis.transfers, &redis.finished};
    for (size_t i = 0; i < sizeof queues / sizeof *queues; i++)
        queues[i]->tail = &queues[i]->head;
    assert(uv_async_init(&loop, &redis.wake, sl_rd_on_wake) == 0);
    assert(uv_timer_init(&loop, &redis.tick) == 0 && uv_timer_init(&loop, &redis.conn.timer) == 0);
    redis.wake.data = redis.tick.data = &redis;
    redis.conn.timer.data = &redis.conn;
}

/* What is kept, and its names. */
static void ask_kept(unsigned what)
{
    struct sl_store *st = &redis.base;
    struct sl_store_key key = {.tenant = "t", .id = "id", .fence = 3};
    switch (what % 4) {
    case 0:
        sl_store_put_name(st, &key, 5, "name", 3, on_done, NULL);
        break;
    case 1:
        sl_store_drop_name(st, &key, 5, "name", on_done, NULL);
        break;
    case 2:
        sl_store_points(st, &key, on_pointed, NULL);
        break;
    default:
        sl_store_load_at(st, &key, what / 4 % 8, decode, on_loaded, NULL);
    }
}

static void ask(unsigned what)
{
    if (what & 128) {
        ask_kept(what);
        return;
    }
    struct sl_store *st = &redis.base;
    struct sl_store_key key = {.tenant = "t", .id = "id", .fence = 3};
    struct sl_store_head head = {.key = key};
    struct sl_store_turn turn = {.version = 2};
    struct sl_list_query q = {.limit = LIMIT};
    unsigned char *bytes;
    switch (what % 13) {
    case 0:
        sl_store_look(st, "t", "id", on_seen, NULL);
        break;
    case 1:
        sl_store_take(st, "t", "id", "key", SL_TAKER_TURN, on_seen, NULL);
        break;
    case 2:
        sl_store_renew(st, &key, on_done, NULL);
        break;
    case 3:
        sl_store_release(st, &key, on_done, NULL);
        break;
    case 4:
        sl_store_ask(st, "t", "id", SL_ASK_PAUSE, 0, on_told, NULL);
        break;
    case 5:
        sl_store_asked(st, on_heard, NULL);
        break;
    case 6:
        sl_store_list(st, "t", &q, on_listed, NULL);
        break;
    case 7:
        sl_store_sweep(st, on_done, NULL);
        break;
    case 8:
        sl_store_put_head(st, &head, on_done, NULL);
        break;
    case 9:
        sl_store_append_turn(st, &key, &turn, on_done, NULL);
        break;
    case 10:
        sl_store_remove(st, &key, on_done, NULL);
        break;
    case 11:
        bytes = sl_malloc(9);
        assert(bytes);
        memset(bytes, 7, 9);
        sl_store_put_snapshot(st, &key, 1, what & 16 ? &head : NULL, bytes, 9, on_done, NULL);
        break;
    default:
        sl_store_load(st, &key, what & 16 ? decode : NULL, on_loaded, NULL);
    }
}

/* The next answer, or, for a while, none: the connection breaks and is there again. */
static void give_answer(unsigned n)
{
    redisCallbackFn *fn = sent.fn;
    void *arg = sent.arg;
    redisReply *r = NULL;
    sent.fn = NULL;
    if (n >= ANSWERS_MAX || !n_in)
        r = text(REDIS_REPLY_ERROR, "ERR no more", 11);
    else if (take() % 32 != 31)
        r = answer();
    fn(NULL, r, arg);
    if (r)
        drop(r);
    redis.conn.state = SL_RD_UP;
    uv_timer_stop(&redis.conn.timer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!redis.starved)
        set_up();
    if (size < 1 || size > 4096)
        return 0;
    in = data + 1;
    n_in = size - 1;
    told.n = 0;
    ask(data[0]);
    /* A lease that may have been left behind is given back then. */
    for (unsigned n = 0; !told.n || redis.n_ops; n++) {
        sl_rd_on_wake(&redis.wake);
        if (sent.fn)
            give_answer(n);
        else if (redis.oldest && redis.oldest->working)
            (void)uv_run(&loop, UV_RUN_ONCE); /* the pool has it */
        else if (!told.n || redis.n_ops)
            sl_rd_on_tick(&redis.tick);
        assert(n < 100000);
    }
    assert(told.n == 1 && redis.n_ops == 0 && redis.n_owed == 0 && redis.in_flight == 0 &&
           redis.n_transfers == 0);
    return 0;
}
