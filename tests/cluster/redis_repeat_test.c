/* redis_repeat_test.c: writes of the `redis://` store that are repeated because their answers were
 * lost, and others came between. Without others it is redis_fault_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"
#include "tests/support/redis_shop.h"

static void set_lease_over(const struct sl_store_key *k)
{
    redis_do(&redis, "HSET slate1:{%s/%s} lu 1", k->tenant, k->id);
}

/* What others do once Redis has done what it was asked for, and before it is asked again: the
 * answer is lost. */
static struct {
    void (*others)(struct shop *st, const struct sl_store_key *k); /* NULL: nothing is lost */
    struct shop *st;
    struct sl_store_key key;
} meanwhile;

static redisReply *lose_reply(redisReply *r)
{
    void (*others)(struct shop *, const struct sl_store_key *) = meanwhile.others;
    meanwhile.others = NULL;
    if (!others)
        return r;
    others(meanwhile.st, &meanwhile.key);
    return NULL;
}

static void others_take(struct shop *st, const struct sl_store_key *k)
{
    assert_int_equal(take(st, k, NULL).code, SL_OK);
}

static void others_commit(struct shop *st, const struct sl_store_key *k)
{
    set_lease_over(k);
    struct seen s = take(st, k, NULL);
    struct sl_store_key held = *k;
    held.fence = s.view.head.key.fence;
    assert_int_equal(turn(st, &held, s.view.head.version + 1), SL_OK);
}

static void others_remove(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    set_lease_over(k);
    sl_store_remove(st->store, k, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
}

struct losing {
    struct sl_redis_io io;
    struct sl_store_options opt;
    struct shop *a, *b;
    struct sl_store_key key; /* with a's fence */
};

static void begin_losing_keeping(struct losing *l, uint64_t keep_turns)
{
    l->io = sl_redis_io_system;
    l->io.reply = lose_reply;
    l->opt = redis_options;
    l->opt.redis_io = &l->io;
    l->opt.keep_turns = keep_turns;
    l->b = new_redis_shop_keeping(keep_turns);
    l->a = other_redis_shop_with(&l->opt);
    do_create(l->b, 0);
    shop_run(l->b);
    l->key = shop_key(l->b, 0);
}

static void begin_losing(struct losing *l)
{
    begin_losing_keeping(l, 0);
}

static void end_losing(struct losing *l)
{
    assert_null(meanwhile.others); /* they came */
    free_shop(l->a);
    free_shop(l->b);
}

/* a takes the lease; the answer to what it does next is lost. */
static uint64_t lose_next(struct losing *l,
                          void (*others)(struct shop *st, const struct sl_store_key *k))
{
    assert_null(meanwhile.others);
    set_lease_over(&l->key);
    struct seen s = take(l->a, &l->key, NULL);
    assert_int_equal(s.code, SL_OK);
    l->key.fence = s.view.head.key.fence;
    meanwhile.others = others;
    meanwhile.st = l->b;
    meanwhile.key = shop_key(l->b, 0);
    return s.view.head.version;
}

/* It is not said of what has been done that nothing of it was kept: the client would do it again.
 */
static void test_what_is_repeated_after_others_came(void **state)
{
    (void)state;
    struct losing l;
    begin_losing(&l);
    uint64_t v = lose_next(&l, others_commit);
    assert_int_equal(turn(l.a, &l.key, v + 1), SL_E_COMMIT_UNKNOWN);
    assert_int_equal(look(l.b, &l.key).view.head.version, v + 2); /* the first of them is a's */
    v = lose_next(&l, others_take); /* nothing has come upon it: known */
    assert_int_equal(turn(l.a, &l.key, v + 1), SL_OK);
    v = lose_next(&l, others_remove);
    assert_int_equal(turn(l.a, &l.key, v + 1), SL_E_COMMIT_UNKNOWN);

    end_losing(&l);
}

static const struct sl_store_key made = {
    .tenant = "default", .id = "made", .incarnation = "fifteen bytes.."};

/* With a time to live of which it is told. */
static void make(struct losing *l, int64_t ttl_s, struct got *g)
{
    struct sl_store_head h = {.key = made, .used_at = l->a->base, .ttl_s = ttl_s};
    sl_store_put_head(l->a->store, &h, on_got, expect(l->a, g));
    shop_run(l->a);
}

static void others_patch(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    struct sl_store_head h = {.key = *k, .used_at = st->base, .ttl_s = 7777};
    h.key.fence = take(st, k, NULL).view.head.key.fence;
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
    assert_int_equal(release(st, &h.key), SL_OK);
}

static void others_commit_to_it(struct shop *st, const struct sl_store_key *k)
{
    others_patch(st, k);
    others_commit(st, k);
}

/* Whoever has made a session is told so, and takes nothing from what others have done since. */
static void test_a_session_that_is_made_once(void **state)
{
    (void)state;
    static void (*const others[])(struct shop *, const struct sl_store_key *) = {
        others_take, others_patch, others_commit_to_it};
    static const int64_t ttl_s[] = {6666, 7777, 7777};
    struct losing l;
    struct got g;
    begin_losing(&l);
    assert_int_equal(look(l.a, &made).code, SL_E_SESSION_NOT_FOUND); /* it is connected */
    meanwhile.st = l.b;
    meanwhile.key = made;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        meanwhile.others = others[i];
        make(&l, 6666, &g);
        assert_int_equal(g.code, SL_OK);
        assert_int_equal(look(l.b, &made).view.head.ttl_s, ttl_s[i]);
        assert_int_equal(look(l.b, &made).view.head.version, i == 2);
        others_remove(l.b, &made);
    }
    meanwhile.others = others_remove; /* made anew: it was there, and is again */
    make(&l, 6666, &g);
    assert_int_equal(g.code, SL_OK);
    end_losing(&l);
}

