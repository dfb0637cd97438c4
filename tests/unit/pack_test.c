/* pack_test.c: conversions against the formats' definitions (sign · fraction · 2^exponent, in
 * double precision), exhaustively for the 16-bit formats; and where packing puts what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { N_16 = 65536 };

/* A 16-bit format: 1 sign bit, `exponent` and `fraction` bits. */
struct format {
    enum sl_dtype type;
    int exponent, fraction;
};

static const struct format f16 = {SL_DTYPE_F16, 5, 10}, bf16 = {SL_DTYPE_BF16, 8, 7};

static double value(const struct format *f, unsigned h)
{
    int bias = (1 << (f->exponent - 1)) - 1;
    int e = (int)(h >> f->fraction) & ((1 << f->exponent) - 1);
    int m = (int)(h & ((1U << f->fraction) - 1));
    double sign = h & 0x8000 ? -1 : 1;
    if (e == (1 << f->exponent) - 1)
        return m ? NAN : sign * INFINITY;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - f->fraction);
    return sign * ldexp(m + (1 << f->fraction), e - bias - f->fraction);
}

/* One value through packing, as the first weight of a panel. */
static unsigned narrow(const struct format *f, const void *src, enum sl_dtype src_type)
{
    uint16_t panel[SL_PANEL];
    sl_pack_matrix(panel, f->type, src, src_type, 1, 1, 1, 1, 0, 1);
    return panel[0];
}

static unsigned from_f32(const struct format *f, float x)
{
    return narrow(f, &x, SL_DTYPE_F32);
}

static unsigned from_f64(const struct format *f, double x)
{
    return narrow(f, &x, SL_DTYPE_F64);
}

static void check_widening(const struct format *f)
{
    static uint16_t h[N_16 + 1];
    static float y[N_16];
    for (unsigned i = 0; i < N_16; i++)
        h[i] = (uint16_t)i;
    sl_widen(y, h, f->type, N_16);
    for (unsigned i = 0; i < N_16; i++) {
        double want = value(f, i);
        if (isnan(want) ? !isnan(y[i]) : (double)y[i] != want || !signbit(y[i]) != !(i & 0x8000))
            fail_msg("%s %04x is %a, not %a", sl_dtype_name(f->type), i, (double)y[i], want);
    }
    /* Wherever a file's header puts it. */
    static char bytes[2 * N_16 + 1];
    static float again[N_16];
    memcpy(bytes + 1, h, 2 * N_16);
    sl_widen(again, bytes + 1, f->type, N_16);
    assert_int_equal(first_difference(again, y, N_16), N_16);
}

static void widening_is_exact(void **state)
{
    (void)state;
    check_widening(&f16);
    check_widening(&bf16);
}

static bool is_nan16(const struct format *f, unsigned h)
{
    return isnan(value(f, h));
}

static void check_nearest(const struct format *f, double x, unsigned want)
{
    unsigned got = from_f64(f, x);
    if (got != want)
        fail_msg("%s of %a is %04x, not %04x", sl_dtype_name(f->type), x, got, want);
    if ((double)(float)x == x && from_f32(f, (float)x) != want)
        fail_msg("%s of the float %a is %04x, not %04x", sl_dtype_name(f->type), x,
                 from_f32(f, (float)x), want);
}

/* Each value, the middle between it and the next, and what is just below and above the middle. The
 * last finite value's "next" is the power of two where infinity would begin. */
