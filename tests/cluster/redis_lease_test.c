/* redis_lease_test.c: leases and fences of the `redis://` store, and what one server asks of
 * another's turns, on the real Redis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"
#include "tests/support/redis_shop.h"

static void set_lease_over(const struct sl_store_key *k)
{
    redis_do(&redis, "HSET slate1:{%s/%s} lu 1", k->tenant, k->id);
}

/* The key of a session with the fence of a lease that this server takes. */
static struct sl_store_key taken_by(struct shop *st, const struct sl_store_key *k)
{
    struct sl_store_key held = *k;
    held.fence = take(st, k, NULL).view.head.key.fence;
    return held;
}

static void remove_held(struct shop *st, const struct sl_store_key *held)
{
    struct got g;
    sl_store_remove(st->store, held, on_got, expect(st, &g));
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
}

static void test_one_holder_at_a_time(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0);
    assert_false(look(b, &k).view.held);
    struct seen s = take(a, &k, "my-key");
    assert_int_equal(s.code, SL_OK);
    uint64_t first = s.view.head.key.fence;
    assert_true(first > 0);
    assert_memory_equal(s.view.head.key.incarnation, k.incarnation, 16);
    struct sl_store_key held = k;
    held.fence = first;
    s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_E_SESSION_BUSY);
    assert_string_equal(s.held_key, "my-key");
    assert_int_equal(s.view.head.key.fence, 0);
    s = look(b, &k);
    assert_true(s.view.held);
    assert_string_equal(s.held_key, "my-key");
    /* Nobody else changes it, not even without any fence. */
    assert_int_equal(turn(b, &k, 1), SL_E_SESSION_BUSY);
    assert_int_equal(renew(a, &held), SL_OK);
    /* Its own server takes it anew: it has lost the answer to a release. */
    s = take(a, &k, NULL);
    uint64_t second = s.view.head.key.fence;
    assert_true(second > first);
    assert_int_equal(renew(a, &held), SL_E_LEASE_LOST);
    assert_int_equal(turn(a, &held, 1), SL_E_LEASE_LOST);
    held.fence = second;
    assert_int_equal(turn(a, &held, 1), SL_OK); /* which releases it */
    s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_OK);
    assert_int_equal(s.view.head.version, 1);
    held.fence = s.view.head.key.fence;
    assert_true(held.fence > second);
    assert_int_equal(release(b, &held), SL_OK);
    assert_int_equal(release(b, &held), SL_OK); /* again: nothing */
    assert_true(take(a, &k, NULL).view.head.key.fence > held.fence);
    free_shop(b);
    free_shop(a);
}

