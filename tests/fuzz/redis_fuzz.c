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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ANSWERS_MAX = 64, DEPTH_MAX = 4, ELEMENTS_MAX = 24, LIMIT = 5 };

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

/* --- the input ---------------------------------------------------------------------------------*/

static const uint8_t *in;
static size_t n_in;

static unsigned take(void)
{
    if (!n_in)
        return 0;
    n_in--;
    return *in++;
}

/* --- values ------------------------------------------------------------------------------------*/

static redisReply *value(int type)
{
    redisReply *r = calloc(1, sizeof *r);
    assert(r);
    r->type = type;
    return r;
}

static redisReply *text(int type, const void *s, size_t n)
{
    redisReply *r = value(type);
    r->str = malloc(n + 1);
    assert(r->str);
    memcpy(r->str, s, n);
    r->str[n] = '\0';
    r->len = n;
    return r;
}

static redisReply *string(const char *s)
{
    return text(REDIS_REPLY_STRING, s, strlen(s));
}

static redisReply *number(uint64_t v)
{
    char s[24];
    snprintf(s, sizeof s, "%llu", (unsigned long long)v);
    return string(s);
}

static redisReply *array(size_t n)
{
    redisReply *r = value(REDIS_REPLY_ARRAY);
    r->elements = n;
    r->element = calloc(n + 1, sizeof(redisReply *));
    assert(r->element);
    return r;
}

static void drop(redisReply *r)
{
    for (size_t i = 0; i < r->elements; i++)
        drop(r->element[i]);
    free(r->element);
    free(r->str);
    free(r);
}

/* Any value. */
static redisReply *any(unsigned depth)
{
    static const char *const words[] = {"ok",        "none",       "other", "exists",
                                        "version",   "fence",      "busy",  "full",
                                        "missing",   "",           "-1",    "18446744073709551616",
                                        "LOADING x", "NOSCRIPT x", "OOM x", "ERR Error: -READONLY",
                                        "WRONGTYPE", "ERR "};
    static const int texts[] = {REDIS_REPLY_STRING, REDIS_REPLY_STATUS, REDIS_REPLY_ERROR};
    unsigned what = take();
    char bytes[64];
    size_t n;
    switch (what % 6) {
    case 0:
        return value(REDIS_REPLY_NIL);
    case 1: {
        redisReply *r = value(REDIS_REPLY_INTEGER);
        r->integer = (long long)take() - 3;
        return r;
    }
    case 2:
        n = what / 6 % sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)take();
        return text(texts[take() % 3], bytes, n);
    case 3: {
        const char *w = words[take() % (sizeof words / sizeof *words)];
        return text(texts[what / 6 % 3], w, strlen(w));
    }
    case 4:
        return number(take());
    default: {
        redisReply *r = array(depth < DEPTH_MAX ? what / 6 % ELEMENTS_MAX : 0);
        for (size_t i = 0; i < r->elements; i++)
            r->element[i] = any(depth + 1);
        return r;
    }
    }
}

/* r, or any value where the input wants that. */
static redisReply *maybe(redisReply *r)
{
    if (take() % 16 != 15)
        return r;
    drop(r);
    return any(1);
}

/* --- answers as they should be -----------------------------------------------------------------*/

static const char hex32[] = "00112233445566778899aabbccddeeff";

/* What redis_lua.c's view() gives. */
static void fill_view(redisReply *r, const char *word)
{
    redisReply *const parts[] = {string(word),
                                 number(1000000 + take()),
                                 string(hex32),
                                 number(take() % 8),
                                 number(take()),
                                 number(take()),
                                 number(take()),
                                 number(take()),
                                 string(take() % 2 ? "{\"a\":1}" : ""),
                                 number(take() % 4),
                                 number(take()),
                                 number(take()),
                                 string(take() % 2 ? "key" : ""),
                                 number(take() % 2)};
    size_t n = sizeof parts / sizeof *parts;
    assert(r->elements >= n);
    for (size_t i = 0; i < n; i++)
        r->element[i] = maybe(parts[i]);
}

static redisReply *record(const unsigned char *payload, size_t n, uint64_t version, bool turn)
{
    char front[64];
    unsigned char *p = malloc(sizeof front + n);
    uint64_t hash = sl_record_hash(payload, n);
    assert(p);
    int k = turn ? snprintf(front, sizeof front, "%020llu%010u%016llx", (unsigned long long)version,
                            take(), (unsigned long long)hash)
                 : snprintf(front, sizeof front, "%020llu%016llx", (unsigned long long)version,
                            (unsigned long long)hash);
    memcpy(p, front, (size_t)k);
    memcpy(p + k, payload, n);
    if (take() % 16 == 15)
        p[take() % ((size_t)k + n)] ^= (unsigned char)take();
    redisReply *r = text(REDIS_REPLY_STRING, p, (size_t)k + n);
    free(p);
    return r;
}

