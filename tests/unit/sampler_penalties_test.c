/* sampler_penalties_test.c: what penalties and biases do to a choice, over turns: against the slow
 * version, by hand, and going on where another sampler stopped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/sampling.h"

/* A turn after another one whose last tokens are in the ring. */
static void check_turn(const struct sl_sampling *p, size_t n, size_t *n_clear, size_t *n_all)
{
    enum { EARLIER = 30, TURN = 25 };
    uint32_t history[EARLIER + TURN];
    struct sl_penalty_ring ring = {.n = slow_rnd(EARLIER + 1)};
    for (size_t i = 0; i < ring.n; i++)
        history[i] = ring.tokens[i] = slow_rnd((uint32_t)n);
    size_t n_history = ring.n;
    size_t turn_begin = p->penalty_last_n ? 0 : n_history;
    struct sl_sampler *s = open_sampler(NULL, n);
    sl_sampler_start(s, p, &ring, 0);
    float *row = make_row(n);
    double *l = calloc(n, sizeof *l);
    for (uint64_t i = 0; i < TURN; i++) {
        for (size_t k = 0; k < n; k++) {
            row[k] = (float)(2 * slow_gauss());
            l[k] = (double)row[k];
        }
        slow_penalise(l, n, p, history + turn_begin, n_history - turn_begin);
        size_t want = slow_choose(l, n, p, i);
        uint32_t got = choose(s, row, n);
        ++*n_all;
        if (want != SIZE_MAX) {
            ++*n_clear;
            assert_int_equal(got, want);
        }
        uint32_t token =
            slow_rnd(3) ? got : slow_rnd((uint32_t)n); /* a replayed head may be another */
        sl_sampler_accept(s, token);
        history[n_history++] = token;
    }
    free(l);
    sl_free(row);
    sl_sampler_close(s);
}

static void test_penalties(void **state)
{
    (void)state;
    slow_seed(4);
    size_t n_clear = 0, n_all = 0;
    for (size_t i = 0; i < 150; i++) {
        size_t n = i % 2 ? 12 : 300;
        struct sl_logit_bias bias[4];
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.seed = i;
        set_penalties(&p);
        p.bias = bias;
        p.n_bias = slow_rnd(5);
        for (size_t k = 0; k < p.n_bias; k++)
            bias[k] = (struct sl_logit_bias){slow_rnd((uint32_t)n), (float)(3 * slow_gauss())};
        check_turn(&p, n, &n_clear, &n_all);
    }
    assert_true(n_clear > n_all * 9 / 10);
}

/* A ring longer than penalty_last_n: only its newest tokens count, and they leave one by one. */
static void test_ring_eviction(void **state)
{
    (void)state;
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.temperature = 0;
    p.presence_penalty = 100;
    p.penalty_last_n = 3;
    struct sl_penalty_ring ring = {.n = 5, .tokens = {0, 1, 2, 3, 4}};
    float *row = make_row(8);
    for (size_t i = 0; i < 8; i++)
        row[i] = -(float)i; /* token 0 is the best, then 1, … */
    struct sl_sampler *s = open_sampler(NULL, 8);
    sl_sampler_start(s, &p, &ring, 0); /* counted: 2 3 4 */
    assert_int_equal(choose(s, row, 8), 0);
    sl_sampler_accept(s, 0); /* 3 4 0 */
    assert_int_equal(choose(s, row, 8), 1);
    sl_sampler_accept(s, 1); /* 4 0 1 */
    assert_int_equal(choose(s, row, 8), 2);
    sl_sampler_accept(s, 2); /* 0 1 2 */
    sl_sampler_accept(s, 5); /* 1 2 5 */
    assert_int_equal(choose(s, row, 8), 0);
    p.penalty_last_n = 0; /* the ring is of no account then */
    sl_sampler_start(s, &p, &ring, 0);
    assert_int_equal(choose(s, row, 8), 0);
    sl_sampler_close(s);
    sl_free(row);
}

/* Starting anew and accepting the same tokens gives the same counts and choices. */
static void test_resume(void **state)
{
    (void)state;
    slow_seed(5);
    enum { N = 500, TURN = 40 };
    float *rows = make_row(N * TURN);
    for (size_t i = 0; i < N * TURN; i++)
        rows[i] = (float)(2 * slow_gauss());
    struct sl_sampler *s = open_sampler(NULL, N);
    for (uint32_t last_n = 0; last_n <= 8; last_n += 8) {
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.seed = 77;
        p.frequency_penalty = 0.7F;
        p.penalty_decay = 0.9F;
        p.repetition_penalty = 1.2F;
        p.penalty_last_n = last_n;
        p.top_p = 0.9F;
        uint32_t tokens[TURN];
        struct sl_penalty_ring ring = {.n = 2, .tokens = {3, 4}};
        sl_sampler_start(s, &p, &ring, 0);
        for (size_t i = 0; i < TURN; i++)
            sl_sampler_accept(s, tokens[i] = choose(s, rows + i * N, N));
        for (size_t cut = 0; cut <= TURN; cut += 8) {
            sl_sampler_start(s, &p, &ring, cut);
            for (size_t i = 0; i < cut; i++)
                sl_sampler_accept(s, tokens[i]);
            for (size_t i = cut; i < TURN; i++) {
                assert_int_equal(choose(s, rows + i * N, N), tokens[i]);
                sl_sampler_accept(s, tokens[i]);
            }
        }
    }
    sl_sampler_close(s);
    sl_free(rows);
}

static void test_bias(void **state)
{
    (void)state;
    enum { N = 100 };
    float *row = make_row(N);
    struct sl_sampler *s = open_sampler(NULL, N);
    static const float large[] = {100, -100, FLT_MAX, -FLT_MAX, 1e30F, 0};
    row[7] = -INFINITY;
    row[8] = FLT_MAX / 2;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        /* The same token twice: both are added; 7 cannot come whatever is added. */
        struct sl_logit_bias bias[] = {{3, large[i]}, {3, large[i]}, {8, large[i]}, {7, FLT_MAX}};
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.bias = bias;
        p.n_bias = 4;
        for (p.temperature = 0; p.temperature < 3; p.temperature++) {
            p.top_p = p.temperature > 1 ? 0.5F : 1;
            p.typical_p = p.top_p;
            sl_sampler_start(s, &p, NULL, 0);
            for (int k = 0; k < 20; k++) {
                uint32_t token = choose(s, row, N);
                assert_int_not_equal(token, 7);
                if (large[i] == FLT_MAX) /* 3 and 8 are both held at FLT_MAX */
                    assert_true(token == 3 || token == 8);
            }
        }
    }
    struct sl_logit_bias only[] = {{5, 100}}, never[] = {{5, -100}};
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    row[8] = row[7] = 0;
    p.bias = only;
    p.n_bias = 1;
    sl_sampler_start(s, &p, NULL, 0);
    for (int k = 0; k < 200; k++)
        assert_int_equal(choose(s, row, N), 5);
    p.bias = never;
    sl_sampler_start(s, &p, NULL, 0);
    for (int k = 0; k < 2000; k++)
        assert_int_not_equal(choose(s, row, N), 5);
    sl_sampler_close(s);
    sl_free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_ring_eviction),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
