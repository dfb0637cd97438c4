/* batch_test.c: who runs in the next step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/batch.h"
#include "tests/support/floats.h"

#define D                                                                                          \
    {                                                                                              \
        SL_BATCH_DECODE, 1, 0                                                                      \
    }
#define P(n)                                                                                       \
    {                                                                                              \
        SL_BATCH_PREFILL, n, 0                                                                     \
    }
#define R(n)                                                                                       \
    {                                                                                              \
        SL_BATCH_REPLAY, n, 0                                                                      \
    }

static void test_alone_gets_the_whole_step(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(2000)};
    sl_batch_init(&b, 512);
    sl_batch_pick(&b, e, 1);
    assert_int_equal(e[0].take, 512);
}

static void test_decode_and_replay_come_first(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(2000), D, R(9), D};
    sl_batch_init(&b, 64);
    sl_batch_pick(&b, e, 4);
    assert_int_equal(e[1].take, 1);
    assert_int_equal(e[3].take, 1);
    assert_int_equal(e[2].take, 9);
    assert_in_range(e[0].take, 16, 32); /* beside decoding, nothing measured yet */
}

/* Measured: 10 ms a step of decode, 1 ms a row of prefill: 15 rows fit in 2.5 steps' time. */
static void test_prefill_beside_decode_is_bounded_by_time(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {D, P(2000)};
    sl_batch_init(&b, 512);
    for (int i = 0; i < 50; i++) {
        sl_batch_observe(&b, 1, 0, 10000);
        sl_batch_observe(&b, 0, 100, 25000);
    }
    sl_batch_pick(&b, e, 2);
    assert_int_equal(e[1].take, 60); /* 1.5 · 10 ms / 0.25 ms */
}

static void test_short_prompts_pass_a_long_one(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(100000), P(22), P(30)};
    sl_batch_init(&b, 512);
    sl_batch_pick(&b, e, 3);
    assert_int_equal(e[1].take, 22);
    assert_int_equal(e[2].take, 30);
    assert_int_equal(e[0].take, 512 - 52);
}

/* More prompts than rows: within a few steps each has had its share. */
static void test_nobody_starves(void **state)
{
    (void)state;
    enum { N = 40 };
    struct sl_batch b;
    size_t got[N] = {0};
    sl_batch_init(&b, N + 16);
    for (int step = 0; step < 200; step++) {
        struct sl_batch_entry e[N];
        for (size_t i = 0; i < N; i++)
            e[i] = (struct sl_batch_entry){i < 24 ? SL_BATCH_DECODE : SL_BATCH_PREFILL,
                                           i < 24 ? 1 : 1000, 0};
        sl_batch_pick(&b, e, N);
        for (size_t i = 0; i < N; i++)
            got[i] += e[i].take;
    }
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(got[i], 200);
    for (size_t i = 24; i < N; i++)
        assert_in_range(got[i], 200, 500);
}

/* Whatever is asked: never more than wanted, never more than the step, never nothing at all. */
static void test_bounds_hold_for_random_wishes(void **state)
{
    (void)state;
    uint64_t seed = 7;
    struct sl_batch b;
    sl_batch_init(&b, 48);
    for (int round = 0; round < 20000; round++) {
        struct sl_batch_entry e[32];
        size_t n = 1 + next_random(&seed) % 32, rows = 0;
        for (size_t i = 0; i < n; i++) {
            enum sl_batch_kind kind = (enum sl_batch_kind)(next_random(&seed) % 3);
            e[i] = (struct sl_batch_entry){
                kind, kind == SL_BATCH_DECODE ? 1 : 1 + next_random(&seed) % 70, 9};
        }
        sl_batch_pick(&b, e, n);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(e[i].take, 0, e[i].want);
            if (e[i].kind == SL_BATCH_DECODE)
                assert_int_equal(e[i].take, 1);
            rows += e[i].take;
        }
        assert_in_range(rows, 1, 48);
        sl_batch_observe(&b, rows / 2, rows - rows / 2, (double)(next_random(&seed) % 100000));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_gets_the_whole_step),
        cmocka_unit_test(test_decode_and_replay_come_first),
        cmocka_unit_test(test_prefill_beside_decode_is_bounded_by_time),
        cmocka_unit_test(test_short_prompts_pass_a_long_one),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_bounds_hold_for_random_wishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