static void test_which_repetitions_are_not_known(void **state)
{
    (void)state;
    struct losing l;
    struct got g;
    begin_losing(&l);
    assert_int_equal(turn(l.b, &l.key, 1), SL_OK);
    uint64_t v = lose_next(&l, others_commit);
    struct sl_store_head h = {.key = l.key, .version = v, .used_at = l.a->base};
    sl_store_put_head(l.a->store, &h, on_got, expect(l.a, &g));
    must_fail(l.a, &g, SL_E_COMMIT_UNKNOWN, "the session's version tells");
    v = lose_next(&l, others_commit);
    sl_store_put_name(l.a->store, &l.key, v, "x", v, on_got, expect(l.a, &g));
    must_fail(l.a, &g, SL_E_COMMIT_UNKNOWN, "the session's version tells");
    v = lose_next(&l, others_commit);
    sl_store_drop_name(l.a->store, &l.key, v, "x", on_got, expect(l.a, &g));
    must_fail(l.a, &g, SL_E_COMMIT_UNKNOWN, "the session's version tells");
    /* Of a lease the word is the truth. */
    (void)lose_next(&l, others_commit);
    assert_int_equal(renew(l.a, &l.key), SL_E_LEASE_LOST);
    (void)lose_next(&l, others_commit);
    assert_int_equal(release(l.a, &l.key), SL_OK);
    /* And of what Redis has said that it did not do: it had forgotten how. */
    redis_do(&redis, "SCRIPT FLUSH");
    assert_int_equal(turn(l.a, &l.key, 9), SL_E_LEASE_LOST);
    h = take(l.a, &l.key, NULL).view.head;
    l.key.fence = h.key.fence;
    redis_do(&redis, "SCRIPT FLUSH");
    sl_store_drop_name(l.a->store, &l.key, h.version, "never", on_got, expect(l.a, &g));
    must_fail(l.a, &g, SL_E_CHECKPOINT_NOT_FOUND, "never");
    end_losing(&l);
}

/* Redis takes no writes from then on. */
static void others_lack_replicas(struct shop *st, const struct sl_store_key *k)
{
    (void)st;
    (void)k;
    redis_do(&redis, "CONFIG SET min-replicas-to-write 1");
}

static void others_fill(struct shop *st, const struct sl_store_key *k)
{
    (void)st;
    (void)k;
    redis_do(&redis, "CONFIG SET maxmemory 1");
}

