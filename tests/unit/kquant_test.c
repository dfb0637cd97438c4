/* kquant_test.c: Q4_K and Q6_K: panels hold a file's own numbers where kquant.h says, the scalar
 * product is that of the file's values, and every table gives its bits: shapes that fit nothing,
 * the largest sums there can be, inputs that are no numbers. All buffers are exactly as large as
 * the contract says, for the address sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/ggml_blocks.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { TYPES = 2 };
static const enum sl_dtype types[TYPES] = {SL_DTYPE_Q4_K, SL_DTYPE_Q6_K};
static const enum sl_block_type blocks[TYPES] = {SL_BLOCK_Q4_K, SL_BLOCK_Q6_K};
static const struct sl_kernels *ref;

/* --- the layout, read by plain code from the words of kquant.h ----------------------------------
 */

static double half(const unsigned char *p)
{
    float f;
    sl_widen(&f, p, SL_DTYPE_F16, 1);
    return (double)f;
}

static double weight_at(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t o,
                        size_t k)
{
    bool six = type == SL_DTYPE_Q6_K;
    size_t record = six ? 288 : 320, group = six ? 384 : 256;
    size_t scales = (n_in / 256 * record + 63) / 64 * 64;
    const unsigned char *panel = panels + o / 16 * (scales + n_in / 32 * group);
    const unsigned char *r = panel + k / 256 * record, *c = panel + scales + k / 32 * group;
    const unsigned char *s = r + (six ? 32 : 64) + k % 256 / 32 * 32;
    size_t lane = o % 16, step = k % 32 / 4, i = lane * 4 + k % 4;
    int code = c[step * 32 + i % 32] >> (i < 32 ? 0 : 4) & 15;
    if (!six)
        return half(r + 2 * lane) * s[lane] * code - half(r + 32 + 2 * lane) * s[16 + lane];
    code |= (c[256 + step * 16 + i % 16] >> i / 16 * 2 & 3) << 4;
    return half(r + 2 * lane) * (int8_t)s[k % 32 / 16 * 16 + lane] * (code - 32);
}

static void panels_hold_the_files_values(void **state)
{
    (void)state;
    enum { OUT = 35, IN = 768 };
    float *row = quant_floats(IN);
    for (size_t t = 0; t < TYPES; t++) {
        unsigned char *b, *p = quant_from_k_blocks(types[t], OUT, IN, 3, &b);
        for (size_t o = 0; o < 48; o++) {
            if (o < OUT)
                sl_block_dequantise_row(row, b + o * (IN / 256) * sl_block_bytes(blocks[t]),
                                        blocks[t], IN);
            for (size_t k = 0; k < IN; k++) {
                double w = weight_at(p, types[t], IN, o, k);
                assert_true((float)w == (o < OUT ? row[k] : 0)); /* the file's are rounded */
            }
        }
        sl_free(p);
        sl_free(b);
    }
    sl_free(row);
}

/* Panels one by one are those of all at once. */
static void panels_one_by_one(void **state)
{
    (void)state;
    enum { OUT = 35, IN = 512 };
    for (size_t t = 0; t < TYPES; t++) {
        size_t bytes = sl_pack_bytes(types[t], OUT, IN);
        unsigned char *b, *want = quant_from_k_blocks(types[t], OUT, IN, 8, &b),
                          *got = sl_aligned_calloc(bytes);
        assert_non_null(got);
        for (size_t p = sl_panels(OUT); p-- > 0;)
            sl_pack_blocks(got, types[t], b, OUT, IN, p, p + 1);
        assert_memory_equal(got, want, bytes);
        sl_free(got);
        sl_free(want);
        sl_free(b);
    }
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4_K, 16, 256), 320 + 8 * 256);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q6_K, 17, 512), 2 * (576 + 16 * 384));
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q6_K, 16, 256), 320 + 8 * 384);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4_K, 0, 256), 0);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q6_K, SIZE_MAX, 256), SIZE_MAX);
    assert_int_equal(sl_pack_bytes(SL_DTYPE_Q4_K, 1, SIZE_MAX), SIZE_MAX);
}

/* --- products -----------------------------------------------------------------------------------
 */

static void products_are_accurate(void **state)
{
    (void)state;
    enum { OUT = 21, IN = 512 };
    for (size_t t = 0; t < TYPES; t++) {
        unsigned char *p = quant_from_k_blocks(types[t], OUT, IN, 5, NULL);
        quant_check_sums(p, types[t], IN, OUT, weight_at);
        sl_free(p);
    }
}

static void check_shape(enum sl_dtype type, size_t n_in, size_t n_out, int values)
{
    unsigned char *p = quant_from_k_blocks(type, n_out, n_in, n_in * 7 + n_out, NULL);
    quant_check_rows(p, type, n_in, n_out, quant_rows, values);
    sl_free(p);
}

