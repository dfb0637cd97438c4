/* snapshot_values_test.c: the loops for processors with AVX2 give the bits of those for any. That
 * these are right is snapshot_test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/snapshot_priv.h"

enum { MOST = 100, ROUNDS = 4000 };

static uint32_t seed = 7;

static uint32_t next(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed ^ seed >> 15;
}

/* Bits of all kinds: usual magnitudes, tiny, huge, sometimes none. */
static float some_float(unsigned kind)
{
    uint32_t u = next();
    float f;
    if (kind < 2)
        u = (u & 0x807fffffu) | (110 + next() % 30) << 23;
    else if (kind == 2 && next() % 50)
        u = (u & 0x807fffffu) | next() % 255 << 23;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void compare(const struct sl_snapshot_loops *x, const struct sl_snapshot_loops *y)
{
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I64, SL_DTYPE_I8};
    float src[MOST], fx[MOST], fy[MOST], scale_x = 0, scale_y = 0;
    unsigned char bx[1 + 8 * MOST], by[1 + 8 * MOST];
    size_t n_good = 0, n_bad = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t n = next() % (MOST + 1), shift = round % 2;
        memset(bx, 0, sizeof bx);
        memset(by, 0, sizeof by);
        for (size_t i = 0; i < n; i++)
            src[i] = some_float(round % 4);
        bool good = x->pack_f32(bx + shift, src, n);
        assert_int_equal(y->pack_f32(by + shift, src, n), good);
        good ? n_good++ : n_bad++;
        for (size_t d = 0; d < 4; d++)
            for (int scales = 0; scales < 2; scales++)
                assert_int_equal(
                    x->values_good(bx + shift, dtypes[d], scales, n * 4 / sl_dtype_size(dtypes[d])),
                    y->values_good(bx + shift, dtypes[d], scales,
                                   n * 4 / sl_dtype_size(dtypes[d])));
        bool finite = true;
        for (size_t i = 0; i < n; i++)
            finite = finite && isfinite(src[i]);
        memcpy(bx + shift, src, n * sizeof *src);
        assert_int_equal(x->unpack_f32(fx, bx + shift, n), finite);
        assert_int_equal(y->unpack_f32(fy, bx + shift, n), finite);
        if (finite) {
            assert_memory_equal(fx, src, n * sizeof *src);
            assert_memory_equal(fy, src, n * sizeof *src);
        }
        x->unpack_bf16(fx, bx + shift, n);
        y->unpack_bf16(fy, bx + shift, n);
        assert_memory_equal(fx, fy, n * sizeof *fx);
        x->unpack_i8(fx, bx + shift, 0.37f, n);
        y->unpack_i8(fy, bx + shift, 0.37f, n);
        assert_memory_equal(fx, fy, n * sizeof *fx);
        assert_int_equal(x->pack_bf16(bx + shift, src, n), y->pack_bf16(by + shift, src, n));
        assert_memory_equal(bx, by, sizeof bx);
        good = x->pack_i8(bx + shift, &scale_x, src, n);
        assert_int_equal(y->pack_i8(by + shift, &scale_y, src, n), good);
        if (good) {
            assert_memory_equal(bx, by, sizeof bx);
            assert_memory_equal(&scale_x, &scale_y, sizeof scale_x);
        }
    }
    assert_true(n_good > ROUNDS / 4 && n_bad > ROUNDS / 40);
}

static void test_same_bits(void **state)
{
    (void)state;
    const struct sl_snapshot_loops *avx2 = NULL;
#ifdef __x86_64__
    avx2 = __builtin_cpu_supports("avx2") ? &sl_snapshot_loops_avx2 : NULL;
#endif
    if (!avx2)
        skip();
    compare(&sl_snapshot_loops_any, avx2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};
    return cmocka_run_group_tests_name("snapshot_values", tests, NULL, NULL);
}
