/* redis_store_test.c: the `redis://` store as its callers see it, against a model and the real
 * Redis: what every store must do (store_suite.h), times to live, lists, and what is wrong with an
 * answer. Leases are redis_lease_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"
#include "tests/support/redis_shop.h"

static void reopen_sometimes(struct shop *st, int round)
{
    if (round % 4 == 3)
        check_twice(st);
}

static void test_random_changes(void **state)
{
    (void)state;
    suite_random_changes(new_redis_shop(), reopen_sometimes);
}

/* --- earlier versions ------------------------------------------------------------------------*/

static void check_past(struct shop *st, int round)
{
    assert_int_equal(shop_check_past(st), 0);
    reopen_sometimes(st, round);
}

/* The same, and each of the last versions is still there; and all that is kept goes with it. */
static void test_random_changes_kept(void **state)
{
    (void)state;
    static const uint64_t keep[] = {0, 1, 4};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        struct shop *st = new_redis_shop_keeping(keep[i]);
        suite_random_changes(st, check_past);
    }
}

static void test_nothing_kept_is_left(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop_keeping(4);
    do_create(st, 0);
    for (int i = 0; i < 20; i++) {
        do_turn(st, 0, false);
        do_snapshot(st, 0, 1000);
        if (i % 7 == 2)
            do_name(st, 0, 3);
        shop_run(st);
        /* the form's number, counts, head, lists of ids, turns, kept ones, names; and the
         * snapshots, of which each name holds one at most */
        assert_true(redis_n_keys(&redis) <= 9 + 5 + (long long)st->v[0].n_names);
    }
    assert_int_equal(st->v[0].n_names, 3);
    assert_int_equal(shop_check_past(st), 0);
    do_remove(st, 0);
    shop_run(st);
    assert_int_equal(redis_n_keys(&redis), 1);
    free_shop(st);
}

static void test_a_name_behind_the_last_turns(void **state)
{
    (void)state;
    suite_a_name_behind_the_last_turns(new_redis_shop_keeping(2));
}

/* A snapshot that comes late, when there are later turns: what is behind a name goes with the next
 * one. */
static void test_a_late_snapshot(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop_keeping(1);
    do_create(st, 0);
    for (int i = 0; i < 4; i++)
        do_turn(st, 0, false);
    do_snapshot(st, 0, 400);
    do_name(st, 0, 0);
    shop_run(st);
    for (int i = 0; i < 6; i++)
        do_turn(st, 0, false);
    shop_run(st);
    do_old_snapshot(st, 0, 3, 700);
    do_turn(st, 0, false);
    shop_run(st);
    expect_versions(st, "4 7 8 9 10 11");
    assert_int_equal(shop_check_past(st), 0);
    free_shop(st);
}

/* --- while there is no Redis -------------------------------------------------------------------*/

enum { CALLS = 1000 };

struct callers {
    struct shop *st;
    uv_timer_t timer;
    unsigned n_called, n_told;
};

static void on_told_none(void *arg, const struct sl_store_view *v, const struct sl_error *err)
{
    struct callers *c = arg;
    assert_null(v);
    assert_int_equal(err->code, SL_E_STORE_UNAVAILABLE);
    c->st->n_waiting--;
    c->n_told++;
}

static void call_once_more(uv_timer_t *timer)
{
    struct callers *c = timer->data;
    char id[16];
    snprintf(id, sizeof id, "c%u", c->n_called);
    c->st->n_waiting++;
    sl_store_look(c->st->store, "default", id, on_told_none, c);
    if (++c->n_called == CALLS)
        uv_timer_stop(timer);
}