static void odd_shapes(void **state)
{
    (void)state;
    static const size_t ins[] = {256, 512, 1280}, outs[] = {1, 12, 16, 17, 33, 80, 113};
    for (size_t t = 0; t < TYPES; t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            for (size_t o = 0; o < (ins[i] > 1000 ? 5 : COUNT(outs)); o++)
                check_shape(types[t], ins[i], outs[o], 0);
}

/* A block of k is 3,072 inputs (quant_tile.h): one and a little more, one and a third, two and what
 * is left. Of 40 outputs a panel is left, too. */
static void longer_than_a_block(void **state)
{
    (void)state;
    static const size_t ins[] = {3328, 4096, 6400};
    for (size_t t = 0; t < TYPES; t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            check_shape(types[t], ins[i], 40, 0);
}

static void special_inputs(void **state)
{
    (void)state;
    for (size_t t = 0; t < TYPES; t++)
        for (int values = 1; values < 3; values++)
            check_shape(types[t], 512, 40, values);
}

/* The largest codes and scales of either sign against inputs of the largest magnitudes, all of one
 * sign or mixed: where a sum in 16 bits, or one in F32, would have no room. And what it comes to.
 */
static void extremes(void **state)
{
    (void)state;
    enum { IN = 256, OUT = 32, ROWS = 13, GROUPS = IN / 32 };
    static const uint8_t fills[] = {0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f, 0x3f};
    struct sl_group *q = sl_calloc((size_t)ROWS * GROUPS, sizeof *q);
    assert_non_null(q);
    for (size_t i = 0; i < (size_t)ROWS * GROUPS; i++) {
        size_t r = i / GROUPS;
        int sum[2] = {0};
        for (size_t k = 0; k < 32; k++) {
            bool minus = r % 3 == 1 || (r % 3 == 2 && (k / (1 + r % 5)) % 2);
            q[i].q[k] = minus ? -127 : 127;
            sum[k / 16] += q[i].q[k];
        }
        q[i].scale = 1;
        q[i].offset = -16 * (sum[0] + sum[1]);
        q[i].half[0] = (int16_t)(-16 * sum[0]);
        q[i].half[1] = (int16_t)(-16 * sum[1]);
    }
    for (size_t t = 0; t < TYPES; t++) {
        size_t n = sl_block_bytes(blocks[t]), bytes = sl_pack_bytes(types[t], OUT, IN);
        unsigned char *b = sl_malloc(n * OUT), *p = sl_aligned_calloc(bytes);
        float *w = quant_floats(IN), y[ROWS * OUT];
        assert_true(b && p);
        for (size_t f = 0; f < COUNT(fills) * COUNT(fills); f++) {
            for (size_t o = 0; o < OUT; o++) { /* codes of one fill, scales of another; d, m 1 */
                unsigned char *at = b + o * n, *d = at + (t == 0 ? 0 : 208);
                memset(at, fills[f / COUNT(fills)], n);
                memset(t == 0 ? at + 4 : at + 192, fills[f % COUNT(fills)], t == 0 ? 12 : 16);
                memcpy(d, (uint16_t[]){0x3c00, 0x3c00}, t == 0 ? 4 : 2);
            }
            sl_pack_blocks(p, types[t], b, OUT, IN, 0, 2);
            for (size_t rows = 1; rows <= ROWS; rows++)
                quant_check(p, types[t], q, GROUPS, rows, IN, OUT, 0, 2);
            ref->matmul_q(y, OUT, q, GROUPS, ROWS, p, types[t], IN, 0, 2);
            sl_block_dequantise_row(w, b, blocks[t], IN);
            for (size_t r = 0; r < ROWS; r++) {
                double want = 0, size = 0;
                for (size_t k = 0; k < IN; k++) {
                    want += (double)w[k] * q[r * GROUPS + k / 32].q[k % 32];
                    size += fabs((double)w[k] * 127);
                }
                assert_true(fabs((double)y[r * OUT] - want) <= size * 1e-6);
            }
        }
        sl_free(w);
        sl_free(p);
        sl_free(b);
    }
    sl_free(q);
}

static void a_bad_row_is_alone(void **state)
{
    (void)state;
    for (size_t t = 0; t < TYPES; t++) {
        unsigned char *p = quant_from_k_blocks(types[t], SL_PANEL, 256, 1, NULL);
        quant_check_bad_row(p, types[t], 256);
        sl_free(p);
    }
}

static void empty(void **state)
{
    (void)state;
    for (size_t t = 0; t < TYPES; t++)
        quant_check_empty(types[t], 256);
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(sizes),
        cmocka_unit_test(panels_hold_the_files_values),
        cmocka_unit_test(panels_one_by_one),
        cmocka_unit_test(products_are_accurate),
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(longer_than_a_block),
        cmocka_unit_test(special_inputs),
        cmocka_unit_test(extremes),
        cmocka_unit_test(a_bad_row_is_alone),
        cmocka_unit_test(empty),
    };
    return cmocka_run_group_tests_name("products of Q4_K and Q6_K", tests, NULL, NULL);
}
