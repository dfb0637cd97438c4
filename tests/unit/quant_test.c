/* quant_test.c: Q8 and Q4: packing against the layout of quant.h read by plain code, the scalar
 * product against sums in double precision, and every table against the scalar one, bit for bit:
 * shapes that fit nothing, the largest sums there can be, and inputs that are no numbers. All
 * buffers are exactly as large as the contract says, for the address sanitizer. */
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

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum sl_dtype types[] = {SL_DTYPE_Q8, SL_DTYPE_Q4, SL_DTYPE_Q4_0};

static const struct sl_kernels *ref;

#define FOR_TABLES(k)                                                                              \
    for (const char *const *name_ = sl_kernels_names(); *name_; name_++)                           \
        for (const struct sl_kernels *k = sl_kernels_find(*name_); k && k != ref; k = NULL)

static float *floats(size_t n)
{
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

/* --- the layout, read back ----------------------------------------------------------------------
 */

/* From the words of quant.h; nothing of its code is used. */
static const int levels[16] = {-16, -13, -11, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 15};

struct place {
    size_t scale, code;
    unsigned shift; /* of a Q4 code in its byte */
};

static struct place place_of(enum sl_dtype type, size_t n_in, size_t o, size_t k)
{
    size_t groups = (n_in + 31) / 32, scales = (groups * 32 + 63) / 64 * 64;
    size_t group_bytes = type == SL_DTYPE_Q8 ? 512 : 256;
    size_t panel = o / 16 * (scales + groups * group_bytes);
    size_t in_step = o % 16 * 4 + k % 4, step = k % 32 / 4;
    struct place p = {.scale = panel + k / 32 * 32 + o % 16 * 2};
    p.code = panel + scales + k / 32 * group_bytes;
    if (type == SL_DTYPE_Q8) {
        p.code += step * 64 + in_step;
    } else {
        p.code += step * 32 + in_step % 32;
        p.shift = in_step >= 32 ? 4 : 0;
    }
    return p;
}

static int code_at(const unsigned char *panels, enum sl_dtype type, struct place p)
{
    if (type == SL_DTYPE_Q8)
        return (int8_t)panels[p.code];
    int code = panels[p.code] >> p.shift & 15;
    return type == SL_DTYPE_Q4_0 ? code - 8 : levels[code];
}

static double weight_at(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t o,
                        size_t k)
{
    struct place p = place_of(type, n_in, o, k);
    float scale;
    sl_widen(&scale, panels + p.scale, SL_DTYPE_F16, 1);
    return (double)scale * code_at(panels, type, p);
}

/* Panels of random blocks: codes of any kind (-128 too), scales of a size that weights have. *ret
 * (may be NULL): the blocks; of whole groups only, what lies beyond n_in is a code like others. */
static unsigned char *from_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
                                  unsigned char **ret)
{
    size_t bytes = sl_pack_bytes(type, n_out, n_in), block = type == SL_DTYPE_Q8 ? 34 : 18;
    size_t groups = (n_in + 31) / 32, n = n_out * groups * block;
    unsigned char *b = sl_malloc(n ? n : 1), *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_true(b && p);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)next_random(&seed);
    for (size_t i = 0; i < n; i += block) {
        uint16_t scale = (uint16_t)(0x2000 + next_random(&seed) % 0x1000);
        memcpy(b + i, &scale, sizeof scale);
    }
    memset(p, 0xA5, bytes);
    sl_pack_blocks(p, type, b, n_out, groups * 32, 0, sl_panels(n_out));
    if (ret)
        *ret = b;
    else
        sl_free(b);
    return p;
}

static unsigned char *any_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed)
{
    return from_blocks(type, n_out, n_in, seed, NULL);
}

