/* sampler_test.c: choices against a slow version in double precision that sorts everything, the
 * generator against published numbers, the distribution by chi-square, and what must hold at the
 * edges. The slow version knows when a cut lies within rounding of its bound; such a case is
 * passed over, and their share is checked to be small. */
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
#include "tests/support/tables.h"

/* --- against the slow version ----------------------------------------------------------------- */

/* Logits as a model gives them: some peaked, some flat, some with equal values or -inf. */
static void random_logits(float *l, double *as_double, size_t n)
{
    double spread = exp(2.5 * slow_uniform() - 0.5);
    bool coarse = slow_rnd(4) == 0, holes = slow_rnd(4) == 0;
    for (size_t i = 0; i < n; i++) {
        double x = spread * slow_gauss() + 5 * slow_gauss() * (slow_rnd(50) == 0);
        l[i] = coarse ? (float)rint(x) : (float)x;
        if (holes && i > 0 && slow_rnd(3) == 0)
            l[i] = -INFINITY;
        as_double[i] = (double)l[i];
    }
}

enum { VOCAB_MAX = 3000 };

/* Compares n_cases choices; `set` makes the settings of each. */
static void compare(void (*set)(struct sl_sampling *p, size_t vocab_size), size_t n_cases,
                    const char *kernels)
{
    static const size_t sizes[] = {1, 2, 7, 64, 256, 257, 1000, VOCAB_MAX};
    double *l = calloc(VOCAB_MAX, sizeof *l);
    float *row = make_row(VOCAB_MAX);
    size_t n_clear = 0;
    for (size_t i = 0; i < n_cases; i++) {
        size_t n = sizes[i % (sizeof sizes / sizeof *sizes)];
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.seed = (uint64_t)slow_rnd(1 << 30) << 34 | slow_rnd(1 << 30);
        set(&p, n);
        random_logits(row, l, n);
        struct sl_sampler *s = open_sampler(kernels, n);
        uint64_t draws = slow_rnd(5);
        sl_sampler_start(s, &p, NULL, draws);
        size_t want = slow_choose(l, n, &p, draws);
        uint32_t got = choose(s, row, n);
        assert_int_equal(sl_sampler_draws(s), draws + 1);
        if (want != SIZE_MAX) {
            n_clear++;
            assert_int_equal(got, want);
        }
        sl_sampler_close(s);
    }
    assert_true(n_clear > n_cases * 8 / 10);
    sl_free(row);
    free(l);
}

static void test_slow_version(void **state)
{
    (void)state;
    slow_seed(2);
    compare(set_plain, 1000, NULL);
    compare(set_top_k, 1000, NULL);
    compare(set_top_p, 1000, NULL);
    compare(set_min_p, 1000, NULL);
    compare(set_typical_p, 1000, NULL);
    compare(set_all, 2000, NULL);
    compare(set_all, 500, "ref");
}

/* Every table of kernels chooses the same, bit for bit: no case is unclear here. */
static void test_kernels_agree(void **state)
{
    (void)state;
    slow_seed(3);
    enum { N = 5000 };
    double *unused = calloc(N, sizeof *unused);
    float *row = make_row(N);
    for (const char *const *name = sl_kernels_names(); *name; name++) {
        struct sl_sampler *ref = open_sampler("ref", N), *s = open_sampler(*name, N);
        for (size_t i = 0; i < 60; i++) {
            struct sl_sampling p = SL_SAMPLING_DEFAULT;
            p.seed = i;
            set_all(&p, N);
            random_logits(row, unused, N);
            sl_sampler_start(ref, &p, NULL, 0);
            sl_sampler_start(s, &p, NULL, 0);
            for (int k = 0; k < 5; k++)
                assert_int_equal(choose(s, row, N), choose(ref, row, N));
        }
        sl_sampler_close(ref);
        sl_sampler_close(s);
    }
    sl_free(row);
    free(unused);
}

/* --- the generator ---------------------------------------------------------------------------- */

/* SplitMix64's first numbers for the seed 1234567, as rosettacode.org/wiki/Pseudo-random_numbers/
 * Splitmix64 lists them. Over 65,536 equal logits the token is the number's first 16 bits. */