/* What a server does that slept through the end of its lease. */
static void test_a_lease_that_is_over(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    do_create(a, 1);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), late = k, free = shop_key(a, 1);
    late.fence = take(a, &k, NULL).view.head.key.fence;
    set_lease_over(&k);
    assert_false(look(b, &k).view.held);
    struct sl_store_key held = k;
    held.fence = take(b, &k, NULL).view.head.key.fence;
    assert_true(held.fence > late.fence);
    assert_int_equal(turn(a, &late, 1), SL_E_LEASE_LOST);
    struct got g;
    struct sl_store_head h = {.key = late, .version = 0, .used_at = a->base};
    sl_store_put_head(a->store, &h, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    sl_store_remove(a->store, &late, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    unsigned char *p = sl_malloc(10);
    assert_non_null(p);
    memset(p, 0, 10);
    h.version = 1;
    sl_store_put_snapshot(a->store, &late, 1, &h, p, 10, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    assert_int_equal(release(a, &late), SL_OK); /* of its own, which is gone: not of the other's */
    assert_true(look(a, &k).view.held);
    assert_int_equal(turn(b, &held, 1), SL_OK);
    assert_int_equal(turn(a, &late, 2), SL_E_LEASE_LOST);
    assert_int_equal(look(a, &k).view.head.version, 1);
    /* Nor does one count that was given back. */
    late.fence = take(a, &k, NULL).view.head.key.fence;
    assert_int_equal(release(a, &late), SL_OK);
    assert_int_equal(turn(a, &late, 2), SL_E_LEASE_LOST);
    /* One that nobody took: nothing has happened since, so it still counts. */
    free.fence = take(a, &free, NULL).view.head.key.fence;
    set_lease_over(&free);
    assert_int_equal(renew(a, &free), SL_OK);
    set_lease_over(&free);
    assert_int_equal(turn(a, &free, 1), SL_OK);
    free_shop(b);
    free_shop(a);
}

/* What one server still says of a lease does nothing to one of another session that has the name
 * by then, nor to one that a copy of the store gave which had not heard of the first. */
static void test_fences_are_of_one_lease_alone(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), late = taken_by(a, &k);
    set_lease_over(&k);
    struct sl_store_key held = taken_by(b, &k);
    remove_held(b, &held);
    do_create(a, 0);
    shop_run(a);
    held = taken_by(b, &k);
    assert_true(held.fence > late.fence);
    assert_int_equal(renew(a, &late), SL_E_LEASE_LOST);
    assert_int_equal(release(a, &late), SL_OK);
    assert_true(look(a, &k).view.held);

    late.fence = held.fence;
    redis_do(&redis, "HMSET slate1:{%s/%s} fen 0 lh '' lu 0", k.tenant, k.id);
    held.fence = take(a, &k, NULL).view.head.key.fence;
    assert_true(held.fence > late.fence);
    assert_int_equal(release(b, &late), SL_OK);
    assert_true(look(b, &k).view.held);
    free_shop(b);
    free_shop(a);
}

static void put_late(struct shop *st, const struct sl_store_key *k, uint64_t version)
{
    struct got g;
    struct sl_store_head h = {.key = *k, .version = version, .used_at = st->base};
    unsigned char *p = sl_calloc(10, 1);
    assert_non_null(p);
    if (version) {
        sl_store_put_snapshot(st->store, k, version, &h, p, 10, on_got, expect(st, &g));
    } else {
        sl_free(p);
        sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    }
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "no session");
}

/* What is written under a lease after the session was deleted makes no other one, not where there
 * is one of its name by then. */
static void test_nothing_comes_back(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), late = taken_by(a, &k);
    set_lease_over(&k);
    const struct sl_store_key held = taken_by(b, &k);
    remove_held(b, &held);
    put_late(a, &late, 0);
    put_late(a, &late, 1);
    assert_int_equal(look(b, &k).code, SL_E_SESSION_NOT_FOUND);

    do_create(a, 0);
    shop_run(a);
    k = shop_key(a, 0);
    assert_memory_not_equal(k.incarnation, late.incarnation, sizeof k.incarnation);
    redis_do(&redis, "HMSET slate1:{%s/%s} ttl 1 use 1", k.tenant, k.id); /* it has expired */
    put_late(a, &late, 0);
    put_late(a, &late, 1);
    free_shop(b);
    free_shop(a);
}

/* Redis' clock was set back: a lease of before would be one for ever. */
static void test_a_clock_that_was_set_back(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), held = k;
    assert_int_equal(take(a, &k, NULL).code, SL_OK);
    assert_int_equal(take(b, &k, NULL).code, SL_E_SESSION_BUSY);
    redis_do(&redis, "HINCRBY slate1:{%s/%s} lu 3600000", k.tenant, k.id);
    assert_false(look(b, &k).view.held);
    struct seen s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_OK);
    held.fence = s.view.head.key.fence;
    assert_int_equal(turn(b, &held, 1), SL_OK);
    free_shop(b);
    free_shop(a);
}

static void expect_form(const char *form)
{
    redisReply *r = redis_ask(&redis, "GET slate1:schema");
    assert_string_equal(r->str, form);
    freeReplyObject(r);
}

/* Checkpoints' names are changed under the lease, too. The first one makes the store one that
 * servers without them do not take. */