static unsigned char *pack(enum sl_dtype type, const float *w, size_t n_out, size_t n_in)
{
    if (type == SL_DTYPE_Q4_0) /* comes from files only; here any codes will do */
        return any_blocks(type, n_out, n_in, (uint64_t)(n_in * 7 + n_out));
    size_t bytes = sl_pack_bytes(type, n_out, n_in);
    unsigned char *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_non_null(p);
    memset(p, 0xA5, bytes); /* nothing may be left as it was */
    sl_pack_matrix(p, type, w, SL_DTYPE_F32, n_out, n_in, n_in, 1, 0, sl_panels(n_out));
    return p;
}

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
        float *w = floats(n_out * n_in);
        fill_uniform(w, n_out * n_in, s);
        for (size_t i = 0; i < n_out * n_in; i += 7)
            w[i] *= 0.01F;
        unsigned char *p = pack(SL_DTYPE_Q8, w, n_out, n_in);
        for (size_t o = 0; o < n_out; o++)
            for (size_t k = 0; k < n_in; k++) {
                size_t g = k / 32 * 32, n = n_in - g < 32 ? n_in - g : 32;
                /* half a step, and what F16 rounds the scale by, at the end of the range */
                double most = largest_of(w + o * n_in + g, n) / 127 * (0.5 + 127 * 0x1p-11);
                double e = weight_at(p, SL_DTYPE_Q8, n_in, o, k) - (double)w[o * n_in + k];
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
    float *u = floats(12 * rows * n);
    fill_uniform(u, 12 * rows * n, seed);
    for (size_t i = 0; i < rows * n; i++) {
        x[i] = 0;
        for (size_t j = 0; j < 12; j++)
            x[i] += u[12 * i + j];
        x[i] *= ldexpf(1, -(int)(i / n % 9));
    }
    sl_free(u);
}

/* The squared error of the usual way with 4 bits: the largest magnitude at -8 of -8 … 7. */
static double usual_error(const float *w)
{
    double top = 0, e = 0;
    for (size_t i = 0; i < 32; i++)
        top = fabs((double)w[i]) > fabs(top) ? (double)w[i] : top;
    double d = top / -8;
    for (size_t i = 0; i < 32; i++) {
        double q = fmin(fmax(floor((double)w[i] / d + 8.5), 0), 15) - 8;
        e += (q * d - (double)w[i]) * (q * d - (double)w[i]);
    }
    return e;
}

static void q4_is_better_than_even_steps(void **state)
{
    (void)state;
    enum { OUT = 144, IN = 256 };
    float *w = floats((size_t)OUT * IN);
    fill_normal(w, OUT, IN, 5);
    unsigned char *p = pack(SL_DTYPE_Q4, w, OUT, IN);
    double usual = 0, ours = 0;
    for (size_t o = 0; o < OUT; o++)
        for (size_t g = 0; g < IN; g += 32) {
            double scale = largest_of(w + o * IN + g, 32);
            usual += usual_error(w + o * IN + g) / (scale * scale);
            for (size_t k = g; k < g + 32; k++) {
                double e = weight_at(p, SL_DTYPE_Q4, IN, o, k) - (double)w[o * IN + k];
                ours += e * e / (scale * scale);
            }
        }
    printf("  squared error of Q4 on normal weights: %.3f of that with even steps\n", ours / usual);
    assert_true(ours < 0.86 * usual);
    sl_free(p);
    sl_free(w);
}