static void test_generator(void **state)
{
    (void)state;
    static const uint64_t published[] = {6457827717110365317u, 3203168211198807973u,
                                         9817491932198370423u, 4593380528125082431u,
                                         16408922859458223821u};
    float *row = make_row(65536);
    struct sl_sampler *s = open_sampler(NULL, 65536);
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.seed = 1234567;
    sl_sampler_start(s, &p, NULL, 0);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(choose(s, row, 65536), published[i] >> 48);
    /* It goes on from the count alone. */
    sl_sampler_start(s, &p, NULL, 3);
    assert_int_equal(choose(s, row, 65536), published[3] >> 48);
    assert_int_equal(sl_sampler_draws(s), 4);
    /* Seeds wrap: 2^64 - 1 is a seed like any other. */
    p.seed = UINT64_MAX;
    sl_sampler_start(s, &p, NULL, 0);
    assert_int_equal(choose(s, row, 65536), (uint64_t)(slow_draw(UINT64_MAX, 0) * 65536));
    sl_sampler_close(s);
    sl_free(row);
}

/* Pearson's statistic over the tokens that the chain leaves; its distribution has n - 1 degrees of
 * freedom, mean n - 1 and variance 2(n - 1). */
static void check_distribution(const struct sl_sampling *p, const double *want, size_t n)
{
    enum { DRAWS = 40000 };
    static const float logits[8] = {2, 1.5F, 1, 0, 0, -1, -2, -3};
    size_t seen[8] = {0};
    float *row = make_row(8);
    memcpy(row, logits, sizeof logits);
    struct sl_sampler *s = open_sampler(NULL, 8);
    sl_sampler_start(s, p, NULL, 0);
    for (size_t i = 0; i < DRAWS; i++)
        seen[choose(s, row, 8)]++;
    double chi2 = 0;
    for (size_t i = 0; i < 8; i++) {
        if (i >= n)
            assert_int_equal(seen[i], 0);
        else
            chi2 += pow((double)seen[i] - DRAWS * want[i], 2) / (DRAWS * want[i]);
    }
    double free_ones = (double)n - 1;
    assert_true(chi2 < free_ones + 4 * sqrt(2 * free_ones));
    assert_true(n < 4 || chi2 > 0.05); /* nor too good to be drawn */
    sl_sampler_close(s);
    sl_free(row);
}

static void test_distribution(void **state)
{
    (void)state;
    /* exp of the logits by hand: 7.3891 4.4817 2.7183 1 1 .3679 .1353 .0498, sum 17.1421 */
    static const double all[8] = {0.431049, 0.261444, 0.158575, 0.058336,
                                  0.058336, 0.021461, 0.007895, 0.002904};
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.seed = 42;
    check_distribution(&p, all, 8);
    /* top_p 0.75 needs three (0.431 + 0.261 = 0.692); temperature 2 afterwards:
     * e^1 e^.75 e^.5 = 2.71828 2.11700 1.64872, sum 6.48400 */
    static const double three[3] = {0.419229, 0.326496, 0.254275};
    p.top_p = 0.75F;
    p.temperature = 2;
    check_distribution(&p, three, 3);
    /* top_k 4: of the two zeros the smaller id. Temperature 0.5: e^4 e^3 e^2 e^0 =
     * 54.59815 20.08554 7.38906 1, sum 83.07275 */
    static const double four[4] = {0.657233, 0.241783, 0.088947, 0.012038};
    p.top_p = 1;
    p.top_k = 4;
    p.temperature = 0.5F;
    check_distribution(&p, four, 4);
}

/* --- edges ------------------------------------------------------------------------------------ */

static void test_greedy(void **state)
{
    (void)state;
    enum { N = 1000 };
    float *row = make_row(N);
    struct sl_sampler *s = open_sampler(NULL, N);
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.temperature = 0;
    p.top_k = 3; /* of no account */
    sl_sampler_start(s, &p, NULL, 9);
    assert_int_equal(choose(s, row, N), 0); /* all are equal */
    row[700] = row[300] = row[999] = 0.5F;
    assert_int_equal(choose(s, row, N), 300);
    row[999] = nextafterf(0.5F, 1);
    assert_int_equal(choose(s, row, N), 999);
    for (size_t i = 0; i < N; i++)
        row[i] = -INFINITY;
    row[5] = -FLT_MAX;
    assert_int_equal(choose(s, row, N), 5);
    row[4] = 0.0F;
    row[3] = -0.0F; /* equal to it */
    assert_int_equal(choose(s, row, N), 3);
    assert_int_equal(sl_sampler_draws(s), 9);
    sl_sampler_close(s);
    sl_free(row);
}