static void test_names_and_leases(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    do_create(a, 0);
    do_turn(a, 0, false);
    shop_run(a);
    struct got g;
    struct sl_store_key k = shop_key(a, 0), late = k, held = k;
    late.fence = take(a, &k, NULL).view.head.key.fence;
    sl_store_put_name(b->store, &k, 1, "x", 1, on_got, expect(b, &g));
    must_fail(b, &g, SL_E_SESSION_BUSY, "another server is at it");
    expect_form("1");
    sl_store_put_name(a->store, &late, 1, "x", 1, on_got, expect(a, &g));
    shop_run(a);
    assert_int_equal(g.code, SL_OK);
    expect_form("2");
    assert_int_equal(look(b, &k).view.head.n_names, 1);
    sl_store_drop_name(b->store, &k, 1, "x", on_got, expect(b, &g));
    must_fail(b, &g, SL_E_SESSION_BUSY, "another server is at it");
    set_lease_over(&k);
    held.fence = take(b, &k, NULL).view.head.key.fence;
    sl_store_put_name(a->store, &late, 1, "y", 1, on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    sl_store_drop_name(a->store, &late, 1, "x", on_got, expect(a, &g));
    must_fail(a, &g, SL_E_LEASE_LOST, "another server took it");
    assert_int_equal(look(a, &k).view.head.n_names, 1);
    sl_store_drop_name(b->store, &held, 1, "x", on_got, expect(b, &g));
    shop_run(b);
    assert_int_equal(g.code, SL_OK);
    assert_int_equal(look(a, &k).view.head.n_names, 0);
    free_shop(b);
    free_shop(a);
}

/* --- leases whose calls were given up ----------------------------------------------------------*/

/* It gives up soon, and the leases that it takes are long. */
static const struct sl_store_options hasty = {
    .durable = true, .timeout_ms = 500, .lease_ms = 100000};

static time_t in_time(void)
{
    return time(NULL) + REDIS_DEADLINE_MS / 1000;
}

static uint64_t last_fence(const struct sl_store_key *k)
{
    redisReply *r = redis_ask(&redis, "HGET slate1:{%s/%s} fen", k->tenant, k->id);
    uint64_t n = strtoull(r->str, NULL, 10);
    freeReplyObject(r);
    return n;
}

static void connect_first(struct shop *st, const struct sl_store_key *k)
{
    time_t end = in_time();
    while (look(st, k).code != SL_OK)
        assert_true(time(NULL) < end);
}

/* Redis sleeps while it is asked for a lease, which is given up; then it wakes, and does what it
 * was asked for all the same. */
static void take_in_vain(struct shop *st, const struct sl_store_key *k)
{
    uint64_t n = last_fence(k);
    connect_first(st, k);
    redis_signal(&redis, SIGSTOP);
    assert_int_equal(take(st, k, "key").code, SL_E_STORE_UNAVAILABLE);
    redis_signal(&redis, SIGCONT);
    time_t end = in_time();
    while (last_fence(k) == n)
        assert_true(time(NULL) < end);
}

/* Until st's server can reach it again; it is asked as often as it takes. */
static struct seen take_at_last(struct shop *st, const struct sl_store_key *k)
{
    struct seen s;
    time_t end = in_time();
    do {
        assert_true(time(NULL) < end);
        s = take(st, k, NULL);
    } while (s.code == SL_E_STORE_UNAVAILABLE);
    return s;
}

static void until_free(struct shop *st, const struct sl_store_key *k)
{
    struct seen s;
    time_t end = in_time(); /* less than a lease */
    do {
        assert_true(time(NULL) < end);
        s = look(st, k);
    } while (s.code == SL_E_STORE_UNAVAILABLE || s.view.held);
    assert_int_equal(s.code, SL_OK);
}

static void test_what_was_given_up_is_given_back(void **state)
{
    (void)state;
    struct shop *b = new_redis_shop(), *a = other_redis_shop_with(&hasty);
    do_create(b, 0);
    shop_run(b);
    struct sl_store_key k = shop_key(b, 0), held = k;
    take_in_vain(a, &k);
    assert_true(look(b, &k).view.held);
    until_free(a, &k);
    struct seen s = take(b, &k, NULL);
    assert_int_equal(s.code, SL_OK);
    held.fence = s.view.head.key.fence;
    assert_int_equal(turn(b, &held, 1), SL_OK);
    /* A release that never reached Redis. */
    held.fence = take_at_last(a, &k).view.head.key.fence;
    redis_end(&redis, SIGKILL);
    assert_int_equal(release(a, &held), SL_E_STORE_UNAVAILABLE);
    redis_start(&redis);
    assert_true(look(b, &k).view.held);
    until_free(a, &k);
    assert_true(take(b, &k, NULL).view.head.key.fence > held.fence);
    free_shop(a);
    free_shop(b);
}

/* What has been taken since, by the same server or by another one, is not given back with it. */
static void test_what_was_taken_since_stays(void **state)
{
    (void)state;
    struct shop *b = new_redis_shop(), *a = other_redis_shop_with(&hasty);
    do_create(b, 0);
    shop_run(b);
    struct sl_store_key k = shop_key(b, 0), held = k;
    take_in_vain(a, &k);
    struct seen s = take_at_last(a, &k); /* that goes out first */
    assert_int_equal(s.code, SL_OK);
    held.fence = s.view.head.key.fence;
    for (int i = 0; i < 3; i++)
        assert_true(look(a, &k).view.held);
    assert_int_equal(take(b, &k, NULL).code, SL_E_SESSION_BUSY);
    assert_int_equal(turn(a, &held, 1), SL_OK);

    take_in_vain(a, &k);
    set_lease_over(&k);
    held.fence = take(b, &k, NULL).view.head.key.fence;
    for (int i = 0; i < 3; i++)
        connect_first(a, &k);
    assert_true(look(b, &k).view.held);
    assert_int_equal(turn(b, &held, 2), SL_OK);

    held.fence = take_at_last(a, &k).view.head.key.fence;
    redis_end(&redis, SIGKILL);
    assert_int_equal(release(a, &held), SL_E_STORE_UNAVAILABLE);
    redis_start(&redis);
    held.fence = take_at_last(a, &k).view.head.key.fence;
    for (int i = 0; i < 3; i++)
        assert_true(look(a, &k).view.held);
    assert_int_equal(turn(a, &held, 3), SL_OK);
    free_shop(a);
    free_shop(b);
}

/* More than are remembered: the first of them are not. Nor are they by a server that ends. */
static void test_many_are_given_up(void **state)
{
    (void)state;
    enum { MORE = 10, AT = MORE + 5 /* what comes much later finds its connection closed */ };
    static struct seen all[SL_REDIS_OWED_MAX + MORE];
    struct shop *b = new_redis_shop(), *a = other_redis_shop_with(&hasty);
    do_create(b, 0);
    do_create(b, 1);
    shop_run(b);
    struct sl_store_key first = shop_key(b, 0), later = shop_key(b, 1);
    connect_first(a, &later);
    redis_signal(&redis, SIGSTOP);
    for (size_t i = 0; i < SL_REDIS_OWED_MAX + MORE; i++) {
        char id[16];
        snprintf(id, sizeof id, "many-%zu", i);
        const struct sl_store_key none = {.tenant = "default", .id = id};
        const struct sl_store_key *k = i == 0 ? &first : i == AT ? &later : &none;
        all[i].st = a;
        a->n_waiting++;
        sl_store_take(a->store, k->tenant, k->id, NULL, SL_TAKER_CHANGE, on_seen, &all[i]);
    }
    shop_run(a);
    redis_signal(&redis, SIGCONT);
    for (size_t i = 0; i < SL_REDIS_OWED_MAX + MORE; i++)
        assert_int_equal(all[i].code, SL_E_STORE_UNAVAILABLE);
    time_t end = in_time();
    while (last_fence(&later) == 0)
        assert_true(time(NULL) < end);
    until_free(a, &later);
    assert_true(look(a, &first).view.held); /* until its time is over */
    take_in_vain(a, &later);
    free_shop(a);
    assert_true(look(b, &later).view.held);
    free_shop(b);
}

/* --- what one server asks of another's turn ----------------------------------------------------*/

struct asked {
    struct shop *st;
    enum sl_code code;
    bool runs;
    uint64_t fence;
    struct sl_store_asked v[8];
    size_t n;
};

static void on_told(void *arg, bool runs, uint64_t fence, const struct sl_error *err)
{
    struct asked *a = arg;
    a->st->n_waiting--;
    a->code = err ? err->code : SL_OK;
    a->runs = runs;
    a->fence = fence;
}

static struct asked ask(struct shop *st, const struct sl_store_key *k, enum sl_store_ask what,
                        uint64_t fence)
{
    struct asked a = {.st = st};
    st->n_waiting++;
    sl_store_ask(st->store, k->tenant, k->id, what, fence, on_told, &a);
    shop_run(st);
    return a;
}

static void on_heard(void *arg, const struct sl_store_asked *v, size_t n,
                     const struct sl_error *err)
{
    struct asked *a = arg;
    a->st->n_waiting--;
    assert_null(err);
    assert_true(n <= sizeof a->v / sizeof *a->v);
    memcpy(a->v, v, n * sizeof *v);
    a->n = n;
}

static struct asked hear(struct shop *st)
{
    struct asked a = {.st = st};
    st->n_waiting++;
    sl_store_asked(st->store, on_heard, &a);
    shop_run(st);
    return a;
}

static void expect_told(struct asked a, enum sl_code code, bool runs, uint64_t fence)
{
    assert_int_equal(a.code, code);
    assert_int_equal(a.runs, runs);
    assert_int_equal(a.fence, fence);
}

static void test_what_is_asked_of_a_turn(void **state)
{
    (void)state;
    struct shop *a = new_redis_shop(), *b = other_redis_shop();
    struct sl_store_key none = {.tenant = "default", .id = "none"};
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0), held = k;
    expect_told(ask(b, &none, SL_ASK_CANCEL, 0), SL_E_SESSION_NOT_FOUND, false, 0);
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, false, 0);
    held.fence = take(a, &k, NULL).view.head.key.fence;
    assert_int_equal(hear(a).n, 0);
    for (int i = 0; i < 2; i++) /* again: it is one thing that is asked */
        expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, true, held.fence);
    expect_told(ask(b, &k, SL_ASK_PAUSE, held.fence), SL_OK, true, held.fence);
    expect_told(ask(b, &k, SL_ASK_PAUSE, held.fence + 1), SL_OK, false, held.fence);
    redisReply *keys = redis_ask(&redis, "KEYS slate1:asked:?*");
    assert_int_equal(keys->elements, 1);
    redis_do(&redis, "SADD %s nonsense cancel", keys->element[0]->str);
    redisReply *life = redis_ask(&redis, "PTTL %s", keys->element[0]->str);
    assert_true(life->integer > 0); /* it ends by itself */
    freeReplyObject(life);
    freeReplyObject(keys);
    assert_int_equal(hear(b).n, 0);
    struct asked heard = hear(a);
    assert_int_equal(heard.n, 2); /* what nobody can have asked is left out */
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(heard.v[i].tenant, k.tenant);
        assert_string_equal(heard.v[i].id, k.id);
        assert_int_equal(heard.v[i].fence, held.fence);
    }
    assert_int_equal(heard.v[0].what + heard.v[1].what, SL_ASK_CANCEL + SL_ASK_PAUSE);
    assert_int_equal(hear(a).n, 0);
    /* Without room for anything: what ends a turn may be what makes some. */
    redis_do(&redis, "CONFIG SET maxmemory 1");
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, true, held.fence);
    redis_do(&redis, "CONFIG SET maxmemory 0");
    assert_int_equal(hear(a).n, 1);
    assert_int_equal(turn(a, &held, 1), SL_OK);
    expect_told(ask(b, &k, SL_ASK_CANCEL, held.fence), SL_OK, false, held.fence);
    /* Something shorter than a turn cannot be ended. */
    struct seen s = {.st = a};
    a->n_waiting++;
    sl_store_take(a->store, k.tenant, k.id, NULL, SL_TAKER_CHANGE, on_seen, &s);
    shop_run(a);
    assert_int_equal(s.code, SL_OK);
    expect_told(ask(b, &k, SL_ASK_CANCEL, 0), SL_OK, false, s.view.head.key.fence);
    free_shop(b);
    free_shop(a);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_holder_at_a_time),
        cmocka_unit_test(test_a_lease_that_is_over),
        cmocka_unit_test(test_fences_are_of_one_lease_alone),
        cmocka_unit_test(test_nothing_comes_back),
        cmocka_unit_test(test_a_clock_that_was_set_back),
        cmocka_unit_test(test_names_and_leases),
        cmocka_unit_test(test_what_was_given_up_is_given_back),
        cmocka_unit_test(test_what_was_taken_since_stays),
        cmocka_unit_test(test_many_are_given_up),
        cmocka_unit_test(test_what_is_asked_of_a_turn),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
