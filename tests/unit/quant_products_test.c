/* quant_products_test.c: products of quantised matrices: the scalar one against sums in double
 * precision, and every table against the scalar one, bit for bit: shapes that fit nothing, the
 * largest sums there can be, and inputs that are no numbers. All buffers are exactly as large as
 * the contract says, for the address sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_kernels *ref;

static void products_are_accurate(void **state)
{
    (void)state;
    enum { OUT = 21, IN = 150 };
    float *w = quant_floats((size_t)OUT * IN);
    fill_uniform(w, (size_t)OUT * IN, 1);
    for (size_t t = 0; t < QUANT_TYPES; t++) {
        unsigned char *p = quant_pack(quant_types[t], w, OUT, IN);
        quant_check_sums(p, quant_types[t], IN, OUT, quant_weight_at);
        sl_free(p);
    }
    sl_free(w);
}

static void check_shape(enum sl_dtype type, size_t n_in, size_t n_out, const size_t *n_rows,
                        int values)
{
    float *w = quant_floats(n_out * n_in);
    fill_uniform(w, n_out * n_in, n_in * 1000 + n_out);
    unsigned char *panels = quant_pack(type, w, n_out, n_in);
    quant_check_rows(panels, type, n_in, n_out, n_rows, values);
    sl_free(panels);
    sl_free(w);
}

static void odd_shapes(void **state)
{
    (void)state;
    static const size_t ins[] = {1, 7, 32, 33, 64, 65, 300, 1056},
                        outs[] = {1, 12, 16, 17, 33, 80, 113};
    for (size_t t = 0; t < QUANT_TYPES; t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            for (size_t o = 0; o < COUNT(outs); o++)
                check_shape(quant_types[t], ins[i], outs[o], quant_rows, 0);
}

static void special_inputs(void **state)
{
    (void)state;
    for (size_t t = 0; t < QUANT_TYPES; t++)
        for (size_t n_in = 1; n_in < 100; n_in += 16)
            for (int values = 1; values < 3; values++)
                check_shape(quant_types[t], n_in, 40, quant_rows, values);
}

/* Longer than a block of k, which is 3,072 inputs (quant_tile.h). */
static void longest_rows(void **state)
{
    (void)state;
    for (size_t t = 0; t < QUANT_TYPES; t++)
        check_shape(quant_types[t], 4096 + 32, 40, quant_rows, 0);
}

/* More than AVX2 takes at a time of Q8, whose blocks are 96 rows and 512 inputs (avx2_q8_rows.c):
 * a whole block, one row more, and one more than two. */
static void blocks_of_rows(void **state)
{
    (void)state;
    static const size_t many[] = {96, 97, 193, 0};
    for (size_t t = 0; t < QUANT_TYPES; t++)
        check_shape(quant_types[t], 1056, 40, many, 0);
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
        int sum[2] = {0}, pair[2] = {0};
        for (size_t k = 0; k < 32; k++) {
            bool minus = i % 3 == 1 || (i % 3 == 2 && (k / (1 + i % 5)) % 2);
            q[i].q[k] = minus ? -127 : 127;
            sum[k / 16] += q[i].q[k];
            pair[k / 2 % 2] += q[i].q[k];
        }
        q[i].scale = 1 + (float)i;
        q[i].offset = -16 * (sum[0] + sum[1]);
        q[i].half[0] = (int16_t)(-16 * sum[0]);
        q[i].half[1] = (int16_t)(-16 * sum[1]);
        q[i].pair[0] = (int16_t)(-16 * pair[0]);
        q[i].pair[1] = (int16_t)(-16 * pair[1]);
    }
    for (size_t t = 0; t < QUANT_TYPES; t++) {
        size_t bytes = sl_pack_bytes(quant_types[t], OUT, IN);
        unsigned char *p = sl_aligned_calloc(bytes);
        assert_non_null(p);
        for (size_t f = 0; f < COUNT(fills) + 4; f++) {
            for (size_t i = 0; i < bytes; i++)
                p[i] = f < COUNT(fills) ? fills[f] : (uint8_t)(i * (f * 2 + 1) * 37);
            for (size_t o = 0; o < OUT; o++)
                for (size_t k = 0; k < IN; k += 32) /* 1, as F16 */
                    memcpy(p + quant_place_of(quant_types[t], IN, o, k).scale, (uint16_t[]){0x3c00},
                           2);
            for (size_t rows = 1; rows <= ROWS; rows++)
                quant_check(p, quant_types[t], q, 3, rows, IN, OUT, 0, 2);
        }
        /* And what it comes to: 96 products of the lowest code and 127, with the scales 1, 2, 3. */
        float y[OUT];
        memset(p, quant_types[t] == SL_DTYPE_Q8 ? 0x80 : 0, bytes);
        for (size_t o = 0; o < OUT; o++)
            for (size_t k = 0; k < IN; k += 32)
                memcpy(p + quant_place_of(quant_types[t], IN, o, k).scale, (uint16_t[]){0x3c00}, 2);
        int lowest = quant_types[t] == SL_DTYPE_Q8     ? -128
                     : quant_types[t] == SL_DTYPE_Q4_0 ? -8
                                                       : -16;
        ref->matmul_q(y, OUT, q, 3, 1, p, quant_types[t], 32, 0, 0);
        for (const char *const *name = sl_kernels_names(); *name; name++) {
            sl_kernels_find(*name)->matmul_q(y, OUT, q, 3, 1, p, quant_types[t], IN, 0, 2);
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

static void a_bad_row_is_alone(void **state)
{
    (void)state;
    enum { IN = 64 };
    float w[SL_PANEL * IN];
    fill_uniform(w, COUNT(w), 1);
    for (size_t t = 0; t < QUANT_TYPES; t++) {
        unsigned char *p = quant_pack(quant_types[t], w, SL_PANEL, IN);
        quant_check_bad_row(p, quant_types[t], IN);
        sl_free(p);
    }
}

static void empty(void **state)
{
    (void)state;
    for (size_t t = 0; t < QUANT_TYPES; t++)
        quant_check_empty(quant_types[t], 1);
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(products_are_accurate),
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(special_inputs),
        cmocka_unit_test(longest_rows),
        cmocka_unit_test(blocks_of_rows),
        cmocka_unit_test(extremes),
        cmocka_unit_test(a_bad_row_is_alone),
        cmocka_unit_test(empty),
    };
    return cmocka_run_group_tests_name("quantised products", tests, NULL, NULL);
}
