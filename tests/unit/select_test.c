/* select_test.c: cuts against a list that is sorted. Weights are whole numbers of 2^-12, so that
 * every sum of them is exact and the cut is known; the short way, the long one and that by a part
 * of the list must find it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/select.h"
#include "tests/support/sampling.h"

enum { N_MAX = 70001 };

static float key[N_MAX], weight[N_MAX], part_key[N_MAX], part_weight[N_MAX];
static uint32_t place[N_MAX];
static struct sl_select sel;

static int by_key(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (key[x] != key[y])
        return key[x] > key[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The cut by sorting; *ret_near: a sum beside it is the target, or almost. */
static bool sorted_cut(const float *w, size_t n, double target, struct sl_cut *ret, bool *ret_near)
{
    double sum = 0, before = 0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        place[i] = (uint32_t)i;
    qsort(place, n, sizeof *place, by_key);
    while (kept < n && sum < target) {
        before = sum;
        sum += w ? (double)w[place[kept]] : 1;
        kept++;
    }
    *ret_near = target - before < 1e-9 * target || sum - target < 1e-9 * target;
    if (sum < target)
        return false;
    *ret = (struct sl_cut){.key = key[place[kept - 1]]};
    for (size_t i = 0; i < n; i++) {
        if (key[place[i]] == ret->key) {
            ret->n_equal++;
            ret->n_kept += i < kept;
        }
    }
    return true;
}

static void assert_cut(const struct sl_cut *got, const struct sl_cut *want)
{
    assert_true(got->key == want->key);
    assert_int_equal(got->n_kept, want->n_kept);
    assert_int_equal(got->n_equal, want->n_equal);
}

static double total_of(const float *w, size_t n)
{
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += w ? (double)w[i] : 1;
    return total;
}

/* Items from the cut's key on, and some below it. */
static void check_part(const float *w, size_t n, double target, const struct sl_cut *want,
                       bool near)
{
    struct sl_cut got;
    size_t n_part = 0;
    float least = want->key - (float)slow_rnd(3) * 0.5F;
    for (size_t i = 0; i < n; i++) {
        part_key[n_part] = key[i];
        part_weight[n_part] = w ? w[i] : 1;
        n_part += key[i] >= least;
    }
    if (sl_select_in_part(&sel, part_key, w ? part_weight : NULL, n_part, n, target, &got))
        assert_cut(&got, want);
    else
        assert_true(n_part > 4096 || (w && near)); /* rounding could decide, or a sample misled */
}

static void check(const float *w, size_t n, double target)
{
    struct sl_cut got, want;
    double total = total_of(w, n);
    bool near, found = sorted_cut(w, n, target, &want, &near);
    assert_int_equal(sl_select_exactly(&sel, key, w, n, target, &got), found);
    if (found)
        assert_cut(&got, &want);
    /* The total is only roughly known. */
    double rough = total * (1 + (slow_uniform() - 0.5) * 1e-5);
    assert_int_equal(sl_select_cut(&sel, key, w, n, rough, target, &got), found);
    if (found) {
        assert_cut(&got, &want);
        check_part(w, n, target, &want, near);
    }
    if (found && !w)
        assert_true(sl_select_nth(&sel, key, n, (size_t)target, key[place[0]]) == want.key);
}

static void fill(size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        double x = slow_gauss(), few = slow_rnd(100) == 0 ? 5 * slow_uniform() : 0;
        key[i] = kind == 1   ? (float)rint(2 * x) /* many equals */
                 : kind == 2 ? 1                  /* all equal */
                 : kind == 3 ? (slow_rnd(3) ? -INFINITY : (float)x)
                 : kind == 4 ? (float)i /* in order */
                             : (float)(x + few);
        /* Light and heavy ones, and some that weigh nothing. */
        weight[i] = (float)(slow_rnd(slow_rnd(200) ? 300 : 1 << 20)) * 0x1p-12F;
        if (kind == 5) /* what is dropped last is heavy, of which a sample knows nothing */
            weight[i] = i % (n / 5 + 1) == 7 ? 4096 : 0x1p-12F;
        if (kind == 6)
            weight[i] = key[i] = (float)(1 + slow_rnd(1 << 12)) * 0x1p-12F;
    }
    if (kind == 5)
        for (size_t i = 7; i < n; i += n / 5 + 1)
            key[i] = -9;
}

static void test_cuts(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 100, 1023, 4095, 4096, 4097, 9001, N_MAX};
    slow_seed(31);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        for (int i = 0; i < 21; i++) {
            fill(n, i % 7);
            const float *w = i % 7 == 6 ? key : weight; /* their own weights, as of top_p */
            double total = total_of(w, n), share = i % 2 ? slow_uniform() : pow(slow_uniform(), 8);
            if (total > 0) {
                check(w, n, share * total);
                check(w, n, (1 - share) * total);
                check(w, n, ceil(share * total * 4096) / 4096); /* a sum may be it */
                check(w, n, total);
                check(w, n, total + 0x1p-12);
                check(w, n, 1e-30);
            }
            check(NULL, n, 1 + slow_rnd((uint32_t)n));
            check(NULL, n, 1 + slow_rnd(n < 60 ? (uint32_t)n : 60));
            check(NULL, n, (double)n);
            check(NULL, n, (double)n + 1);
        }
    }
}

/* Targets that are a sum but for its rounding: the order of additions decides, and it is that of
 * the long way. */
static void test_rounding(void **state)
{
    (void)state;
    enum { N = 9001, TARGETS = 200 };
    slow_seed(32);
    for (size_t i = 0; i < N; i++) {
        key[i] = (float)slow_gauss();
        /* Together they take more bits than a double has. */
        weight[i] = (float)((0.5 + 0.5 * slow_uniform()) * (slow_rnd(2) ? 1 : 0x1p-32));
        place[i] = (uint32_t)i;
    }
    qsort(place, N, sizeof *place, by_key);
    for (size_t i = 0; i < TARGETS; i++) {
        struct sl_cut got, want;
        double sum = 0;
        for (size_t j = 0, n = N / 4 + slow_rnd(N / 2); j < n; j++)
            sum += (double)weight[place[j]];
        assert_true(sl_select_exactly(&sel, key, weight, N, sum, &want));
        assert_true(sl_select_cut(&sel, key, weight, N, total_of(weight, N), sum, &got));
        assert_cut(&got, &want);
    }
}

/* Denormal weights, and their sum. */
static void test_tiny(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct sl_cut cut;
    for (size_t i = 0; i < N; i++) {
        key[i] = (float)((i * 7919) % N);
        weight[i] = 0x1p-149F;
    }
    assert_true(sl_select_cut(&sel, key, weight, N, N * 0x1p-149, 3210.5 * 0x1p-149, &cut));
    assert_true(cut.key == N - 3211 && cut.n_kept == 1 && cut.n_equal == 1);
}

/* Zeros of both signs are equal keys. */
static void test_zeros(void **state)
{
    (void)state;
    struct sl_cut cut;
    const float keys[] = {-0.0F, 1, 0.0F, -1, -0.0F};
    assert_true(sl_select_cut(&sel, keys, NULL, 5, 5, 3, &cut));
    assert_true(cut.key == 0 && cut.n_kept == 2 && cut.n_equal == 3);
}

int main(void)
{
    if (!sl_select_init(&sel, N_MAX))
        return 1;
    sel.k = sl_kernels_find(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_zeros),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    sl_select_done(&sel);
    return rc;
}
