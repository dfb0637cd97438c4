/* quant_test.c: Q8, Q5 and Q4: packing against the layout of quant.h read by plain code, and inputs
 * to 8 bits: what the scalar way loses, and every table against it, bit for bit. All buffers are
 * exactly as large as the contract says, for the address sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_kernels *ref;

/* --- packing ------------------------------------------------------------------------------------
 */

static double largest_of(const float *w, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, fabs((double)w[i]));
    return m;
}

static void q8_is_within_half_a_step(void **state)
{
    (void)state;
    static const size_t shapes[][2] = {{1, 1}, {17, 33}, {16, 32}, {5, 300}, {40, 64}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        size_t n_out = shapes[s][0], n_in = shapes[s][1];
        float *w = quant_floats(n_out * n_in);
        fill_uniform(w, n_out * n_in, s);
        for (size_t i = 0; i < n_out * n_in; i += 7)
            w[i] *= 0.01F;
        unsigned char *p = quant_pack(SL_DTYPE_Q8, w, n_out, n_in);
        for (size_t o = 0; o < n_out; o++)
            for (size_t k = 0; k < n_in; k++) {
                size_t g = k / 32 * 32, n = n_in - g < 32 ? n_in - g : 32;
                /* half a step, and what F16 rounds the scale by, at the end of the range */
                double most = largest_of(w + o * n_in + g, n) / 127 * (0.5 + 127 * 0x1p-11);
                double e = quant_weight_at(p, SL_DTYPE_Q8, n_in, o, k) - (double)w[o * n_in + k];
                if (!(fabs(e) <= most * 1.0001))
                    fail_msg("%zu x %zu, [%zu][%zu]: off by %g, more than %g", n_out, n_in, o, k, e,
                             most);
            }
        sl_free(p);
        sl_free(w);
    }
}

/* Deviates of a normal distribution, of a spread that differs from row to row. */
static void fill_normal(float *x, size_t rows, size_t n, uint64_t seed)
{
    float *u = quant_floats(12 * rows * n);
    fill_uniform(u, 12 * rows * n, seed);
    for (size_t i = 0; i < rows * n; i++) {
        x[i] = 0;
        for (size_t j = 0; j < 12; j++)
            x[i] += u[12 * i + j];
        x[i] *= ldexpf(1, -(int)(i / n % 9));
    }
    sl_free(u);
}

/* The squared error of the usual ways: the largest magnitude at 127; with 4 bits at -8 of -8 … 7.
 */
static double usual_error(enum sl_dtype type, const float *w)
{
    double top = 0, e = 0;
    for (size_t i = 0; i < 32; i++)
        top = fabs((double)w[i]) > fabs(top) ? (double)w[i] : top;
    double d = type == SL_DTYPE_Q8 ? top / 127 : top / -8, most = type == SL_DTYPE_Q8 ? 127 : 7;
    for (size_t i = 0; i < 32; i++) {
        double q = fmin(floor((double)w[i] / d + 0.5), most);
        e += (q * d - (double)w[i]) * (q * d - (double)w[i]);
    }
    return e;
}

static void is_better_than_the_usual_way(enum sl_dtype type, double most)
{
    enum { OUT = 144, IN = 256 };
    float *w = quant_floats((size_t)OUT * IN);
    fill_normal(w, OUT, IN, 5);
    unsigned char *p = quant_pack(type, w, OUT, IN);
    double usual = 0, ours = 0;
    for (size_t o = 0; o < OUT; o++)
        for (size_t g = 0; g < IN; g += 32) {
            double scale = largest_of(w + o * IN + g, 32);
            usual += usual_error(type, w + o * IN + g) / (scale * scale);
            for (size_t k = g; k < g + 32; k++) {
                double e = quant_weight_at(p, type, IN, o, k) - (double)w[o * IN + k];
                ours += e * e / (scale * scale);
            }
        }
    printf("  squared error of %s on normal weights: %.3f of that of the usual way\n",
           sl_dtype_name(type), ours / usual);
    assert_true(ours < most * usual);
    sl_free(p);
    sl_free(w);
}

static void packing_is_better_than_the_usual_way(void **state)
{
    (void)state;
    is_better_than_the_usual_way(SL_DTYPE_Q8, 0.86);
    is_better_than_the_usual_way(SL_DTYPE_Q4, 0.86);
}