/* Temperatures far out, with every filter: a token that may come, and the right limit. */
static void test_extreme_temperatures(void **state)
{
    (void)state;
    slow_seed(6);
    enum { N = 300 };
    static const float temperatures[] = {FLT_MIN * FLT_EPSILON, 1e-30F, 1e-6F, 100};
    static const float scales[] = {1, 1e6F, 1e38F};
    float *row = make_row(N);
    struct sl_sampler *s = open_sampler(NULL, N);
    for (size_t i = 0; i < 400; i++) {
        uint32_t best = 0;
        for (size_t k = 0; k < N; k++) {
            row[k] = (float)(2 * slow_uniform() - 1) * scales[i / 4 % 3];
            best = row[k] > row[best] ? (uint32_t)k : best;
        }
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        set_all(&p, N);
        p.typical_p = 1; /* it may drop the best one */
        p.temperature = temperatures[i % 4];
        sl_sampler_start(s, &p, NULL, 0);
        uint32_t token = choose(s, row, N);
        if (p.temperature < 1e-6F || (p.temperature < 1 && scales[i / 4 % 3] > 1))
            assert_int_equal(token, best);
    }
    /* temperature 100 makes 0 and -200 as likely as e^0 : e^-2. */
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    p.temperature = 100;
    for (size_t k = 0; k < N; k++)
        row[k] = -INFINITY;
    row[10] = 0;
    row[20] = -200;
    sl_sampler_start(s, &p, NULL, 0);
    size_t seen = 0;
    for (int k = 0; k < 10000; k++) {
        uint32_t token = choose(s, row, N);
        assert_true(token == 10 || token == 20);
        seen += token == 20;
    }
    assert_true(seen > 1192 - 4 * 33 && seen < 1192 + 4 * 33); /* 10000 · 0.1192, σ = 32.4 */
    sl_sampler_close(s);
    sl_free(row);
}

