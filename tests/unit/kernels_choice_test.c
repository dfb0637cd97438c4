/* kernels_choice_test.c: the kernels that pass over a row of logits: what the scalar ones compute,
 * and that every table gives the same bits, over lengths that do not fit whole registers. All
 * buffers are exactly as large as the contract says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_kernels *ref;

/* Every length up to a few registers, and some longer ones. */
enum { SHORT = 70 };
static const size_t longer[] = {127, 128, 129, 255, 256, 257, 1000, 4099};

static size_t length(size_t i)
{
    return i < SHORT || i >= SHORT + COUNT(longer) ? i : longer[i - SHORT];
}

#define FOR_LENGTHS(n) for (size_t i_ = 0, n = 0; i_ < SHORT + COUNT(longer); n = length(++i_))

static float *floats(size_t n)
{
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

/* Logits: equal ones and halves among them, some -inf, some far below and some denormal. */
static float *logits(size_t n, uint64_t seed)
{
    static const float rare[] = {-INFINITY, -1e30F, 0.0F, -0.0F, 1e-42F, -1e-42F, -95};
    float *x = floats(n), *pick = floats(n);
    fill_uniform(x, n, seed);
    fill_uniform(pick, n, seed + 1);
    for (size_t i = 0; i < n; i++) {
        float p = fabsf(pick[i]);
        x[i] = x[i] * 20 - 10;
        if (p < 0.2F)
            x[i] = rintf(x[i] * 2) / 2;
        else if (p < 0.3F)
            x[i] = rare[(size_t)(p * 1000) % COUNT(rare)];
    }
    sl_free(pick);
    return x;
}

static void assert_floats(const struct sl_kernels *k, const char *what, const float *got,
                          const float *want, size_t n)
{
    size_t i = first_difference(got, want, n);
    if (i < n)
        fail_msg("%s %s: element %zu of %zu is %a, not %a", k->name, what, i, n, (double)got[i],
                 (double)want[i]);
}

/* --- tops --- */

static void tops(void **state)
{
    (void)state;
    FOR_TABLES(k, NULL)
    FOR_LENGTHS(n)
    {
        float *x = logits(n, n), *top = floats(sl_tops(n));
        for (int nan = 0; nan < 2; nan++) {
            if (nan && n > 0)
                x[n * 2 / 3] = NAN;
            k->tops(top, x, n);
            for (size_t b = 0; b < sl_tops(n); b++) {
                size_t left = n - b * SL_TOPS;
                float want = ref->max(x + b * SL_TOPS, left < SL_TOPS ? left : SL_TOPS);
                assert_floats(k, "tops", top + b, &want, 1);
            }
        }
        sl_free(x);
        sl_free(top);
    }
}

/* --- weigh --- */

static void weigh_is_exp(void **state)
{
    (void)state;
    static const struct {
        float x, m, temperature, want;
    } rows[] = {
        {3, 3, 1, 1},           {3, 3, 0.7F, 1},        {-FLT_MAX, FLT_MAX, 1, 0},
        {-INFINITY, 3, 1, 0},   {-INFINITY, 3, 100, 0}, {0, 200, 100, 0.135335283F},
        {0, 87.5F, 1, 0},       {0, 43.6F, 0.5F, 0},    {0, 87, 1, 1.6458115e-38F},
        {2, 1, 1, 2.71828183F}, {0, 1, 0x1p-149F, 0},   {1e-45F, 1e-45F, 0x1p-149F, 1},
    };
    FOR_TABLES(k, NULL)
    for (size_t i = 0; i < COUNT(rows); i++) {
        float y = -1, sum = k->weigh(&y, &rows[i].x, rows[i].m, rows[i].temperature, 1);
        assert_true(fabsf(y - rows[i].want) <= 2e-7F * rows[i].want);
        assert_true(sum == y);
    }
}

static void weigh_same(void **state)
{
    (void)state;
    static const float temperatures[] = {1, 0.7F, 0.05F, 1.5F, 100, 1e-30F};
    FOR_TABLES(k, NULL)
    FOR_LENGTHS(n)
    for (size_t t = 0; t < COUNT(temperatures); t++) {
        float *x = logits(n, n + t), *want = floats(n), *got = n % 2 ? x : floats(n);
        float m = n ? ref->max(x, n) : 0, temperature = temperatures[t];
        if (!isfinite(m))
            m = 0;
        float want_sum = ref->weigh(want, x, m, temperature, n);
        float got_sum = k->weigh(got, x, m, temperature, n);
        assert_floats(k, "weights", got, want, n);
        assert_floats(k, "sum of weights", &got_sum, &want_sum, 1);
        want_sum = ref->sum16(want, n);
        assert_floats(k, "sum of weights", &got_sum, &want_sum, 1);
        if (got != x)
            sl_free(got);
        sl_free(x);
        sl_free(want);
    }
}

/* A stride through all floats from 88 down: bit for bit exp, or 0. */
static void weigh_over_all_floats(void **state)
{
    (void)state;
    enum { N = 4096, STRIDE = 641 };
    static float x[N], got[N], want[N];
    FOR_TABLES(k, NULL)
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += (uint64_t)N * STRIDE) {
        for (size_t i = 0; i < N; i++) {
            x[i] = float_from_bits((uint32_t)(u + i * STRIDE));
            x[i] = isnan(x[i]) || x[i] > SL_WEIGH_MAX ? 1 : x[i];
        }
        ref->vexp(want, x, N);
        for (size_t i = 0; i < N; i++)
            want[i] = x[i] < SL_WEIGH_MIN ? 0 : want[i];
        (void)k->weigh(got, x, 0, 1, N);
        assert_floats(k, "weigh", got, want, N);
    }
}