/* Weights that are levels times a power of two come back as they were; so does what is 0. */
static void what_codes_can_say_is_exact(void **state)
{
    (void)state;
    enum { OUT = 18, IN = 96 };
    float *w = quant_floats((size_t)OUT * IN);
    for (size_t t = 0; t < QUANT_PACKED; t++) {
        for (size_t i = 0; i < (size_t)OUT * IN; i++) {
            int c = quant_types[t] == SL_DTYPE_Q8   ? (int)(i * 73 % 255) - 127
                    : quant_types[t] == SL_DTYPE_Q5 ? (int)(i * 7 % 32) - 16
                                                    : quant_levels[i * 7 % 16];
            w[i] = i / IN == 3 ? 0 : (float)c * ldexpf(1, -(int)(i / 32 % 11));
            if (i % 32 == 1 && i / IN != 3) /* so that the scale is the power of two */
                w[i] = (quant_types[t] == SL_DTYPE_Q8 ? 127.0F : -16.0F) *
                       ldexpf(1, -(int)(i / 32 % 11));
        }
        unsigned char *p = quant_pack(quant_types[t], w, OUT, IN);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k++)
                assert_true(quant_weight_at(p, quant_types[t], IN, o, k) == (double)w[o * IN + k]);
        sl_free(p);
    }
    sl_free(w);
}

/* GGUF's blocks: f16 d, then i8 q[32], or 16 bytes of which the low nibbles are weights 0 … 15. */
static void blocks_are_kept_as_they_are(void **state)
{
    (void)state;
    enum { OUT = 35, IN = 96 };
    static const enum sl_dtype kinds[] = {SL_DTYPE_Q8, SL_DTYPE_Q4_0};
    for (size_t t = 0; t < COUNT(kinds); t++) {
        size_t block = kinds[t] == SL_DTYPE_Q8 ? 34 : 18;
        unsigned char *b, *p = quant_from_blocks(kinds[t], OUT, IN, 3, &b);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k++) {
                const unsigned char *at = b + (o * IN + k) / 32 * block;
                int q = kinds[t] == SL_DTYPE_Q8
                            ? (int8_t)at[2 + k % 32]
                            : (k % 32 < 16 ? at[2 + k % 32] & 15 : at[2 + k % 16] >> 4) - 8;
                float d;
                sl_widen(&d, at, SL_DTYPE_F16, 1);
                assert_true(quant_weight_at(p, kinds[t], IN, o, k) == (double)d * q);
            }
        sl_free(p);
        sl_free(b);
    }
}

/* Every source type, both layouts, and panels one by one, give the same panels. */
static void sources_agree(void **state)
{
    (void)state;
    enum { OUT = 35, IN = 70 };
    float *w = quant_floats((size_t)OUT * IN), *turned = quant_floats((size_t)OUT * IN);
    double *wide = sl_malloc(sizeof *wide * OUT * IN);
    assert_non_null(wide);
    fill_uniform(w, (size_t)OUT * IN, 3);
    for (size_t o = 0; o < OUT; o++)
        for (size_t k = 0; k < IN; k++) {
            turned[k * OUT + o] = w[o * IN + k];
            wide[o * IN + k] = (double)w[o * IN + k];
        }
    for (size_t t = 0; t < QUANT_PACKED; t++) {
        size_t bytes = sl_pack_bytes(quant_types[t], OUT, IN);
        unsigned char *want = quant_pack(quant_types[t], w, OUT, IN),
                      *got = sl_aligned_calloc(bytes);
        assert_non_null(got);
        for (size_t p = sl_panels(OUT); p-- > 0;)
            sl_pack_matrix(got, quant_types[t], turned, SL_DTYPE_F32, OUT, IN, 1, OUT, p, p + 1);
        assert_memory_equal(got, want, bytes);
        sl_pack_matrix(got, quant_types[t], wide, SL_DTYPE_F64, OUT, IN, IN, 1, 0, sl_panels(OUT));
        assert_memory_equal(got, want, bytes);
        sl_free(got);
        sl_free(want);
    }
    sl_free(wide);
    sl_free(turned);
    sl_free(w);
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q8, 16, 32), 64 + 512);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4, 17, 65), 2 * (128 + 3 * 256));
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q5, 17, 65), 2 * (128 + 3 * 320));
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q8, 0, 32), 0);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q8, SIZE_MAX, 32), SIZE_MAX);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4, 1, SIZE_MAX), SIZE_MAX);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4, SIZE_MAX / 16, SIZE_MAX / 64), SIZE_MAX);
}

/* --- inputs -------------------------------------------------------------------------------------
 */