/* The narrowest settings leave one token: which one is known. */
static void test_one_survives(void **state)
{
    (void)state;
    enum { N = 5 };
    /* p = .4 .3 .15 .1 .05; entropy 1.3927 nats; -ln p = .916 1.204 1.897 2.303 2.996: nearest to
     * the entropy is token 1 */
    static const float p_of[N] = {0.4F, 0.3F, 0.15F, 0.1F, 0.05F};
    float *row = make_row(N);
    for (size_t i = 0; i < N; i++)
        row[i] = logf(p_of[i]) + 3;
    struct sl_sampler *s = open_sampler(NULL, N);
    struct {
        uint32_t top_k;
        float top_p, min_p, typical_p;
        uint32_t want;
    } rows[] = {
        {1, 1, 0, 1, 0},         {0, 1e-30F, 0, 1, 0}, {0, 1, 1, 1, 0}, {0, 1, 0, 1e-30F, 1},
        {0, 0, 0, 1, 0},         {0, 1, 0, 0, 1},      {0, 0, 0, 0, 1}, {0, 0.5F, 0, 0.29F, 1},
        {2, 0.01F, 1, 0.01F, 0}, /* of the two left, p = .571 .429, entropy .683: -ln p = .560 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.top_k = rows[i].top_k;
        p.top_p = rows[i].top_p;
        p.min_p = rows[i].min_p;
        p.typical_p = rows[i].typical_p;
        p.temperature = 50;
        sl_sampler_start(s, &p, NULL, 0);
        for (int k = 0; k < 50; k++)
            assert_int_equal(choose(s, row, N), rows[i].want);
        assert_int_equal(sl_sampler_draws(s), 50);
    }
    sl_sampler_close(s);
    sl_free(row);
}

static void test_not_finite(void **state)
{
    (void)state;
    enum { N = 70 };
    float *row = make_row(N);
    struct sl_sampler *s = open_sampler(NULL, N);
    struct sl_sampling p = SL_SAMPLING_DEFAULT;
    struct sl_token_logprobs lp = {.chosen = {123, 4}};
    sl_sampler_start(s, &p, NULL, 0);
    for (size_t at = 0; at < N; at += 23) {
        static const float bad[] = {NAN, INFINITY};
        for (size_t i = 0; i < 2; i++) {
            row[at] = bad[i];
            uint32_t token = 55;
            assert_int_equal(sl_sampler_choose(s, scratch_for(N), row, NULL, 2, &token, &lp),
                             SL_E_MODEL_NOT_FINITE);
            assert_int_equal(sl_sampler_logprobs(s, scratch_for(N), row, NULL, 0, 2, &lp),
                             SL_E_MODEL_NOT_FINITE);
            assert_int_equal(token, 55);
            row[at] = 0;
        }
    }
    for (size_t i = 0; i < N; i++)
        row[i] = -INFINITY;
    uint32_t token = 55;
    assert_int_equal(sl_sampler_choose(s, scratch_for(N), row, NULL, 2, &token, &lp),
                     SL_E_MODEL_NOT_FINITE);
    assert_int_equal(token, 55);
    assert_int_equal(lp.chosen.token, 123);
    assert_int_equal(sl_sampler_draws(s), 0);
    row[33] = -1e30F; /* one token is left */
    assert_int_equal(choose(s, row, N), 33);
    sl_sampler_close(s);
    sl_free(row);
}

/* --- log probabilities ------------------------------------------------------------------------ */

static void check_logprobs(const struct sl_token_logprobs *lp, const float *l, size_t n,
                           uint32_t token, size_t n_top)
{
    double m = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, (double)l[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)l[i] - m);
    assert_int_equal(lp->chosen.token, token);
    assert_true(fabs((double)lp->chosen.logprob - ((double)l[token] - m - log(sum))) < 1e-5);
    for (size_t i = 0; i < n_top && i < n; i++) {
        uint32_t id = lp->top[i].token;
        size_t before = 0; /* tokens that go before it */
        for (size_t k = 0; k < n; k++)
            before += l[k] > l[id] || (l[k] == l[id] && k < id);
        assert_int_equal(before, i);
        assert_true(fabs((double)lp->top[i].logprob - ((double)l[id] - m - log(sum))) < 1e-5);
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    slow_seed(7);
    static const size_t sizes[] = {1, 3, 20, 64, 65, 1000};
    for (size_t i = 0; i < 300; i++) {
        size_t n = sizes[i % 6], n_top = slow_rnd(SL_TOP_LOGPROBS_MAX + 1);
        float *row = make_row(n), *copy = make_row(n);
        for (size_t k = 0; k < n; k++)
            row[k] = copy[k] = i % 2 ? (float)rint(2 * slow_gauss()) : (float)(3 * slow_gauss());
        struct sl_logit_bias bias = {slow_rnd((uint32_t)n), 2};
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        set_all(&p, n);
        p.presence_penalty = 1;
        p.bias = &bias;
        p.n_bias = 1;
        struct sl_sampler *s = open_sampler(NULL, n);
        sl_sampler_start(s, &p, NULL, 0);
        sl_sampler_accept(s, slow_rnd((uint32_t)n));
        uint32_t token;
        struct sl_token_logprobs lp;
        float *tops = make_row(sl_tops(n));
        sl_kernels_find("ref")->tops(tops, row, n);
        assert_int_equal(sl_sampler_choose(s, scratch_for(n), row, i % 4 < 2 ? tops : NULL,
                                           (int)n_top, &token, &lp),
                         SL_OK);
        check_logprobs(&lp, copy, n, token, n_top);
        uint32_t other = slow_rnd((uint32_t)n);
        sl_kernels_find("ref")->tops(tops, copy, n);
        assert_int_equal(sl_sampler_logprobs(s, scratch_for(n), copy, i % 3 ? tops : NULL, other,
                                             (int)n_top, &lp),
                         SL_OK);
        sl_free(tops);
        check_logprobs(&lp, copy, n, other, n_top);
        sl_sampler_close(s);
        sl_free(row);
        sl_free(copy);
    }
}

/* --- settings and memory ---------------------------------------------------------------------- */

static void refused(const struct sl_sampling *p, const char *param)
{
    struct sl_error err;
    assert_int_equal(sl_sampling_check(p, 100, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, param[0] == 'l' ? "bias" : param));
}

static void test_check(void **state)
{
    (void)state;
    const struct sl_sampling good = SL_SAMPLING_DEFAULT;
    struct sl_error err;
    assert_int_equal(sl_sampling_check(&good, 100, &err), SL_OK);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct sl_sampling p = good;                                                               \
        p.field = (value);                                                                         \
        refused(&p, #field);                                                                       \
    } while (0)
    REFUSED(temperature, NAN);
    REFUSED(temperature, -0.001F);
    REFUSED(temperature, 100.01F);
    REFUSED(top_p, -1e-30F);
    REFUSED(top_p, 1.001F);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -0.1F);
    REFUSED(min_p, 1.1F);
    REFUSED(typical_p, -1);
    REFUSED(repetition_penalty, 0);
    REFUSED(repetition_penalty, INFINITY);
    REFUSED(presence_penalty, INFINITY);
    REFUSED(frequency_penalty, NAN);
    REFUSED(penalty_decay, -1);
    REFUSED(penalty_decay, 1.5F);
    REFUSED(penalty_last_n, SL_PENALTY_LAST_N_MAX + 1);
    struct sl_logit_bias bias[] = {{99, 1}, {100, 1}};
    struct sl_sampling p = good;
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(sl_sampling_check(&p, 100, &err), SL_OK);
    p.n_bias = 2;
    refused(&p, "logit_bias");
    bias[1] = (struct sl_logit_bias){0, NAN};
    refused(&p, "logit_bias");
    p.n_bias = SL_LOGIT_BIAS_MAX + 1;
    refused(&p, "logit_bias");
}