/* Whenever a call comes, also in the very round of the loop in which deadlines are looked at. */
static void test_every_call_is_told_that_redis_is_away(void **state)
{
    (void)state;
    static struct callers c;
    static const struct sl_store_options brief = {.durable = true, .timeout_ms = 100};
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &brief);
    shop_must_open(st);
    c = (struct callers){.st = st};
    redis_end(&redis, SIGTERM);
    uv_timer_init(&st->loop, &c.timer);
    c.timer.data = &c;
    uv_timer_start(&c.timer, call_once_more, 1, 1);
    while (c.n_told < CALLS)
        uv_run(&st->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&c.timer, NULL);
    assert_int_equal(st->n_waiting, 0);
    redis_start(&redis);
    free_shop(st);
}

/* --- times to live, lists, limits --------------------------------------------------------------*/

static void make(struct shop *st, const char *tenant, const char *id, int64_t ttl_s,
                 int64_t used_at, enum sl_code code)
{
    struct got g;
    struct sl_store_head h = {.key = {.tenant = tenant, .id = id},
                              .created_at = used_at,
                              .used_at = used_at,
                              .ttl_s = ttl_s};
    for (size_t i = 0; id[i]; i++)
        h.key.incarnation[i % 16] = (unsigned char)(id[i] + ttl_s);
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, code);
}

static void test_times_to_live(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    int64_t now = st->base;
    make(st, "t", "over", 10, now - 11, SL_OK);
    make(st, "t", "there", 100, now - 11, SL_OK);
    make(st, "t", "ever", 0, 5, SL_OK);
    struct sl_store_key k = {.tenant = "t", .id = "over"};
    assert_int_equal(look(st, &k).code, SL_E_SESSION_NOT_FOUND);
    assert_int_equal(take(st, &k, NULL).code, SL_E_SESSION_NOT_FOUND);
    make(st, "t", "over", 11, now, SL_OK); /* a new life: the old one is not in the way */
    assert_int_equal(look(st, &k).code, SL_OK);
    make(st, "t", "over", 12, now, SL_E_SESSION_EXISTS);
    make(st, "t", "gone", 10, now - 11, SL_OK);
    assert_int_equal(shop_sessions(st), 3); /* a sweep took it */
    redisReply *r = redis_ask(&redis, "EXISTS slate1:{t/gone} slate1:{t/ever}");
    assert_int_equal(r->integer, 1);
    freeReplyObject(r);
    k.id = "there"; /* it is used: its time begins anew */
    struct sl_store_key held = take(st, &k, NULL).view.head.key;
    held.tenant = "t";
    held.id = "there";
    assert_int_equal(release(st, &held), SL_OK);
    assert_true(look(st, &k).view.head.used_at >= now);
    assert_true(sl_store_now(st->store) >= now && sl_store_now(st->store) < now + 60);
    free_shop(st);
}

struct page {
    struct shop *st;
    char ids[200];
    bool more;
};

static void on_page(void *arg, const struct sl_store_view *v, size_t n, bool more,
                    const struct sl_error *err)
{
    struct page *p = arg;
    p->st->n_waiting--;
    p->more = more;
    p->ids[0] = '\0';
    assert_null(err);
    for (size_t i = 0; i < n; i++)
        snprintf(p->ids + strlen(p->ids), sizeof p->ids - strlen(p->ids), "%s ", v[i].head.key.id);
}

static void expect_page(struct shop *st, const char *after, const char *prefix, size_t limit,
                        const char *ids, bool more)
{
    struct page p = {.st = st};
    struct sl_list_query q = {.limit = limit};
    snprintf(q.after, sizeof q.after, "%s", after);
    snprintf(q.prefix, sizeof q.prefix, "%s", prefix);
    st->n_waiting++;
    sl_store_list(st->store, "t", &q, on_page, &p);
    shop_run(st);
    assert_string_equal(p.ids, ids);
    assert_int_equal(p.more, more);
}