static void check_narrowing(const struct format *f)
{
    unsigned infinite = ((1U << f->exponent) - 1) << f->fraction;
    for (unsigned h = 0; h < infinite; h++) {
        double low = value(f, h);
        double high = h + 1 < infinite ? value(f, h + 1) : 2 * low - value(f, h - 1);
        double middle = (low + high) / 2;
        unsigned even = h & 1 ? h + 1 : h;
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
            double s = sign ? -1 : 1;
            check_nearest(f, s * low, sign | h);
            check_nearest(f, s * middle, sign | even);
            check_nearest(f, s * nextafter(middle, 0), sign | h);
            check_nearest(f, s * nextafter(middle, INFINITY), sign | (h + 1));
            float m = (float)middle; /* exact, but below the smallest float for bf16's first */
            if ((double)m != middle)
                continue;
            check_nearest(f, s * (double)nextafterf(m, 0), sign | h);
            check_nearest(f, s * (double)nextafterf(m, INFINITY), sign | (h + 1));
        }
    }
    check_nearest(f, (double)FLT_MAX, infinite);
    check_nearest(f, -(double)FLT_MAX, 0x8000 | infinite);
    check_nearest(f, (double)INFINITY, infinite);
    check_nearest(f, -(double)INFINITY, 0x8000 | infinite);
    assert_int_equal(from_f64(f, DBL_MAX), infinite);
    assert_int_equal(from_f64(f, -DBL_MIN), 0x8000);
    check_nearest(f, -0.0, 0x8000);
}

static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    check_narrowing(&f16);
    check_narrowing(&bf16);
}

static void nans_stay_nans(void **state)
{
    (void)state;
    static const uint32_t payloads[] = {0x7f800001, 0xff800001, 0x7fc00000, 0xffffffff, 0x7f801fff};
    const struct format *formats[] = {&f16, &bf16};
    for (size_t i = 0; i < COUNT(formats); i++) {
        for (size_t j = 0; j < COUNT(payloads); j++) {
            /* By memory: passing a signalling NaN as a float might quiet it. */
            unsigned h = narrow(formats[i], &payloads[j], SL_DTYPE_F32);
            assert_true(is_nan16(formats[i], h));
            assert_int_equal(h & 0x8000, payloads[j] >> 16 & 0x8000);
        }
        assert_true(is_nan16(formats[i], from_f64(formats[i], (double)NAN)));
    }
}