static void test_no_memory(void **state)
{
    (void)state;
    const struct sl_kernels *k = sl_kernels_find(NULL);
    for (int64_t n = 0;; n++) {
        struct sl_sampler *s = NULL;
        struct sl_error err;
        sl_mem_fail_after(n);
        enum sl_code c = sl_sampler_open(&s, k, 1000, &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            assert_true(n > 0);
            sl_sampler_close(s);
            break;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
        assert_null(s);
    }
    sl_sampler_close(NULL);
    for (int64_t n = 0;; n++) {
        struct sl_sampler_scratch *x = NULL;
        struct sl_error err;
        sl_mem_fail_after(n);
        enum sl_code c = sl_sampler_scratch_open(&x, 1000, &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            assert_true(n > 0);
            sl_sampler_scratch_close(x);
            break;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
        assert_null(x);
    }
    sl_sampler_scratch_close(NULL);
}

/* Nothing allocates once a sampler and its scratch are open. */
static void test_no_allocation(void **state)
{
    (void)state;
    slow_seed(8);
    enum { N = 1000 };
    struct sl_sampler *s = open_sampler(NULL, N);
    float *row = make_row(N), *copy = make_row(N);
    for (size_t i = 0; i < N; i++)
        copy[i] = (float)slow_gauss();
    struct sl_sampler_scratch *scratch = scratch_for(N);
    uint64_t before = sl_mem_count();
    for (size_t i = 0; i < 50; i++) {
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        set_all(&p, N);
        set_penalties(&p);
        sl_sampler_start(s, &p, NULL, 0);
        for (size_t k = 0; k < 5; k++) {
            uint32_t token;
            struct sl_token_logprobs lp;
            memcpy(row, copy, N * sizeof *row);
            assert_int_equal(sl_sampler_choose(s, scratch, row, NULL, 20, &token, &lp), SL_OK);
            sl_sampler_accept(s, token);
        }
    }
    assert_int_equal(sl_mem_count(), before);
    sl_free(row);
    sl_free(copy);
    sl_sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here), cmocka_unit_test(test_slow_version),
        cmocka_unit_test(test_kernels_agree),    cmocka_unit_test(test_generator),
        cmocka_unit_test(test_distribution),

        cmocka_unit_test(test_greedy),           cmocka_unit_test(test_extreme_temperatures),
        cmocka_unit_test(test_one_survives),     cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_logprobs),         cmocka_unit_test(test_check),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