static void test_lists(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    static const char *const ids[] = {"b", "a", "ab", "B", "ac", "_", "abc", "z"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        make(st, "t", ids[i], 0, st->base, SL_OK);
    make(st, "u", "other", 0, st->base, SL_OK);
    make(st, "t", "abb", 5, st->base - 100, SL_OK); /* its time is over */
    expect_page(st, "", "", 100, "B _ a ab abc ac b z ", false);
    expect_page(st, "", "", 3, "B _ a ", true);
    expect_page(st, "a", "", 3, "ab abc ac ", true);
    expect_page(st, "ac", "", 3, "b z ", false);
    expect_page(st, "", "ab", 100, "ab abc ", false);
    expect_page(st, "ab", "ab", 1, "abc ", false);
    expect_page(st, "", "ab", 1, "ab ", true);
    expect_page(st, "z", "", 9, "", false);
    expect_page(st, "", "q", 9, "", false);
    free_shop(st);
}

static void test_as_many_as_there_may_be(void **state)
{
    (void)state;
    struct shop *st = calloc(1, sizeof *st);
    struct sl_store_options few = redis_options;
    few.max_sessions = 2;
    assert_non_null(st);
    redis_do(&redis, "FLUSHALL");
    shop_init_spec(st, redis.spec, &few);
    shop_must_open(st);
    make(st, "t", "a", 0, st->base, SL_OK);
    make(st, "u", "b", 0, st->base, SL_OK);
    make(st, "t", "c", 0, st->base, SL_E_SESSIONS_FULL);
    free_shop(st);
}

/* --- what is damaged ---------------------------------------------------------------------------*/

static void must_not_load(struct shop *st, size_t i, enum sl_code code, const char *text)
{
    struct sl_error err;
    assert_int_equal(shop_load(st, i, &err), code);
    if (!strstr(err.message, text))
        fail_msg("'%s' instead of '%s'", err.message, text);
}

/* What a hash that was evicted has left behind is nothing of a session of that name that is made.
 */
static void test_a_new_life_has_nothing_of_another(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    static const char *const left[] = {"t", "a", "k"};
    for (size_t i = 0; i < 2; i++) { /* by a head, by a snapshot */
        struct sl_store_key key = shop_key(st, i);
        for (size_t k = 0; k < 3; k++)
            redis_do(&redis, "RPUSH slate1:{%s/%s}:%s left", key.tenant, key.id, left[k]);
        if (i)
            do_restore(st, i, 100);
        else
            do_create(st, i);
        shop_run(st);
        for (size_t k = 0; k < 3; k++) {
            redisReply *r =
                redis_ask(&redis, "EXISTS slate1:{%s/%s}:%s", key.tenant, key.id, left[k]);
            if (r->integer)
                fail_msg("s%zu:%s is there", i, left[k]);
            freeReplyObject(r);
        }
    }
    assert_int_equal(shop_check(st), 0);
    free_shop(st);
}

/* --- another Redis of that name ----------------------------------------------------------------*/

static int port_now;

static redisAsyncContext *connect_now(const char *ip, int port)
{
    (void)port;
    return sl_redis_io_system.connect(ip, port_now);
}

/* It has become a replica and keeps its connections, as after a fail-over; its name leads to
 * another one by then, which is found. */
static void test_a_replica_is_left(void **state)
{
    (void)state;
    struct redis other;
    struct sl_store_options opt = redis_options;
    struct sl_redis_io io = sl_redis_io_system;
    io.connect = connect_now;
    opt.redis_io = &io;
    port_now = (int)redis.port;
    struct shop *first = new_redis_shop(), *st = other_redis_shop_with(&opt);
    struct sl_store_key key[2];
    struct got g[2];
    const struct sl_store_turn t = {.version = 1, .used_at = st->base, .continuation = {"{}", 2}};
    for (size_t i = 0; i < 2; i++) {
        do_create(first, i);
        shop_run(first);
        key[i] = shop_key(first, i);
        key[i].fence = take(st, &key[i], NULL).view.head.key.fence;
    }
    redis_init(&other, "other", NULL);
    redis_do(&redis, "REPLICAOF 127.0.0.1 1");
    port_now = (int)other.port;
    /* Sent at once, both are refused: of neither it is unknown whether it counts. */
    for (size_t i = 0; i < 2; i++)
        sl_store_append_turn(st->store, &key[i], &t, on_got, expect(st, &g[i]));
    shop_run(st);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(g[i].code, SL_E_STORE_UNAVAILABLE);
    const struct sl_store_key k = key[0];
    enum sl_code c = SL_E_STORE_UNAVAILABLE;
    for (int i = 0; c == SL_E_STORE_UNAVAILABLE && i < 100; i++)
        c = turn(st, &k, 1); /* until it is asked at the other one, which does not have it */
    assert_int_equal(c, SL_E_SESSION_NOT_FOUND);
    redis_do(&redis, "REPLICAOF NO ONE");
    free_shop(st);
    free_shop(first);
    redis_done(&other);
}

/* A failure is one of the store: not what it refuses for what it holds. */
static void test_what_counts_as_a_failure(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    struct sl_store_stats before, after;
    do_create(st, 0);
    shop_run(st);
    sl_store_stats(st->store, &before);
    struct sl_store_key k = shop_key(st, 0);
    k.fence = take(st, &k, NULL).view.head.key.fence;
    assert_int_equal(turn(st, &k, 7), SL_E_VERSION_MISMATCH);
    sl_store_stats(st->store, &after);
    assert_int_equal(after.failures, before.failures);
    redis_do(&redis, "CONFIG SET maxmemory 1");
    assert_int_equal(turn(st, &k, 1), SL_E_STORE_FULL);
    redis_do(&redis, "CONFIG SET maxmemory 0");
    sl_store_stats(st->store, &after);
    assert_int_equal(after.failures, before.failures + 1);
    free_shop(st);
}

static void test_damage_is_named(void **state)
{
    (void)state;
    struct shop *st = new_redis_shop();
    do_create(st, 0);
    for (int i = 0; i < 3; i++)
        do_turn(st, 0, true);
    do_snapshot(st, 0, 3000000);
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(shop_check(st), 0);
    const char *h = "slate1:{default/s0}";
    redisReply *n = redis_ask(&redis, "HGET %s sn", h);
    redis_do(&redis, "SETRANGE %s:s:%s 2000000 damaged", h, n->str);
    must_not_load(st, 0, SL_E_SNAPSHOT_CORRUPT, "its snapshot is not what was written");
    redis_do(&redis, "DEL %s:s:%s", h, n->str);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "the key of its snapshot");
    freeReplyObject(n);
    do_restore(st, 0, 100); /* a new snapshot heals it */
    do_turn(st, 0, true);
    shop_run(st);
    assert_int_equal(shop_check(st), 0);
    redis_do(&redis, "LSET %s:a 0 nonsense", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "an answer is not what was written");
    redis_do(&redis, "DEL %s:a", h);
    redis_do(&redis, "LSET %s:t 0 00000000000000000005", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "a turn is not what was written");
    redis_do(&redis, "DEL %s:t", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "the list of its turns");
    redis_do(&redis, "SET %s:t text", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "a key holds something else");
    redis_do(&redis, "HSET %s ver x", h);
    redis_do(&redis, "DEL %s:t", h);
    must_not_load(st, 0, SL_E_STORE_CORRUPT, "its head is not what was written");
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    suite_new_shop = new_redis_shop;
    suite_too_large = "a turn may have 256 MiB in the store";
    const struct CMUnitTest tests[] = {
        STORE_SUITE,
        cmocka_unit_test(test_random_changes),
        cmocka_unit_test(test_random_changes_kept),
        cmocka_unit_test(test_nothing_kept_is_left),
        cmocka_unit_test(test_a_name_behind_the_last_turns),
        cmocka_unit_test(test_a_late_snapshot),
        cmocka_unit_test(test_every_call_is_told_that_redis_is_away),
        cmocka_unit_test(test_times_to_live),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_as_many_as_there_may_be),
        cmocka_unit_test(test_damage_is_named),
        cmocka_unit_test(test_a_new_life_has_nothing_of_another),
        cmocka_unit_test(test_what_counts_as_a_failure),
        cmocka_unit_test(test_a_replica_is_left),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