static void redis_is_well(void)
{
    redis_do(&redis, "CONFIG SET min-replicas-to-write 0");
    redis_do(&redis, "CONFIG SET maxmemory 0");
}

/* Refused when it came again: what became of it the first time is not said by that. */
static void test_a_repetition_that_redis_refuses(void **state)
{
    (void)state;
    static void (*const others[])(struct shop *, const struct sl_store_key *) = {
        others_fill, others_lack_replicas};
    static const enum sl_code codes[] = {SL_E_STORE_FULL, SL_E_STORE_UNAVAILABLE};
    struct losing l;
    struct got g;
    begin_losing(&l);
    uint64_t v = 1;
    assert_int_equal(turn(l.b, &l.key, v), SL_OK);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct sl_store_head h = {.version = v, .used_at = l.a->base, .ttl_s = 7000};
        (void)lose_next(&l, others[i]);
        h.key = l.key;
        h.ttl_s += (int64_t)i;
        sl_store_put_head(l.a->store, &h, on_got, expect(l.a, &g));
        must_fail(l.a, &g, SL_E_COMMIT_UNKNOWN, "refused when it was asked again");
        assert_int_equal(look(l.b, &l.key).view.head.ttl_s, h.ttl_s);
        sl_store_put_head(l.a->store, &h, on_got, expect(l.a, &g)); /* nothing was lost here */
        must_fail(l.a, &g, codes[i], "");
        redis_is_well();
        (void)lose_next(&l, others[i]); /* a turn looks before it writes */
        assert_int_equal(turn(l.a, &l.key, ++v), SL_OK);
        redis_is_well();
    }
    const struct sl_store_key free = shop_key(l.b, 0);
    sl_store_put_name(l.b->store, &free, v, "x", v, on_got, expect(l.b, &g));
    shop_run(l.b);
    assert_int_equal(g.code, SL_OK);
    (void)lose_next(&l, others_lack_replicas);
    sl_store_drop_name(l.a->store, &l.key, v, "x", on_got, expect(l.a, &g));
    must_fail(l.a, &g, SL_E_COMMIT_UNKNOWN, "refused when it was asked again");
    assert_int_equal(look(l.b, &l.key).view.head.n_names, 0);
    redis_is_well();
    end_losing(&l);
}

static void put_with(struct shop *st, const struct sl_store_key *k, uint64_t version,
                     const struct sl_store_head *h, struct got *g)
{
    enum { SIZE = 10 };
    unsigned char *p = sl_calloc(1, SIZE);
    assert_non_null(p);
    sl_store_put_snapshot(st->store, k, version, h, p, SIZE, on_got, expect(st, g));
    shop_run(st);
}

static void put_whole(struct shop *st, const struct sl_store_key *k, uint64_t version,
                      struct got *g)
{
    struct sl_store_head h = {.key = *k, .version = version, .used_at = st->base};
    put_with(st, k, version, &h, g);
}

/* Of a version that is there. */
static void put_state(struct shop *st, const struct sl_store_key *k, uint64_t version,
                      struct got *g)
{
    put_with(st, k, version, NULL, g);
}

static void others_replace(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    set_lease_over(k);
    struct seen s = take(st, k, NULL);
    struct sl_store_key held = *k;
    held.fence = s.view.head.key.fence;
    put_whole(st, &held, s.view.head.version + 1, &g);
    assert_int_equal(g.code, SL_OK);
}

/* The pieces' answers come; that of what makes the session speak of them does not. */
static redisReply *lose_last(redisReply *r)
{
    redisReply *n = redis_ask(&redis, "HGET slate1:{default/s0} sn");
    bool counts = n->type == REDIS_REPLY_STRING && n->len > 0;
    freeReplyObject(n);
    return counts ? lose_reply(r) : r;
}

/* Its bytes are gone by then, so that they go out again before it is refused. */
static void test_a_snapshot_repeated_after_others_came(void **state)
{
    (void)state;
    struct losing l;
    struct got g;
    begin_losing(&l);
    uint64_t v = lose_next(&l, others_replace);
    l.io.reply = lose_last;
    put_whole(l.a, &l.key, v + 1, &g);
    assert_int_equal(g.code, SL_E_COMMIT_UNKNOWN);
    assert_int_equal(look(l.b, &l.key).view.head.version, v + 2);
    end_losing(&l);
}