/* --- drop --- */

static void drop(void **state)
{
    (void)state;
    FOR_TABLES(k, NULL)
    FOR_LENGTHS(n)
    {
        float *key = logits(n, n), *y = logits(n, n + 2), *want = floats(n);
        float least = n ? key[n / 2] : 0;
        const float *by = n % 3 ? key : y; /* by itself, too */
        for (size_t i = 0; i < n; i++)
            want[i] = by[i] < least ? 0 : y[i];
        float want_sum = ref->sum16(want, n), got_sum = k->drop(y, by, least, n);
        assert_floats(k, "drop", y, want, n);
        assert_floats(k, "sum of what was not dropped", &got_sum, &want_sum, 1);
        sl_free(key);
        sl_free(y);
        sl_free(want);
    }
}

/* --- part --- */

/* weights: 0 none, 1 listed, 2 counted and not listed. */
static void check_part(const struct sl_kernels *k, size_t n, float low, float high, int weights,
                       bool in_place)
{
    float *key = logits(n, n), *w = logits(n, n + 5), *part_key = in_place ? key : floats(n);
    float *part_w = in_place ? w : floats(n), *want_key = floats(n), *want_w = floats(n);
    for (size_t i = 0; i < n; i++)
        w[i] = isinf(w[i]) ? 0 : fabsf(w[i]);
    double lane[SL_PANEL] = {0};
    size_t n_want = 0, n_got = n + 1;
    for (size_t i = 0; i < n; i++) {
        if (key[i] >= high) {
            lane[i % SL_PANEL] += weights == 0 ? 1 : (double)w[i];
        } else if (key[i] >= low) {
            want_key[n_want] = key[i];
            want_w[n_want++] = w[i];
        }
    }
    for (size_t half = SL_PANEL / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            lane[j] += lane[j + half];
    const float *by = weights == 0 ? NULL : w;
    assert_true(k->part(NULL, NULL, &n_got, key, by, n, low, high) == lane[0]);
    assert_int_equal(n_got, 0);
    double sum = k->part(part_key, weights == 1 ? part_w : NULL, &n_got, key, by, n, low, high);
    assert_true(sum == lane[0]);
    assert_int_equal(n_got, n_want);
    assert_floats(k, "part's keys", part_key, want_key, n_want);
    if (weights == 1)
        assert_floats(k, "part's weights", part_w, want_w, n_want);
    if (!in_place) {
        sl_free(part_key);
        sl_free(part_w);
    }
    sl_free(key);
    sl_free(w);
    sl_free(want_key);
    sl_free(want_w);
}

static void part(void **state)
{
    (void)state;
    static const float bounds[][2] = {{-INFINITY, INFINITY},
                                      {INFINITY, INFINITY},
                                      {-INFINITY, -INFINITY},
                                      {0, 3},
                                      {-2.5F, -2.5F},
                                      {-0.0F, 0.5F},
                                      {4, -4},
                                      {-9.5F, 9.5F}};
    FOR_TABLES(k, NULL)
    FOR_LENGTHS(n)
    for (size_t b = 0; b < COUNT(bounds); b++)
        for (int weights = 0; weights < 3; weights++)
            check_part(k, n, bounds[b][0], bounds[b][1], weights, n % 2);
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(tops),
        cmocka_unit_test(weigh_is_exp),
        cmocka_unit_test(weigh_same),
        cmocka_unit_test(weigh_over_all_floats),
        cmocka_unit_test(drop),
        cmocka_unit_test(part),
    };
    return cmocka_run_group_tests_name("kernels_choice", tests, NULL, NULL);
}
