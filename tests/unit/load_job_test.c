/* load_job_test.c: values that cannot be used are found, wherever they are, and no others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/load_priv.h"

/* Of the three types, as a copy: what a double rounds to. Half a unit in the last place above the
 * largest value is the first that rounds to infinity. */
static bool holds(enum sl_dtype to, double x)
{
    static const struct {
        double largest, half_unit;
    } of[SL_DTYPE_COUNT] = {[SL_DTYPE_F16] = {65504, 16},
                            [SL_DTYPE_BF16] = {0x1.fep127, 0x1p119},
                            [SL_DTYPE_F32] = {FLT_MAX, INFINITY}};
    return isfinite(x) && fabs(x) < of[to].largest + of[to].half_unit;
}

static double value_16(bool brain, unsigned h)
{
    int fraction = brain ? 7 : 10, bias = brain ? 127 : 15;
    int e = (int)(h & 0x7fff) >> fraction, m = (int)(h & 0x7fff) & ((1 << fraction) - 1);
    double sign = h & 0x8000 ? -1 : 1;
    if (e == 2 * bias + 1)
        return m ? NAN : sign * INFINITY;
    return e ? sign * ldexp(m + (1 << fraction), e - bias - fraction)
             : sign * ldexp(m, 1 - bias - fraction);
}

static const enum sl_dtype targets[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};

static void test_every_16_bit_value(void **state)
{
    (void)state;
    for (int brain = 0; brain < 2; brain++)
        for (unsigned h = 0; h < 65536; h++)
            for (size_t i = 0; i < 3; i++) {
                uint16_t v = (uint16_t)h;
                size_t want = holds(targets[i], value_16(brain, h)) ? SIZE_MAX : 0;
                size_t got = sl_find_bad(&v, brain ? SL_DTYPE_BF16 : SL_DTYPE_F16, 1, targets[i]);
                if (got != want)
                    fail_msg("%s %04x as %s", brain ? "BF16" : "F16", h, sl_dtype_name(targets[i]));
            }
}

static void test_values_at_the_limits(void **state)
{
    (void)state;
    float v[] = {0,           65504,   65519.996f,   65520,    0x1.fep127f, 0x1.fefffep127f,
                 0x1.ffp127f, FLT_MAX, FLT_TRUE_MIN, INFINITY, NAN};
    for (size_t k = 0; k < 2 * sizeof v / sizeof *v; k++)
        for (size_t i = 0; i < 3; i++) {
            float x = k % 2 ? -v[k / 2] : v[k / 2];
            double d = (double)x;
            size_t want = holds(targets[i], d) ? SIZE_MAX : 0;
            assert_int_equal(sl_find_bad(&x, SL_DTYPE_F32, 1, targets[i]), want);
            assert_int_equal(sl_find_bad(&d, SL_DTYPE_F64, 1, targets[i]), want);
        }
}

/* The first of two, at any place, in memory that is not aligned. */
static void test_the_first_one_is_named(void **state)
{
    (void)state;
    enum { N = 9001 };
    static unsigned char bytes[N * 4 + 1];
    static const size_t at[] = {0, 1, 15, 16, 4095, 4096, 8191, 8192, N - 1};
    static const unsigned char inf[][4] = {{0, 0, 0x80, 0xff}, {0, 0x7c}, {0x80, 0x7f}};
    for (size_t t = 0; t < 3; t++) {
        size_t size = sl_dtype_size(targets[t]);
        memset(bytes, 0, sizeof bytes);
        assert_int_equal(sl_find_bad(bytes + 1, targets[t], N, targets[t]), SIZE_MAX);
        memcpy(bytes + 1 + (N - 1) * size, inf[t], size);
        for (size_t i = sizeof at / sizeof *at; i-- > 0;) {
            memcpy(bytes + 1 + at[i] * size, inf[t], size);
            assert_int_equal(sl_find_bad(bytes + 1, targets[t], N, targets[t]), at[i]);
            assert_int_equal(sl_find_bad(bytes + 1, targets[t], at[i], targets[t]), SIZE_MAX);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_16_bit_value),
        cmocka_unit_test(test_values_at_the_limits),
        cmocka_unit_test(test_the_first_one_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
