/* sampler_exact_test.c: that the sampler's short ways change nothing: the tokens are those of a
 * plain way through the definitions (exact_choose), bit for bit, on rows of every kind and length
 * and with every table; and that the short ways are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/sampling.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { N_MAX = 65536 };

/* --- rows --------------------------------------------------------------------------------------
 */

enum kind { FLAT, WIDE, LEARNT, HALVES, HOLES, EQUAL, TWO, APART, TINY, SORTED, N_KINDS };

static float logit(enum kind kind, size_t i)
{
    double x = slow_gauss();
    switch (kind) {
    case WIDE:
        return (float)(4 * x);
    case LEARNT: /* few likely ones */
        return (float)(slow_rnd(200) ? 2.2 * x - 4 : 14 - 7 * slow_uniform() * slow_uniform() * 2);
    case HALVES:
        return (float)(rint(2 * x) / 2);
    case HOLES:
        return slow_rnd(3) && i > 0 ? -INFINITY : (float)(2 * x);
    case EQUAL:
        return -3.25F;
    case TWO:
        return slow_rnd(2) ? 1 : -1;
    case APART: /* most weigh nothing */
        return (float)(60 * x);
    case TINY:
        return (float)x * 1e-40F;
    case SORTED:
        return (float)i * -0.001F;
    default:
        return (float)(0.6 * x);
    }
}

static const float shares[] = {0, 1e-30F, 0.01F, 0.25F, 0.5F, 0.9F, 0.95F, 0.999F, 0x1.fffffep-1F};

/* One filter alone, or some of them. */
static void set_filters(struct sl_sampling *p, size_t n, size_t i)
{
    static const uint32_t ks[] = {1, 2, 40, 250, 1000, 20000};
    float share = shares[slow_rnd(COUNT(shares))];
    switch (i % 7) {
    case 0:
        p->top_p = share;
        break;
    case 1:
        p->typical_p = share;
        break;
    case 2:
        p->min_p = 1 - share;
        break;
    case 3:
        p->top_k = ks[slow_rnd(COUNT(ks))];
        break;
    case 4:
        p->top_k = ks[slow_rnd(COUNT(ks))];
        p->top_p = share;
        break;
    case 5:
        break;
    default:
        set_all(p, n);
    }
    static const float temperatures[] = {1, 1, 0.8F, 0.1F, 1e-3F, 1.7F, 100};
    p->temperature = temperatures[slow_rnd(COUNT(temperatures))];
}

static void check_row(const float *row, size_t n, const char *kernels, size_t n_settings)
{
    struct sl_sampler *s = open_sampler(kernels, n);
    for (size_t i = 0; i < n_settings; i++) {
        struct sl_sampling p = SL_SAMPLING_DEFAULT;
        p.seed = (uint64_t)slow_rnd(1 << 30) << 34 | slow_rnd(1 << 30);
        set_filters(&p, n, i);
        sl_sampler_start(s, &p, NULL, 0);
        uint32_t got = choose(s, row, n), want = exact_choose(row, n, &p, 0);
        if (got != want)
            fail_msg("%zu tokens, kernels %s: %u, not %u (temperature %g, top_k %u, typical_p %a, "
                     "top_p %a, min_p %a)",
                     n, kernels, got, want, (double)p.temperature, p.top_k, (double)p.typical_p,
                     (double)p.top_p, (double)p.min_p);
    }
    sl_sampler_close(s);
}

static void test_exact(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 3, 63, 64, 65, 255, 256, 257, 1000, 4095, 4097, 5003, 9999};
    float *row = make_row(N_MAX);
    slow_seed(11);
    for (const char *const *name = sl_kernels_names(); *name; name++)
        for (enum kind kind = 0; kind < N_KINDS; kind++)
            for (size_t s = 0; s < COUNT(sizes); s++) {
                for (size_t i = 0; i < sizes[s]; i++)
                    row[i] = logit(kind, i);
                check_row(row, sizes[s], *name, 21);
            }
    sl_free(row);
}

static void test_exact_large(void **state)
{
    (void)state;
    static const size_t sizes[] = {N_MAX, N_MAX - 7, 50277};
    float *row = make_row(N_MAX);
    slow_seed(12);
    for (enum kind kind = 0; kind < N_KINDS; kind++) {
        size_t n = sizes[kind % 3];
        for (size_t i = 0; i < n; i++)
            row[i] = logit(kind, i);
        check_row(row, n, NULL, 42);
    }
    sl_free(row);
}

/* --- the short ways ----------------------------------------------------------------------------
 */

static struct sl_kernels counting;
static const struct sl_kernels *best;
static size_t n_weighed, n_parted;

static float count_weigh(float *y, const float *x, float m, float temperature, size_t n)
{
    n_weighed += n;
    return best->weigh(y, x, m, temperature, n);
}

static double count_part(float *part_key, float *part_w, size_t *ret_n, const float *key,
                         const float *w, size_t n, float low, float high)
{
    n_parted += n;
    return best->part(part_key, part_w, ret_n, key, w, n, low, high);
}

/* How many tokens are weighed, and looked through for a cut, at most for each. */
static void assert_work(const float *row, const struct sl_sampling *p, double weighed,
                        double parted)
{
    struct sl_sampler *s = NULL;
    struct sl_error err;
    uint32_t token;
    assert_int_equal(sl_sampler_open(&s, &counting, N_MAX, &err), SL_OK);
    float *copy = make_row(N_MAX);
    memcpy(copy, row, N_MAX * sizeof *row);
    n_weighed = n_parted = 0;
    sl_sampler_start(s, p, NULL, 0);
    assert_int_equal(sl_sampler_choose(s, scratch_for(N_MAX), copy, NULL, -1, &token, NULL), SL_OK);
    assert_true((double)n_weighed <= weighed * N_MAX);
    assert_true((double)n_parted <= parted * N_MAX);
    sl_free(copy);
    sl_sampler_close(s);
}

static void test_work(void **state)
{
    (void)state;
    float *row = make_row(N_MAX);
    slow_seed(13);
    best = sl_kernels_find(NULL);
    counting = *best;
    counting.weigh = count_weigh;
    counting.part = count_part;
    const struct sl_sampling def = SL_SAMPLING_DEFAULT;
    struct sl_sampling plain = def, top_k = def, top_p = def, min_p = def, typical = def;
    top_k.top_k = 40;
    top_k.top_p = 0.95F;
    top_k.temperature = 0.8F;
    top_p.top_p = 0.9F;
    min_p.min_p = 0.5F;
    typical.typical_p = 0.9F;
    for (size_t i = 0; i < N_MAX; i++)
        row[i] = logit(LEARNT, i);
    for (size_t i = 0; i < 20; i++) /* of which 20 have the most */
        row[i * 3001 + 17] = 20 - 0.1F * (float)i;
    assert_work(row, &plain, 1.01, 0);
    assert_work(row, &top_k, 0.02, 0.4); /* of tops, a 64th of the tokens each time */
    assert_work(row, &top_p, 1.03, 0.2);
    assert_work(row, &min_p, 0.2, 0);
    assert_work(row, &typical, 1.03, 0.2);
    for (size_t i = 0; i < N_MAX; i++)
        row[i] = logit(FLAT, i);
    assert_work(row, &top_k, 0.02, 0.4);
    assert_work(row, &top_p, 1.03, 3);
    assert_work(row, &typical, 1.03, 3);
    sl_free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_exact_large),
        cmocka_unit_test(test_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