static void others_save(struct shop *st, const struct sl_store_key *k)
{
    struct got g;
    others_commit(st, k);
    put_state(st, k, 2, &g);
    assert_int_equal(g.code, SL_OK);
}

/* It counts, and is kept by now: it is not taken away again. */
static void test_a_snapshot_that_is_kept_by_then(void **state)
{
    (void)state;
    struct losing l;
    struct got g;
    begin_losing_keeping(&l, 4);
    assert_int_equal(turn(l.a, &l.key, 1), SL_OK);
    (void)lose_next(&l, others_save);
    l.io.reply = lose_last;
    put_state(l.a, &l.key, 1, &g);
    assert_int_equal(g.code, SL_OK);
    assert_int_equal(look(l.b, &l.key).view.head.snapshot_version, 2);
    sl_store_load_at(l.b->store, &l.key, 1, NULL, on_got_loaded, expect(l.b, &g));
    shop_run(l.b);
    assert_int_equal(g.code, SL_OK);
    end_losing(&l);
}

/* --- pieces ------------------------------------------------------------------------------------*/

enum { PIECE = 8, PIECES = 3 };
static const char whole[PIECES * PIECE + 1] = "one-----two-----three---";

/* What a server sends; Redis' word for it. */
static void send_piece(const struct sl_store_key *k, int i, const char *word)
{
    redisReply *r = redis_ask(&redis,
                              "EVAL %s 5 slate1:{%s/%s} slate1:{%s/%s}:t slate1:{%s/%s}:a "
                              "slate1:all slate1:ids:%s %s %s n %d %d %b",
                              sl_lua_scripts[SL_LUA_PIECE], k->tenant, k->id, k->tenant, k->id,
                              k->tenant, k->id, k->tenant, k->tenant, k->id, i * PIECE,
                              SL_REDIS_UPLOAD_LIFE_MS, whole + i * PIECE, (size_t)PIECE);
    assert_int_equal(r->type, REDIS_REPLY_ARRAY);
    assert_string_equal(r->element[0]->str, word);
    freeReplyObject(r);
}

static void uploaded_are(const struct sl_store_key *k, int n)
{
    redisReply *r = redis_ask(&redis, "GET slate1:{%s/%s}:s:n", k->tenant, k->id);
    assert_int_equal(r->type, REDIS_REPLY_STRING);
    assert_int_equal(r->len, n * PIECE);
    assert_memory_equal(r->str, whole, (size_t)(n * PIECE));
    freeReplyObject(r);
    r = redis_ask(&redis, "PTTL slate1:{%s/%s}:s:n", k->tenant, k->id);
    assert_true(r->integer > SL_REDIS_UPLOAD_LIFE_MS / 2);
    freeReplyObject(r);
}

/* A connection that was given up still brings what it had: a piece after those that the next one
 * has brought, which it takes nothing from. Nor is one taken that leaves a hole. */
static void test_a_piece_that_comes_late(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    send_piece(&k, 1, "missing");
    send_piece(&k, 0, "ok");
    send_piece(&k, 2, "missing");
    uploaded_are(&k, 1);
    send_piece(&k, 1, "ok");
    redis_do(&redis, "PEXPIRE slate1:{%s/%s}:s:n %d", k.tenant, k.id, SL_REDIS_UPLOAD_LIFE_MS / 4);
    send_piece(&k, 0, "ok");
    uploaded_are(&k, 2);
    send_piece(&k, 2, "ok");
    uploaded_are(&k, PIECES);
    send_piece(&k, 1, "ok");
    uploaded_are(&k, PIECES);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_repeated_after_others_came),
        cmocka_unit_test(test_a_session_that_is_made_once),
        cmocka_unit_test(test_which_repetitions_are_not_known),
        cmocka_unit_test(test_a_repetition_that_redis_refuses),
        cmocka_unit_test(test_a_snapshot_repeated_after_others_came),
        cmocka_unit_test(test_a_snapshot_that_is_kept_by_then),
        cmocka_unit_test(test_a_piece_that_comes_late),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
