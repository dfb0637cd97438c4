/* quants.c: see quants.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"
#include "tests/support/tables.h"

const enum sl_dtype quant_types[QUANT_TYPES] = {SL_DTYPE_Q8, SL_DTYPE_Q5, SL_DTYPE_Q4,
                                                SL_DTYPE_Q4_0};

float *quant_floats(size_t n)
{
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

const int quant_levels[16] = {-16, -13, -11, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 15};

struct quant_place quant_place_of(enum sl_dtype type, size_t n_in, size_t o, size_t k)
{
    size_t groups = (n_in + 31) / 32, scales = (groups * 32 + 63) / 64 * 64;
    size_t group_bytes = type == SL_DTYPE_Q8 ? 512 : type == SL_DTYPE_Q5 ? 320 : 256;
    size_t panel = o / 16 * (scales + groups * group_bytes);
    size_t in_step = o % 16 * 4 + k % 4, step = k % 32 / 4;
    struct quant_place p = {.scale = panel + k / 32 * 32 + o % 16 * 2};
    p.code = panel + scales + k / 32 * group_bytes;
    if (type == SL_DTYPE_Q8) {
        p.code += step * 64 + in_step;
    } else {
        p.high = p.code + 256 + in_step;
        p.bit = (unsigned)step;
        p.code += step * 32 + in_step % 32;
        p.shift = in_step >= 32 ? 4 : 0;
    }
    return p;
}

static int code_at(const unsigned char *panels, enum sl_dtype type, struct quant_place p)
{
    if (type == SL_DTYPE_Q8)
        return (int8_t)panels[p.code];
    int code = panels[p.code] >> p.shift & 15;
    if (type == SL_DTYPE_Q5)
        return (panels[p.high] >> p.bit & 1) * 16 + code - 16;
    return type == SL_DTYPE_Q4_0 ? code - 8 : quant_levels[code];
}

double quant_weight_at(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t o,
                       size_t k)
{
    struct quant_place p = quant_place_of(type, n_in, o, k);
    float scale;
    sl_widen(&scale, panels + p.scale, SL_DTYPE_F16, 1);
    return (double)scale * code_at(panels, type, p);
}

unsigned char *quant_from_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
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

unsigned char *quant_pack(enum sl_dtype type, const float *w, size_t n_out, size_t n_in)
{
    if (type == SL_DTYPE_Q4_0) /* comes from files only; here any codes will do */
        return quant_from_blocks(type, n_out, n_in, (uint64_t)(n_in * 7 + n_out), NULL);
    size_t bytes = sl_pack_bytes(type, n_out, n_in);
    unsigned char *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_non_null(p);
    memset(p, 0xA5, bytes); /* nothing may be left as it was */
    sl_pack_matrix(p, type, w, SL_DTYPE_F32, n_out, n_in, n_in, 1, 0, sl_panels(n_out));
    return p;
}

unsigned char *quant_from_k_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
                                   unsigned char **ret)
{
    size_t block = type == SL_DTYPE_Q4_K ? 144 : 210, n = n_out * (n_in / 256) * block;
    size_t bytes = sl_pack_bytes(type, n_out, n_in);
    unsigned char *b = sl_malloc(n ? n : 1), *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_true(b && p);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)next_random(&seed);
    for (size_t i = 0; i < n; i += block) { /* what would be no number becomes one */
        uint16_t d[2] = {(uint16_t)(0x1000 + next_random(&seed) % 0x1000),
                         (uint16_t)(0x9000 + next_random(&seed) % 0x1000)};
        memcpy(b + i + (type == SL_DTYPE_Q4_K ? 0 : 208), d, type == SL_DTYPE_Q4_K ? 4 : 2);
    }
    memset(p, 0xA5, bytes);
    sl_pack_blocks(p, type, b, n_out, n_in, 0, sl_panels(n_out));
    if (ret)
        *ret = b;
    else
        sl_free(b);
    return p;
}

struct sl_group *quant_inputs(const float *x, size_t rows, size_t n_in, size_t *ret_ld)
{
    size_t ld = sl_groups(n_in) + 1;
    struct sl_group *q = sl_malloc((rows * ld - 1) * sizeof *q);
    assert_non_null(q);
    memset(q, 0x7f, (rows * ld - 1) * sizeof *q);
    for (size_t r = 0; r < rows; r++)
        sl_kernels_find("ref")->quantise(q + r * ld, x + r * n_in, n_in);
    *ret_ld = ld;
    return q;
}

