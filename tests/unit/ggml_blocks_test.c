/* ggml_blocks_test.c: the values of quantised blocks, against files in tests/vectors/gguf/ that
 * hold what exact rational arithmetic gives, rounded once; their README says more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/formats/ggml_blocks.h"

#define FOLDER "tests/vectors/gguf/"

static void *read_all(const char *name, const char *extension, size_t *ret_n)
{
    char path[128];
    (void)snprintf(path, sizeof path, FOLDER "%s.%s", name, extension);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    unsigned char *p = malloc(1 << 16);
    assert_non_null(p);
    *ret_n = fread(p, 1, 1 << 16, f);
    assert_true(*ret_n > 0 && *ret_n < 1 << 16);
    fclose(f);
    return p;
}

static const struct {
    enum sl_block_type type;
    const char *name, *file;
    size_t weights, bytes;
} types[] = {
    {SL_BLOCK_Q8_0, "Q8_0", "q8_0", 32, 34},
    {SL_BLOCK_Q4_0, "Q4_0", "q4_0", 32, 18},
    {SL_BLOCK_Q4_K, "Q4_K", "q4_k", 256, 144},
    {SL_BLOCK_Q6_K, "Q6_K", "q6_k", 256, 210},
};
enum { N_TYPES = sizeof types / sizeof *types };

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(N_TYPES, SL_BLOCK_UNREAD - 1);
    for (size_t i = 0; i < N_TYPES; i++) {
        assert_string_equal(sl_block_name(types[i].type), types[i].name);
        assert_int_equal(sl_block_weights(types[i].type), types[i].weights);
        assert_int_equal(sl_block_bytes(types[i].type), types[i].bytes);
        assert_true(sl_block_readable(types[i].type));
    }
    assert_false(sl_block_readable(SL_BLOCK_NONE));
    for (int t = SL_BLOCK_UNREAD; t < SL_BLOCK_COUNT; t++) {
        assert_false(sl_block_readable((enum sl_block_type)t));
        assert_true(strlen(sl_block_name((enum sl_block_type)t)) >= 4);
        assert_true(sl_block_weights((enum sl_block_type)t) <= SL_BLOCK_WEIGHTS_MAX);
        assert_true(sl_block_bytes((enum sl_block_type)t) > 0);
    }
    assert_int_equal(sl_block_weights(SL_BLOCK_NONE), 1);
    assert_int_equal(sl_block_bytes(SL_BLOCK_NONE), 1);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_TYPES; i++) {
        size_t n_bytes, n_want;
        unsigned char *blocks = read_all(types[i].file, "blocks", &n_bytes);
        uint32_t *want = read_all(types[i].file, "f32", &n_want);
        size_t n = n_bytes / types[i].bytes * types[i].weights;
        assert_int_equal(n_bytes % types[i].bytes, 0);
        assert_int_equal(n * sizeof *want, n_want);
        /* From an odd address, into a row without a float to spare. */
        unsigned char *odd = malloc(n_bytes + 1);
        float *y = malloc(n * sizeof *y);
        assert_true(odd && y);
        memcpy(odd + 1, blocks, n_bytes);
        sl_block_dequantise_row(y, odd + 1, types[i].type, n);
        for (size_t k = 0; k < n; k++) {
            uint32_t bits;
            memcpy(&bits, &y[k], sizeof bits);
            if (bits != want[k])
                fail_msg("%s, weight %zu: %08x, should be %08x", types[i].name, k, (unsigned)bits,
                         (unsigned)want[k]);
        }
        free(y);
        free(odd);
        free(want);
        free(blocks);
    }
}

static void test_no_row(void **state)
{
    (void)state;
    float y = 1;
    sl_block_dequantise_row(&y, NULL, SL_BLOCK_Q6_K, 0);
    assert_true(y == 1);
}

/* Scales that are no numbers are not hidden: the loader looks for them. */
static void test_scales_that_are_not_finite(void **state)
{
    (void)state;
    static const struct {
        size_t type, at;
    } scales[] = {{0, 0}, {1, 0}, {2, 0}, {2, 2}, {3, 208}};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        unsigned char block[256];
        float y[SL_BLOCK_WEIGHTS_MAX];
        size_t n = types[scales[i].type].weights, bad = 0;
        memset(block, 0x11, sizeof block);
        block[scales[i].at] = 0x00;
        block[scales[i].at + 1] = 0x7e;
        sl_block_dequantise_row(y, block, types[scales[i].type].type, n);
        for (size_t k = 0; k < n; k++)
            bad += isnan(y[k]) ? 1 : 0;
        assert_int_equal(bad, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_no_row),
        cmocka_unit_test(test_scales_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