/* Weights that are levels times a power of two come back as they were; so does what is 0. */
static void what_codes_can_say_is_exact(void **state)
{
    (void)state;
    enum { OUT = 18, IN = 96 };
    float *w = floats((size_t)OUT * IN);
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < (size_t)OUT * IN; i++) {
            int c = types[t] == SL_DTYPE_Q8 ? (int)(i * 73 % 255) - 127 : levels[i * 7 % 16];
            w[i] = i / IN == 3 ? 0 : (float)c * ldexpf(1, -(int)(i / 32 % 11));
            if (i % 32 == 1 && i / IN != 3) /* so that the scale is the power of two */
                w[i] = (types[t] == SL_DTYPE_Q8 ? 127.0F : -16.0F) * ldexpf(1, -(int)(i / 32 % 11));
        }
        unsigned char *p = pack(types[t], w, OUT, IN);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k++)
                assert_true(weight_at(p, types[t], IN, o, k) == (double)w[o * IN + k]);
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
        unsigned char *b, *p = from_blocks(kinds[t], OUT, IN, 3, &b);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k++) {
                const unsigned char *at = b + (o * IN + k) / 32 * block;
                int q = kinds[t] == SL_DTYPE_Q8
                            ? (int8_t)at[2 + k % 32]
                            : (k % 32 < 16 ? at[2 + k % 32] & 15 : at[2 + k % 16] >> 4) - 8;
                float d;
                sl_widen(&d, at, SL_DTYPE_F16, 1);
                assert_true(weight_at(p, kinds[t], IN, o, k) == (double)d * q);
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
    float *w = floats((size_t)OUT * IN), *turned = floats((size_t)OUT * IN);
    double *wide = sl_malloc(sizeof *wide * OUT * IN);
    assert_non_null(wide);
    fill_uniform(w, (size_t)OUT * IN, 3);
    for (size_t o = 0; o < OUT; o++)
        for (size_t k = 0; k < IN; k++) {
            turned[k * OUT + o] = w[o * IN + k];
            wide[o * IN + k] = (double)w[o * IN + k];
        }
    for (size_t t = 0; t < 2; t++) {
        size_t bytes = sl_pack_bytes(types[t], OUT, IN);
        unsigned char *want = pack(types[t], w, OUT, IN), *got = sl_aligned_calloc(bytes);
        assert_non_null(got);
        for (size_t p = sl_panels(OUT); p-- > 0;)
            sl_pack_matrix(got, types[t], turned, SL_DTYPE_F32, OUT, IN, 1, OUT, p, p + 1);
        assert_memory_equal(got, want, bytes);
        sl_pack_matrix(got, types[t], wide, SL_DTYPE_F64, OUT, IN, IN, 1, 0, sl_panels(OUT));
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
        float *x = floats(n);
        struct sl_group *y = sl_calloc(sl_groups(n), sizeof *y);
        assert_non_null(y);
        fill_uniform(x, n, n);
        ref->quantise(y, x, n);
        for (size_t g = 0; g < sl_groups(n); g++) {
            int sum = 0;
            size_t here = n - g * 32 < 32 ? n - g * 32 : 32;
            double m = largest_of(x + g * 32, here);
            assert_true(fabs((double)y[g].scale - m / 127) <= m * 1e-9);
            for (size_t k = 0; k < 32; k++) {
                double want = k < here ? (double)x[g * 32 + k] : 0;
                assert_true(fabs(y[g].q[k] * (double)y[g].scale - want) <= m / 127 * 0.50001);
                sum += y[g].q[k];
            }
            assert_int_equal(y[g].offset, -16 * sum);
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
    FOR_TABLES(k)
    for (size_t n = 1; n < 200; n++)
        for (int values = 0; values < 3; values++) {
            float *x = floats(n);
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

/* --- products -----------------------------------------------------------------------------------
 */

static struct sl_group *quantised(const float *x, size_t rows, size_t n_in, size_t *ret_ld)
{
    size_t ld = sl_groups(n_in) + 1; /* a gap that holds nothing of use */
    struct sl_group *q = sl_malloc((rows * ld - 1) * sizeof *q);
    assert_non_null(q);
    memset(q, 0x7f, (rows * ld - 1) * sizeof *q);
    for (size_t r = 0; r < rows; r++)
        ref->quantise(q + r * ld, x + r * n_in, n_in);
    *ret_ld = ld;
    return q;
}

static void products_are_accurate(void **state)
{
    (void)state;
    enum { OUT = 21, IN = 150, ROWS = 3, LDY = 40 };
    float *w = floats((size_t)OUT * IN), *x = floats((size_t)ROWS * IN), y[ROWS * LDY];
    fill_uniform(w, (size_t)OUT * IN, 1);
    fill_uniform(x, (size_t)ROWS * IN, 2);
    size_t ld;
    struct sl_group *q = quantised(x, ROWS, IN, &ld);
    for (size_t t = 0; t < COUNT(types); t++) {
        unsigned char *p = pack(types[t], w, OUT, IN);
        ref->matmul_q(y, LDY, q, ld, ROWS, p, types[t], IN, 0, sl_panels(OUT));
        for (size_t r = 0; r < ROWS; r++)
            for (size_t o = 0; o < 32; o++) {
                double want = 0, size = 0;
                for (size_t k = 0; k < IN && o < OUT; k++) {
                    const struct sl_group *g = &q[r * ld + k / 32];
                    double a = weight_at(p, types[t], IN, o, k) * (double)g->scale * g->q[k % 32];
                    want += a;
                    size += fabs(a);
                }
                if (!(fabs((double)y[r * LDY + o] - want) <= size * 4e-7))
                    fail_msg("%s [%zu][%zu] is %.8g, not %.8g", sl_dtype_name(types[t]), r, o,
                             (double)y[r * LDY + o], want);
            }
        sl_free(p);
    }
    sl_free(q);
    sl_free(x);
    sl_free(w);
}

/* Panels [begin, end) of one product; the rest of y must stay as it was. */
static void check(const struct sl_kernels *k, const unsigned char *panels, enum sl_dtype type,
                  const struct sl_group *x, size_t ldx, size_t rows, size_t n_in, size_t n_out,
                  size_t begin, size_t end)
{
    size_t ldy = sl_panels(n_out) * SL_PANEL + 3, n = rows * ldy - 3;
    float *got = floats(n), *want = floats(n);
    for (size_t i = 0; i < n; i++)
        got[i] = want[i] = 12345;
    ref->matmul_q(want, ldy, x, ldx, rows, panels, type, n_in, begin, end);
    k->matmul_q(got, ldy, x, ldx, rows, panels, type, n_in, begin, end);
    size_t i = first_difference(got, want, n);
    if (i < n)
        fail_msg("%s %s, %zu rows of %zu to %zu, panels %zu to %zu: [%zu][%zu] is %a, not %a",
                 k->name, sl_dtype_name(type), rows, n_in, n_out, begin, end, i / ldy, i % ldy,
                 (double)got[i], (double)want[i]);
    sl_free(got);
    sl_free(want);
}

static const size_t many[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                              13, 14, 16, 18, 20, 22, 24, 25, 37, 64, 0};

static void check_shape(enum sl_dtype type, size_t n_in, size_t n_out, int values)
{
    float *w = floats(n_out * n_in);
    fill_uniform(w, n_out * n_in, n_in * 1000 + n_out);
    unsigned char *panels = pack(type, w, n_out, n_in);
    size_t end = sl_panels(n_out);
    for (size_t i = 0; many[i]; i++) {
        size_t n = many[i] * n_in, ld;
        float *x = floats(n);
        if (values == 0)
            fill_uniform(x, n, n);
        else
            fill_special(x, n, n, values == 2);
        struct sl_group *q = quantised(x, many[i], n_in, &ld);
        FOR_TABLES(k)
        {
            check(k, panels, type, q, ld, many[i], n_in, n_out, 0, end);
            if (end > 2)
                check(k, panels, type, q, ld, many[i], n_in, n_out, 1, end - 1);
        }
        sl_free(q);
        sl_free(x);
    }
    sl_free(panels);
    sl_free(w);
}

static void odd_shapes(void **state)
{
    (void)state;
    static const size_t ins[] = {1, 7, 32, 33, 64, 65, 300, 1056},
                        outs[] = {1, 12, 16, 17, 33, 80, 113};
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            for (size_t o = 0; o < COUNT(outs); o++)
                check_shape(types[t], ins[i], outs[o], 0);
}

static void special_inputs(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t n_in = 1; n_in < 100; n_in += 16)
            for (int values = 1; values < 3; values++)
                check_shape(types[t], n_in, 40, values);
}

/* Longer than a block of k. */
static void longest_rows(void **state)
{
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++)
        check_shape(types[t], 4096 + 32, 40, 0);
}

/* Every code there is (-128 too, which no packing makes, but a file may) against inputs of the
 * largest magnitudes, all of one sign or mixed: where a sum in 16 bits would have no room. */
static void extremes(void **state)
{
    (void)state;
    enum { IN = 96, OUT = 32, ROWS = 13 };
    static const uint8_t fills[] = {0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f, 0x81, 0x01};
    struct sl_group *q = sl_calloc((size_t)ROWS * 3, sizeof *q);
    assert_non_null(q);
    for (size_t i = 0; i < (size_t)ROWS * 3; i++) {
        int sum = 0;
        for (size_t k = 0; k < 32; k++) {
            bool minus = i % 3 == 1 || (i % 3 == 2 && (k / (1 + i % 5)) % 2);
            q[i].q[k] = minus ? -127 : 127;
            sum += q[i].q[k];
        }
        q[i].scale = 1 + (float)i;
        q[i].offset = -16 * sum;
    }
    for (size_t t = 0; t < COUNT(types); t++) {
        size_t bytes = sl_pack_bytes(types[t], OUT, IN);
        unsigned char *p = sl_aligned_calloc(bytes);
        assert_non_null(p);
        for (size_t f = 0; f < COUNT(fills) + 4; f++) {
            for (size_t i = 0; i < bytes; i++)
                p[i] = f < COUNT(fills) ? fills[f] : (uint8_t)(i * (f * 2 + 1) * 37);
            for (size_t o = 0; o < OUT; o++)
                for (size_t k = 0; k < IN; k += 32) /* 1, as F16 */
                    memcpy(p + place_of(types[t], IN, o, k).scale, (uint16_t[]){0x3c00}, 2);
            FOR_TABLES(k)
            for (size_t rows = 1; rows <= ROWS; rows++)
                check(k, p, types[t], q, 3, rows, IN, OUT, 0, 2);
        }
        /* And what it comes to: 96 products of the lowest code and 127, with the scales 1, 2, 3. */
        float y[OUT];
        memset(p, types[t] == SL_DTYPE_Q8 ? 0x80 : 0, bytes);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k += 32)
                memcpy(p + place_of(types[t], IN, o, k).scale, (uint16_t[]){0x3c00}, 2);
        int lowest = types[t] == SL_DTYPE_Q8 ? -128 : types[t] == SL_DTYPE_Q4 ? -16 : -8;
        ref->matmul_q(y, OUT, q, 3, 1, p, types[t], 32, 0, 0);
        for (const char *const *name = sl_kernels_names(); *name; name++) {
            sl_kernels_find(*name)->matmul_q(y, OUT, q, 3, 1, p, types[t], IN, 0, 2);
            int third = 0;
            for (size_t k = 0; k < 32; k++)
                third += q[2].q[k];
            for (size_t o = 0; o < OUT; o++)
                assert_true(y[o] == (float)(lowest * (32 * 127 - 2 * 32 * 127 + 3 * third)));
        }
        sl_free(p);
    }
    sl_free(q);
}

/* A row that is no number makes its own sums NaN and nobody else's. */
static void a_bad_row_is_alone(void **state)
{
    (void)state;
    enum { IN = 64, OUT = 16, ROWS = 14 };
    float w[OUT * IN], x[ROWS * IN], y[ROWS * OUT];
    fill_uniform(w, COUNT(w), 1);
    fill_uniform(x, COUNT(x), 2);
    x[3 * IN + 40] = NAN;
    x[9 * IN] = INFINITY;
    size_t ld;
    struct sl_group *q = quantised(x, ROWS, IN, &ld);
    for (size_t t = 0; t < COUNT(types); t++) {
        unsigned char *p = pack(types[t], w, OUT, IN);
        for (const char *const *name = sl_kernels_names(); *name; name++) {
            sl_kernels_find(*name)->matmul_q(y, OUT, q, ld, ROWS, p, types[t], IN, 0, 1);
            for (size_t i = 0; i < COUNT(y); i++)
                assert_true(!isfinite(y[i]) == (i / OUT == 3 || i / OUT == 9));
        }
        sl_free(p);
    }
    sl_free(q);
}

/* No rows and no panels write nothing; a sum over nothing is zero. */
static void empty(void **state)
{
    (void)state;
    struct sl_group x[20] = {{0}};
    unsigned char w[1] = {0};
    float y[20 * SL_PANEL];
    for (size_t t = 0; t < COUNT(types); t++)
        for (const char *const *name = sl_kernels_names(); *name; name++) {
            const struct sl_kernels *k = sl_kernels_find(*name);
            for (size_t i = 0; i < COUNT(y); i++)
                y[i] = 7;
            k->matmul_q(y, SL_PANEL, x, 1, 0, w, types[t], 1, 0, 1);
            k->matmul_q(y, SL_PANEL, x, 1, 20, w, types[t], 1, 0, 0);
            for (size_t i = 0; i < COUNT(y); i++)
                assert_true(y[i] == 7);
            k->matmul_q(y, SL_PANEL, x, 1, 20, w, types[t], 0, 0, 1);
            for (size_t i = 0; i < COUNT(y); i++)
                assert_int_equal(float_bits(y[i]), 0);
        }
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(q8_is_within_half_a_step),
        cmocka_unit_test(q4_is_better_than_even_steps),
        cmocka_unit_test(what_codes_can_say_is_exact),
        cmocka_unit_test(sources_agree),
        cmocka_unit_test(blocks_are_kept_as_they_are),
        cmocka_unit_test(inputs_are_within_half_a_step),
        cmocka_unit_test(inputs_at_the_ends),
        cmocka_unit_test(inputs_in_every_table),
        cmocka_unit_test(products_are_accurate),
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(special_inputs),
        cmocka_unit_test(longest_rows),
        cmocka_unit_test(extremes),
        cmocka_unit_test(a_bad_row_is_alone),
        cmocka_unit_test(empty),
    };
    return cmocka_run_group_tests_name("quantised products", tests, NULL, NULL);
}