/* A double that lies so close to a tie that rounding it to f32 first would make it one. */
static void doubles_are_rounded_once(void **state)
{
    (void)state;
    assert_int_equal(from_f64(&f16, 1 + 0x1p-11 + 0x1p-40), 0x3c01);
    assert_int_equal(from_f64(&f16, 1 + 0x1p-11), 0x3c00);
    assert_int_equal(from_f64(&f16, 1 + 0x1p-10 + 0x1p-11 - 0x1p-40), 0x3c01);
    assert_int_equal(from_f64(&bf16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
    assert_int_equal(from_f64(&bf16, 0x1p-134 + 0x1p-180), 0x0001);
    const double d = 1 + 0x1p-24 + 0x1p-50;
    float f;
    sl_widen(&f, &d, SL_DTYPE_F64, 1);
    assert_true(f == 1 + 0x1p-23F);
}

/* --- places --- */

/* The code of a whole number up to 255, by the format's definition. */
static uint16_t code_of(const struct format *f, double x)
{
    static uint16_t codes[2][256]; /* F16, BF16 */
    uint16_t *c = codes[f == &bf16];
    for (unsigned h = 0; c[1] == 0 && h < 0x8000; h++) {
        double v = value(f, 0x7fff - h);
        if (v >= 1 && v < 256 && v == floor(v))
            c[(size_t)v] = (uint16_t)(0x7fff - h); /* c[1] comes last */
    }
    return c[(size_t)x];
}

/* W[o][k] is 10·o + k + 1. */
static void check_places(enum sl_dtype src_type, enum sl_dtype type, size_t n_out, size_t n_in,
                         bool transposed)
{
    size_t size = sl_dtype_size(src_type), panels = sl_panels(n_out);
    size_t stride_out = transposed ? 1 : n_in + 3, stride_in = transposed ? n_out + 2 : 1;
    size_t last = (n_out - 1) * stride_out + (n_in - 1) * stride_in;
    char *src = sl_calloc(last + 1, size); /* ends with the last element */
    size_t bytes = sl_pack_bytes(type, n_out, n_in), n = panels * SL_PANEL * n_in;
    assert_int_equal(bytes, n * sl_dtype_size(type));
    char *dst = sl_malloc(bytes);
    float *wide = sl_malloc(n * sizeof *wide);
    assert_true(src && dst && wide);
    for (size_t o = 0; o < n_out; o++) {
        for (size_t k = 0; k < n_in; k++) {
            char *at = src + (o * stride_out + k * stride_in) * size;
            float f = (float)(10 * o + k + 1);
            double d = (double)f;
            if (src_type == SL_DTYPE_F64)
                memcpy(at, &d, sizeof d);
            else if (src_type == SL_DTYPE_F32)
                memcpy(at, &f, sizeof f);
            else
                memcpy(at, &(uint16_t){code_of(src_type == SL_DTYPE_F16 ? &f16 : &bf16, d)}, 2);
        }
    }
    memset(dst, 0xff, bytes);
    for (size_t p = panels; p > 0; p--) /* panel by panel, as workers would */
        sl_pack_matrix(dst, type, src, src_type, n_out, n_in, stride_out, stride_in, p - 1, p);
    sl_widen(wide, dst, type, n);
    for (size_t i = 0; i < n; i++) {
        size_t p = i / (SL_PANEL * n_in), k = i / SL_PANEL % n_in, o = p * SL_PANEL + i % SL_PANEL;
        float want = o < n_out ? (float)(10 * o + k + 1) : 0;
        if (wide[i] != want)
            fail_msg("%s to %s, %zu x %zu: W[%zu][%zu] is %g, not %g", sl_dtype_name(src_type),
                     sl_dtype_name(type), n_out, n_in, o, k, (double)wide[i], (double)want);
    }
    sl_free(src);
    sl_free(dst);
    sl_free(wide);
}

static void every_weight_has_its_place(void **state)
{
    (void)state;
    /* Up to 10·16 + 70 + 1 < 256: exact in bf16 as well. */
    static const enum sl_dtype from[] = {SL_DTYPE_F64, SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    static const enum sl_dtype to[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    static const size_t outs[] = {1, 15, 16, 17}, ins[] = {1, 2, 63, 64, 65, 70};
    for (size_t s = 0; s < COUNT(from); s++)
        for (size_t d = 0; d < COUNT(to); d++)
            for (size_t o = 0; o < COUNT(outs); o++)
                for (size_t i = 0; i < COUNT(ins); i++)
                    for (int t = 0; t < 2; t++)
                        check_places(from[s], to[d], outs[o], ins[i], t);
    check_places(SL_DTYPE_F32, SL_DTYPE_F32, 100, 130, false);
    check_places(SL_DTYPE_F32, SL_DTYPE_F32, 100, 130, true);
}

static void only_the_named_panels_are_written(void **state)
{
    (void)state;
    float src[48], dst[48], before[48];
    fill_uniform(src, 48, 1);
    fill_uniform(before, 48, 2);
    memcpy(dst, before, sizeof dst);
    sl_pack_matrix(dst, SL_DTYPE_F32, src, SL_DTYPE_F32, 48, 1, 1, 1, 1, 2);
    assert_memory_equal(dst, before, 16 * sizeof *dst);
    assert_memory_equal(dst + 16, src + 16, 16 * sizeof *dst);
    assert_memory_equal(dst + 32, before + 32, 16 * sizeof *dst);
}

static void sizes_do_not_overflow(void **state)
{
    (void)state;
    assert_int_equal(sl_pack_bytes(SL_DTYPE_F16, 17, 3), 2 * 16 * 3 * 2);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_F32, 16, 1), 64);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_F32, 0, 5), 0);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_F32, SIZE_MAX, 2), SIZE_MAX);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_F32, 16, SIZE_MAX / 8), SIZE_MAX);
    assert_null(sl_aligned_calloc(sl_pack_bytes(SL_DTYPE_F32, SIZE_MAX, 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widening_is_exact),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(nans_stay_nans),
        cmocka_unit_test(doubles_are_rounded_once),
        cmocka_unit_test(every_weight_has_its_place),
        cmocka_unit_test(only_the_named_panels_are_written),
        cmocka_unit_test(sizes_do_not_overflow),
    };
    return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
