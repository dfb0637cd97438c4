/* redis_wait_test.c: what waits for what in the `redis://` store, and what does not: leases are
 * renewed beside snapshots, and transfers that wait for others have time for that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/redis.h"
#include "tests/support/redis_shop.h"

/* --- a lease that is renewed while a snapshot is written
 * ----------------------------------------*/

struct renewal {
    struct got got;
    const struct got *upload;
    int n_uploaded; /* when it was renewed */
};

static void on_renewed(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct renewal *n = arg;
    n->n_uploaded = n->upload->n_called;
    on_got(&n->got, code, err);
}

static void test_a_lease_is_renewed_beside_a_snapshot(void **state)
{
    (void)state;
    enum { SIZE = 4 * SL_REDIS_PIECE };
    struct shop *a = new_redis_shop();
    struct got upload;
    struct renewal n = {.upload = &upload};
    do_create(a, 0);
    shop_run(a);
    struct sl_store_key k = shop_key(a, 0);
    k.fence = take(a, &k, NULL).view.head.key.fence;
    struct sl_store_head h = {.key = k, .version = 1, .used_at = a->base};
    unsigned char *p = sl_calloc(1, SIZE);
    assert_non_null(p);
    sl_store_put_snapshot(a->store, &k, 1, &h, p, SIZE, on_got, expect(a, &upload));
    expect(a, &n.got);
    sl_store_renew(a->store, &k, on_renewed, &n);
    shop_run(a);
    assert_int_equal(n.got.code, SL_OK);
    assert_int_equal(upload.code, SL_OK);
    assert_int_equal(n.n_uploaded, 0);
    /* It comes beside a turn, too, which ends the lease: then there is none to renew. */
    struct sl_store_turn t = {.version = 2, .used_at = a->base, .continuation = {"{}", 2}};
    sl_store_append_turn(a->store, &k, &t, on_got, expect(a, &upload));
    expect(a, &n.got);
    sl_store_renew(a->store, &k, on_renewed, &n);
    shop_run(a);
    assert_int_equal(upload.code, SL_OK);
    assert_int_equal(n.got.code, SL_E_LEASE_LOST);
    assert_int_equal(n.n_uploaded, 1); /* who asks has heard of the turn by then */
    assert_false(look(a, &k).view.held);
    free_shop(a);
}

/* --- transfers that wait for others --------------------------------------------------------------
 */

/* A call may take so long here. */
static const struct sl_store_options brief = {.durable = true, .timeout_ms = 500};

enum { FIRST = SL_REDIS_TRANSFERS_MAX, LATER = 2, LOADS = FIRST + LATER };

struct burst {
    struct shop *st;
    struct got got[LOADS], put;
    uv_timer_t timer;
    uv_async_t all_there;
    bool timer_over, first_are_at_it;
    uv_mutex_t lock;
    uv_cond_t let_go;
    int n_there;
    bool may_go;
};

static struct burst burst;

/* In the pool: the first ones stay there until they may go. */
static enum sl_code hold(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct burst *b = &burst;
    (void)arg;
    (void)r;
    (void)err;
    uv_mutex_lock(&b->lock);
    if (++b->n_there == FIRST)
        uv_async_send(&b->all_there);
    while (!b->may_go)
        uv_cond_wait(&b->let_go, &b->lock);
    uv_mutex_unlock(&b->lock);
    return SL_OK;
}

static void on_all_there(uv_async_t *a)
{
    (void)a;
    burst.first_are_at_it = true;
}

static void on_time(uv_timer_t *t)
{
    (void)t;
    burst.timer_over = true;
}

static void let_go(struct burst *b)
{
    uv_mutex_lock(&b->lock);
    b->may_go = true;
    uv_cond_broadcast(&b->let_go);
    uv_mutex_unlock(&b->lock);
}

/* As many transfers as there may be are at it, and some wait behind them: loads, and a snapshot. */
static struct burst *begin_burst(void)
{
    struct burst *b = &burst;
    struct shop *maker = new_redis_shop();
    *b = (struct burst){.st = other_redis_shop_with(&brief)};
    struct shop *st = b->st;
    assert_int_equal(uv_mutex_init(&b->lock), 0);
    assert_int_equal(uv_cond_init(&b->let_go), 0);
    uv_timer_init(&st->loop, &b->timer);
    uv_async_init(&st->loop, &b->all_there, on_all_there);
    struct sl_store_key keys[LOADS + 1];
    for (size_t i = 0; i <= LOADS; i++) {
        do_create(maker, i);
        do_turn(maker, i, false);
        do_snapshot(maker, i, 100);
    }
    shop_run(maker);
    assert_int_equal(maker->n_failed, 0);
    for (size_t i = 0; i <= LOADS; i++)
        keys[i] = shop_key(maker, i);
    for (size_t i = 0; i < LOADS; i++)
        sl_store_load(st->store, &keys[i], i < FIRST ? hold : NULL, on_got_loaded,
                      expect(st, &b->got[i]));
    while (!b->first_are_at_it)
        uv_run(&st->loop, UV_RUN_ONCE);
    unsigned char *p = sl_calloc(1, 100);
    assert_non_null(p);
    sl_store_put_snapshot(st->store, &keys[LOADS], 1, NULL, p, 100, on_got, expect(st, &b->put));
    free_shop(maker);
    return b;
}

static void end_burst(struct burst *b)
{
    uv_close((uv_handle_t *)&b->timer, NULL);
    uv_close((uv_handle_t *)&b->all_there, NULL);
    free_shop(b->st);
    uv_cond_destroy(&b->let_go);
    uv_mutex_destroy(&b->lock);
}

/* For longer than a call may take: Redis is well, so nobody is told that it does not answer. */
static void test_a_transfer_waits_for_others(void **state)
{
    (void)state;
    struct burst *b = begin_burst();
    uv_timer_start(&b->timer, on_time, 3 * brief.timeout_ms, 0);
    while (!b->timer_over)
        uv_run(&b->st->loop, UV_RUN_ONCE);
    for (size_t i = 0; i < LOADS; i++)
        assert_int_equal(b->got[i].n_called, 0);
    let_go(b);
    shop_run(b->st);
    for (size_t i = 0; i < LOADS; i++)
        assert_int_equal(b->got[i].code, SL_OK);
    assert_int_equal(b->put.code, SL_OK);
    end_burst(b);
}

/* But not for ever on a Redis that is gone. */
static void test_a_transfer_that_waits_is_told_that_redis_is_away(void **state)
{
    (void)state;
    struct burst *b = begin_burst();
    redis_end(&redis, SIGKILL);
    while (b->st->n_waiting > FIRST)
        uv_run(&b->st->loop, UV_RUN_ONCE);
    for (size_t i = FIRST; i < LOADS; i++)
        assert_int_equal(b->got[i].code, SL_E_STORE_UNAVAILABLE);
    assert_int_equal(b->put.code, SL_E_STORE_UNAVAILABLE); /* nothing of it was sent */
    let_go(b);
    shop_run(b->st);
    for (size_t i = 0; i < FIRST; i++) /* they had all they need */
        assert_int_equal(b->got[i].code, SL_OK);
    redis_start(&redis);
    end_burst(b);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lease_is_renewed_beside_a_snapshot),
        cmocka_unit_test(test_a_transfer_waits_for_others),
        cmocka_unit_test(test_a_transfer_that_waits_is_told_that_redis_is_away),
    };
    return cmocka_run_group_tests(tests, start_redis, end_redis);
}