static void inputs_are_within_half_a_step(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 7, 31, 32, 33, 64, 300};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        size_t n = lengths[i];
        float *x = quant_floats(n);
        struct sl_group *y = sl_calloc(sl_groups(n), sizeof *y);
        assert_non_null(y);
        fill_uniform(x, n, n);
        ref->quantise(y, x, n);
        for (size_t g = 0; g < sl_groups(n); g++) {
            int sum[2] = {0}, pair[2] = {0};
            size_t here = n - g * 32 < 32 ? n - g * 32 : 32;
            double m = largest_of(x + g * 32, here);
            assert_true(fabs((double)y[g].scale - m / 127) <= m * 1e-9);
            for (size_t k = 0; k < 32; k++) {
                double want = k < here ? (double)x[g * 32 + k] : 0;
                assert_true(fabs(y[g].q[k] * (double)y[g].scale - want) <= m / 127 * 0.50001);
                sum[k / 16] += y[g].q[k];
                pair[k / 2 % 2] += y[g].q[k];
            }
            assert_int_equal(y[g].offset, -16 * (sum[0] + sum[1]));
            assert_true(y[g].half[0] == -16 * sum[0] && y[g].half[1] == -16 * sum[1]);
            assert_true(y[g].pair[0] == -16 * pair[0] && y[g].pair[1] == -16 * pair[1]);
        }
        sl_free(y);
        sl_free(x);
    }
}

/* Ties go to even; what is too small counts as nothing, what is no number poisons the group. */
static void inputs_at_the_ends(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (const char *const *name = sl_kernels_names(); *name; name++) {
        const struct sl_kernels *k = sl_kernels_find(*name);
        float x[64] = {127, -127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 126.5F};
        struct sl_group y[2];
        k->quantise(y, x, 64);
        const int8_t want[8] = {127, -127, 0, 2, 2, 0, -2, 126};
        assert_memory_equal(y[0].q, want, sizeof want);
        assert_true(y[0].scale == 1 && y[0].offset == -16 * 128);
        assert_true(y[1].scale == 0 && y[1].offset == 0);
        for (size_t i = 0; i < 64; i++)
            x[i] = i % 2 ? 0x1p-101F : -0x1p-140F;
        x[40] = 0x1p-100F;
        k->quantise(y, x, 64);
        assert_true(y[0].scale == 0 && y[0].q[1] == 0);
        assert_true(y[1].scale > 0 && y[1].q[8] == 127 && y[1].q[1] == 64);
        for (size_t i = 0; i < COUNT(bad); i++) {
            x[33] = bad[i];
            k->quantise(y, x, 64);
            assert_true(y[0].scale == 0 && isnan(y[1].scale) && y[1].offset == 0);
            for (size_t j = 0; j < 32; j++)
                assert_int_equal(y[1].q[j], 0);
        }
    }
}

static void inputs_in_every_table(void **state)
{
    (void)state;
    FOR_TABLES(k, ref)
    for (size_t n = 1; n < 200; n++)
        for (int values = 0; values < 3; values++) {
            float *x = quant_floats(n);
            if (values == 0)
                fill_uniform(x, n, n);
            else
                fill_special(x, n, n, values == 2);
            size_t bytes = sl_groups(n) * sizeof(struct sl_group);
            struct sl_group *got = sl_malloc(bytes), *want = sl_malloc(bytes);
            assert_true(got && want);
            memset(got, 1, bytes);
            memset(want, 2, bytes);
            ref->quantise(want, x, n);
            k->quantise(got, x, n);
            for (size_t g = 0; g < sl_groups(n); g++) {
                if (isnan(want[g].scale) && isnan(got[g].scale))
                    got[g].scale = want[g].scale;
                assert_memory_equal(&got[g], &want[g], sizeof *got);
            }
            sl_free(want);
            sl_free(got);
            sl_free(x);
        }
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(sizes),
        cmocka_unit_test(q8_is_within_half_a_step),
        cmocka_unit_test(packing_is_better_than_the_usual_way),
        cmocka_unit_test(what_codes_can_say_is_exact),
        cmocka_unit_test(sources_agree),
        cmocka_unit_test(blocks_are_kept_as_they_are),
        cmocka_unit_test(inputs_are_within_half_a_step),
        cmocka_unit_test(inputs_at_the_ends),
        cmocka_unit_test(inputs_in_every_table),
    };
    return cmocka_run_group_tests_name("quantised matrices and inputs", tests, NULL, NULL);
}