static redisReply *turn_record(uint64_t version)
{
    const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct sl_store_turn t = {.version = version, .tokens = tokens, .tokens_seen = take()};
    unsigned char payload[512];
    t.n_tokens = take() % 8;
    t.n_generated = take() % (t.n_tokens + 1);
    t.n_drop = take();
    t.continuation = (struct sl_text){"{}", take() % 3};
    size_t n = sl_turn_payload_size(&t);
    assert(n <= sizeof payload);
    sl_turn_payload_write(payload, &t);
    if (take() % 16 == 15) /* the hash is right of what is wrong */
        payload[take() % n] ^= (unsigned char)take();
    return record(payload, n, version, true);
}

static redisReply *answer_record(uint64_t version)
{
    struct sl_store_answer a = {.idempotency_key = "key", .body = {"body", take() % 5}};
    unsigned char payload[512];
    a.at = (int64_t)take();
    size_t n = sl_answer_payload_size(&a);
    assert(n <= sizeof payload);
    sl_answer_payload_write(payload, &a);
    if (take() % 16 == 15)
        payload[take() % n] ^= (unsigned char)take();
    return record(payload, n, version, false);
}

static redisReply *whole_load(void)
{
    enum { VIEW = 14, LOAD = 19 };
    redisReply *r = array(LOAD);
    fill_view(r, "ok");
    uint64_t from = 0;
    bool has_snapshot = sl_rd_number(r->element[9], &from) && from > 0;
    redisReply *turns = array(take() % 4), *answers = array(take() % 6);
    for (size_t i = 0; i < turns->elements; i++)
        turns->element[i] = turn_record(from + i + 1);
    for (size_t i = 0; i < answers->elements; i++)
        answers->element[i] = answer_record(from + i);
    if (take() % 8) { /* the version that this gives */
        drop(r->element[3]);
        r->element[3] = number(from + turns->elements);
    }
    r->element[VIEW] = maybe(string(has_snapshot ? "n1" : ""));
    r->element[VIEW + 1] = maybe(number(take()));
    r->element[VIEW + 2] = maybe(string(hex32));
    r->element[VIEW + 3] = maybe(turns);
    r->element[VIEW + 4] = maybe(answers);
    return r;
}

static redisReply *whole_list(void)
{
    size_t n = take() % (LIMIT + 2);
    redisReply *r = array(3 + n);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    r->element[2] = maybe(number(take() % 2));
    for (size_t i = 0; i < n; i++) {
        redisReply *v = array(14);
        fill_view(v, take() % 8 ? "id" : "not an id");
        r->element[3 + i] = maybe(v);
    }
    return r;
}

static redisReply *whole_asked(void)
{
    redisReply *r = array(3), *v = array(take() % 4);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    for (size_t i = 0; i < v->elements; i++) {
        char s[64];
        int n = snprintf(s, sizeof s, "%s %u %s/%s", take() % 2 ? "cancel" : "pause", take(),
                         take() % 4 ? "t" : "..", take() % 4 ? "id" : "");
        if (take() % 8 == 7)
            s[take() % (unsigned)n] = (char)take();
        v->element[i] = maybe(text(REDIS_REPLY_STRING, s, (size_t)n));
    }
    r->element[2] = maybe(v);
    return r;
}

static redisReply *whole_told(void)
{
    redisReply *r = array(4);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    r->element[2] = maybe(number(take() % 2));
    r->element[3] = maybe(number(take()));
    return r;
}

static redisReply *answer(void)
{
    unsigned what = take();
    switch (what % 8) {
    case 0: {
        redisReply *r = array(14);
        fill_view(r, what & 64 ? "busy" : "ok");
        return r;
    }
    case 1:
        return whole_load();
    case 2:
        return whole_list();
    case 3:
        return whole_asked();
    case 4:
        return whole_told();
    case 5: /* a piece of a snapshot */
        return text(REDIS_REPLY_STRING, hex32, take() % sizeof hex32);
    default:
        return any(0);
    }
}

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
    assert(r->head->version == r->head->snapshot_version + r->n_turns);
    assert(r->n_answers <= SL_STORE_ANSWERS_MAX);
    for (size_t i = 0; i < r->n_turns; i++) {
        const struct sl_store_turn *t = &r->turns[i];
        assert(t->version == r->head->snapshot_version + i + 1 && t->n_generated <= t->n_tokens);
        look_at(t->tokens, t->n_tokens * sizeof *t->tokens);
        look_at(t->continuation.s, t->continuation.n);
        assert(!t->answer || (t->answer >= r->answers && t->answer < r->answers + r->n_answers));
    }
    for (size_t i = 0; i < r->n_answers; i++) {
        look_at(r->answers[i].idempotency_key, strlen(r->answers[i].idempotency_key));
        look_at(r->answers[i].body.s, r->answers[i].body.n);
    }
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

static void ask(unsigned what)
{
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
    for (unsigned n = 0; !told.n; n++) {
        sl_rd_on_wake(&redis.wake);
        if (sent.fn)
            give_answer(n);
        else if (redis.oldest && redis.oldest->working)
            (void)uv_run(&loop, UV_RUN_ONCE); /* the pool has it */
        else if (!told.n)
            sl_rd_on_tick(&redis.tick);
        assert(n < 100000);
    }
    assert(told.n == 1 && redis.n_ops == 0 && redis.in_flight == 0 && redis.n_transfers == 0);
    return 0;
}