void quant_check(const unsigned char *panels, enum sl_dtype type, const struct sl_group *x,
                 size_t ldx, size_t rows, size_t n_in, size_t n_out, size_t begin, size_t end)
{
    const struct sl_kernels *ref = sl_kernels_find("ref");
    size_t ldy = sl_panels(n_out) * SL_PANEL + 3, n = rows * ldy - 3;
    float *got = quant_floats(n), *want = quant_floats(n);
    for (size_t i = 0; i < n; i++)
        want[i] = 12345;
    ref->matmul_q(want, ldy, x, ldx, rows, panels, type, n_in, begin, end);
    FOR_TABLES(k, ref)
    {
        for (size_t i = 0; i < n; i++)
            got[i] = 12345;
        k->matmul_q(got, ldy, x, ldx, rows, panels, type, n_in, begin, end);
        size_t i = first_difference(got, want, n);
        if (i < n)
            fail_msg("%s %s, %zu rows of %zu to %zu, panels %zu to %zu: [%zu][%zu] is %a, not %a",
                     k->name, sl_dtype_name(type), rows, n_in, n_out, begin, end, i / ldy, i % ldy,
                     (double)got[i], (double)want[i]);
    }
    sl_free(got);
    sl_free(want);
}

const size_t quant_rows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                             13, 14, 16, 18, 20, 22, 24, 25, 37, 64, 0};

void quant_check_rows(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t n_out,
                      const size_t *rows, int values)
{
    for (; *rows; rows++) {
        size_t n = *rows * n_in, end = sl_panels(n_out), ld;
        float *x = quant_floats(n);
        if (values == 0)
            fill_uniform(x, n, n);
        else
            fill_special(x, n, n, values == 2);
        struct sl_group *q = quant_inputs(x, *rows, n_in, &ld);
        quant_check(panels, type, q, ld, *rows, n_in, n_out, 0, end);
        if (end > 2)
            quant_check(panels, type, q, ld, *rows, n_in, n_out, 1, end - 1);
        sl_free(q);
        sl_free(x);
    }
}

void quant_check_sums(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t n_out,
                      double (*weight_at)(const unsigned char *panels, enum sl_dtype type,
                                          size_t n_in, size_t o, size_t k))
{
    enum { ROWS = 3, OUT = 32, LDY = 40 };
    float *x = quant_floats(ROWS * n_in), y[ROWS * LDY];
    size_t ld;
    assert_true(sl_panels(n_out) * SL_PANEL == OUT);
    fill_uniform(x, ROWS * n_in, 2);
    struct sl_group *q = quant_inputs(x, ROWS, n_in, &ld);
    sl_kernels_find("ref")->matmul_q(y, LDY, q, ld, ROWS, panels, type, n_in, 0, sl_panels(n_out));
    for (size_t r = 0; r < ROWS; r++)
        for (size_t o = 0; o < OUT; o++) {
            double want = 0, size = 0;
            for (size_t k = 0; k < n_in && o < n_out; k++) {
                const struct sl_group *g = &q[r * ld + k / 32];
                double a = weight_at(panels, type, n_in, o, k) * (double)g->scale * g->q[k % 32];
                want += a;
                size += fabs(a);
            }
            if (!(fabs((double)y[r * LDY + o] - want) <= size * 4e-7))
                fail_msg("%s [%zu][%zu] is %.8g, not %.8g", sl_dtype_name(type), r, o,
                         (double)y[r * LDY + o], want);
        }
    sl_free(q);
    sl_free(x);
}

void quant_check_bad_row(const unsigned char *panels, enum sl_dtype type, size_t n_in)
{
    enum { ROWS = 14 };
    float *x = quant_floats(ROWS * n_in), y[ROWS * SL_PANEL];
    size_t ld;
    fill_uniform(x, ROWS * n_in, 2);
    x[3 * n_in + 40] = NAN;
    x[9 * n_in] = INFINITY;
    struct sl_group *q = quant_inputs(x, ROWS, n_in, &ld);
    for (const char *const *name = sl_kernels_names(); *name; name++) {
        sl_kernels_find(*name)->matmul_q(y, SL_PANEL, q, ld, ROWS, panels, type, n_in, 0, 1);
        for (size_t i = 0; i < ROWS * SL_PANEL; i++)
            assert_true(!isfinite(y[i]) == (i / SL_PANEL == 3 || i / SL_PANEL == 9));
    }
    sl_free(q);
    sl_free(x);
}

void quant_check_empty(enum sl_dtype type, size_t n_in)
{
    enum { ROWS = 20 };
    size_t ld = sl_groups(n_in), n = ROWS * SL_PANEL;
    struct sl_group *x = sl_calloc(ROWS * ld, sizeof *x);
    unsigned char w[1] = {0};
    float y[ROWS * SL_PANEL];
    assert_non_null(x);
    for (const char *const *name = sl_kernels_names(); *name; name++) {
        const struct sl_kernels *k = sl_kernels_find(*name);
        for (size_t i = 0; i < n; i++)
            y[i] = 7;
        k->matmul_q(y, SL_PANEL, x, ld, 0, w, type, n_in, 0, 1);
        k->matmul_q(y, SL_PANEL, x, ld, ROWS, w, type, n_in, 0, 0);
        for (size_t i = 0; i < n; i++)
            assert_true(y[i] == 7);
        k->matmul_q(y, SL_PANEL, x, 1, ROWS, w, type, 0, 0, 1);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(float_bits(y[i]), 0);
    }
    sl_free(x);
}
