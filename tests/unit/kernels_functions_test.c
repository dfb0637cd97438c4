/* kernels_functions_test.c: the scalar functions (exp, tanh and what is made of them) and angles
 * against the C library's in double precision, and at the ends of their range. (The other tables
 * are held to the scalar one in kernels_test.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_kernels *ref;

/* --- functions --- */

typedef void function(float *y, const float *x, size_t n);

/* The largest error in units of the last place over a stride of all floats in [from, to]. */
static double worst_error(function *f, double (*exact)(double), float from, float to)
{
    enum { N = 1024, STRIDE = 997 };
    static float x[N], y[N];
    double worst = 0;
    uint32_t at = float_bits(from), end = float_bits(to);
    assert_true(at < end); /* in the order of their bits: of one sign */
    while (at <= end) {
        size_t n = 0;
        for (; n < N && at <= end; n++, at += STRIDE)
            x[n] = float_from_bits(at);
        f(y, x, n);
        for (size_t i = 0; i < n; i++) {
            double e = ulps(y[i], exact((double)x[i]));
            worst = e > worst || isnan(e) ? e : worst;
        }
    }
    return worst;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void assert_below(double got, double bound, const char *what)
{
    printf("  %-32s %.3f ulp, at most %.2f\n", what, got, bound);
    if (!(got <= bound))
        fail_msg("%s: %.3f ulp, more than %.2f", what, got, bound);
}

static void exp_is_accurate(void **state)
{
    (void)state;
    assert_below(worst_error(ref->vexp, exp, 0.0F, 88.72283F), 1, "exp, x >= 0");
    assert_below(worst_error(ref->vexp, exp, -0.0F, -87.33654F), 1, "exp, normal results");
    assert_below(worst_error(ref->vexp, exp, -87.33655F, -104.0F), 1, "exp, denormal results");
}

static void tanh_is_accurate(void **state)
{
    (void)state;
    assert_below(worst_error(ref->vtanh, tanh, 0.0F, FLT_MAX), 1.5, "tanh, x >= 0");
    assert_below(worst_error(ref->vtanh, tanh, -0.0F, -FLT_MAX), 1.5, "tanh, x <= 0");
    assert_below(worst_error(ref->vtanh, tanh, 0.0F, 0.6F), 1, "tanh near 0");
}

/* Below -88.72 exp(-x) is infinite, and the result 0 where it ought to be below 3e-39. */
static void sigmoid_is_accurate(void **state)
{
    (void)state;
    assert_below(worst_error(ref->vsigmoid, sigmoid, 0.0F, FLT_MAX), 2, "sigmoid, x >= 0");
    assert_below(worst_error(ref->vsigmoid, sigmoid, -0.0F, -87.0F), 3, "sigmoid, x <= 0");
    float x[] = {-88.8F, -100.0F, -FLT_MAX}, y[3];
    ref->vsigmoid(y, x, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(y[i] == 0);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double gelu(double x)
{
    return x * erfc(-x * 0.70710678118654752) / 2;
}

/* Against the C library's erfc in double. Below -1, where the result gets small: 8e-8 at most, and
 * down to 4.5 deviations also 1e-4 of it. */
static void gelu_is_accurate(void **state)
{
    (void)state;
    assert_below(worst_error(ref->vgelu, gelu, 0.0F, FLT_MAX), 2.5, "gelu, x >= 0");
    assert_below(worst_error(ref->vgelu, gelu, -0.0F, -1.0F), 4, "gelu, -1 <= x <= 0");
    for (float x = -1; x > -12; x -= 0.001F) {
        float y;
        ref->vgelu(&y, &x, 1);
        double want = gelu((double)x);
        double most = x > -6.36F ? 1e-4 : 1;
        if (!(fabs((double)y - want) <= most * fabs(want) && fabs((double)y - want) < 8e-8))
            fail_msg("gelu(%g) is %g, should be %g", (double)x, (double)y, want);
    }
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static double elu1(double x)
{
    return x > 0 ? x + 1 : exp(x);
}

/* Of the linear-attention library's rules. silu is -0 where exp(-x) is infinite. */
static void more_functions_are_accurate(void **state)
{
    (void)state;
    assert_below(worst_error(ref->vsilu, silu, 0.0F, FLT_MAX), 2.5, "silu, x >= 0");
    assert_below(worst_error(ref->vsilu, silu, -0.0F, -80.0F), 3.5, "silu, x <= 0");
    assert_below(worst_error(ref->vsoftplus, softplus, 0.0F, FLT_MAX), 2.5, "softplus, x >= 0");
    assert_below(worst_error(ref->vsoftplus, softplus, -0.0F, -86.0F), 3, "softplus, x <= 0");
    assert_below(worst_error(ref->velu1, elu1, 0.0F, FLT_MAX), 1, "elu + 1, x >= 0");
    assert_below(worst_error(ref->velu1, elu1, -0.0F, -87.0F), 1, "elu + 1, x <= 0");
}

struct point {
    float x, y;
};

static void check_points(function *f, const struct point *p, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        float y;
        f(&y, &p[i].x, 1);
        if (float_bits(y) != float_bits(p[i].y) && !(isnan(y) && isnan(p[i].y)))
            fail_msg("%s(%a) is %a, not %a", name, (double)p[i].x, (double)y, (double)p[i].y);
    }
}

static void ends_of_the_range(void **state)
{
    (void)state;
    static const struct point e[] = {
        {0.0F, 1},
        {-0.0F, 1},
        {INFINITY, INFINITY},
        {-INFINITY, 0},
        {NAN, NAN},
        {FLT_MAX, INFINITY},
        {-FLT_MAX, 0},
        {0x1p-149F, 1},
        {88.7228394F, INFINITY},      /* the first float above ln(FLT_MAX) */
        {-0x1.9fe368p+6F, 0x1p-149F}, /* the last above ln(2^-150), half the smallest denormal */
        {-0x1.9fe36ap+6F, 0},
    };
    static const struct point t[] = {
        {0.0F, 0.0F},
        {-0.0F, -0.0F},
        {INFINITY, 1},
        {-INFINITY, -1},
        {NAN, NAN},
        {0x1p-149F, 0x1p-149F},
        {-0x1p-130F, -0x1p-130F},
        {FLT_MAX, 1},
        {-FLT_MAX, -1},
        {20, 1},
        {0x1p-20F, 0x1p-20F},
    };
    static const struct point s[] = {{0.0F, 0.5F},   {-0.0F, 0.5F}, {INFINITY, 1},
                                     {-INFINITY, 0}, {NAN, NAN},    {40, 1}};
    static const struct point r[] = {
        {3, 9},     {-3, 0},           {0.0F, 0},
        {-0.0F, 0}, {-INFINITY, 0},    {INFINITY, INFINITY},
        {NAN, NAN}, {1e20F, INFINITY}, {0x1p-100F, 0},
    };
    static const struct point u[] = {
        {0.0F, 0.0F},         {-0.0F, -0.0F}, {3, 3},     {-3, 0},
        {INFINITY, INFINITY}, {-INFINITY, 0}, {NAN, NAN}, {0x1p-149F, 0x1p-149F},
    };
    static const struct point p[] = {
        {0.0F, 0x1.62e43p-1F},
        {-0.0F, 0x1.62e43p-1F},
        {INFINITY, INFINITY},
        {-INFINITY, 0},
        {NAN, NAN},
        {-FLT_MAX, 0},
        {FLT_MAX, FLT_MAX},
        {50, 50},
    };
    static const struct point l[] = {
        {0.0F, 1}, {-0.0F, 1}, {2, 3}, {INFINITY, INFINITY}, {-INFINITY, 0}, {NAN, NAN},
    };
    static const struct point i[] = {
        {0.0F, 0.0F}, {-0.0F, -0.0F}, {INFINITY, INFINITY},
        {NAN, NAN},   {100, 100},     {-FLT_MAX, -0.0F},
    };
    check_points(ref->vrelu, u, COUNT(u), "relu");
    check_points(ref->vsoftplus, p, COUNT(p), "softplus");
    check_points(ref->velu1, l, COUNT(l), "elu + 1");
    check_points(ref->vsilu, i, COUNT(i), "silu");
    check_points(ref->vexp, e, COUNT(e), "exp");
    check_points(ref->vtanh, t, COUNT(t), "tanh");
    check_points(ref->vsigmoid, s, COUNT(s), "sigmoid");
    check_points(ref->vrelu2, r, COUNT(r), "relu2");
}

/* --- turns --- */

/* Against the C library's functions in long double, near and far. */
static void turns_are_exact_at_any_position(void **state)
{
    (void)state;
    enum { N = 64 };
    static const uint64_t positions[] = {0, 1, 2, 3, 7, 100, 4096, 99999, 1000000, 123456789};
    uint64_t turn[N];
    float c[N], s[N];
    for (size_t i = 0; i < N; i++)
        turn[i] = sl_turn(pow(10000, -(double)i / N) / 6.283185307179586477);
    for (size_t p = 0; p < COUNT(positions); p++) {
        sl_turns(c, s, turn, positions[p], N);
        for (size_t i = 0; i < N; i++) {
            long double angle = (long double)pow(10000, -(double)i / N) * (long double)positions[p];
            /* half a unit of an f32, and what the frequency's 2^-54 have grown to */
            double slack = 3.1e-8 + (double)positions[p] * 0x1p-53;
            assert_true(fabs((double)c[i] - (double)cosl(angle)) <= slack);
            assert_true(fabs((double)s[i] - (double)sinl(angle)) <= slack);
        }
    }
    /* Quarters, and their borders: an eighth of a turn and the least that is more or less. */
    static const uint64_t quarter = UINT64_C(1) << 62;
    static const float at[][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    for (uint64_t i = 0; i < 4; i++) {
        sl_turns(c, s, (uint64_t[]){quarter}, i, 1);
        assert_true(c[0] == at[i][0] && s[0] == at[i][1]);
    }
    for (uint64_t i = 0; i < 8; i++)
        for (uint64_t d = 0; d < 3; d++) {
            sl_turns(c, s, (uint64_t[]){i * (quarter / 2) + d - 1}, 1, 1);
            assert_true(fabs((double)c[0] - cos((double)i * 0.785398163397448310)) < 6e-8);
            assert_true(fabs((double)s[0] - sin((double)i * 0.785398163397448310)) < 6e-8);
        }
    /* 2^64 positions are a whole number of turns, whatever the frequency. */
    sl_turns(c, s, turn, UINT64_MAX, 1);
    float c1, s1;
    sl_turns(&c1, &s1, turn, 1, 1);
    assert_true(c[0] == c1 && s[0] == -s1);
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(tanh_is_accurate),
        cmocka_unit_test(sigmoid_is_accurate),
        cmocka_unit_test(gelu_is_accurate),
        cmocka_unit_test(more_functions_are_accurate),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(turns_are_exact_at_any_position),
    };
    return cmocka_run_group_tests_name("kernels_functions", tests, NULL, NULL);
}
