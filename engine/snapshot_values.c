/* snapshot_values.c: numbers between a state and a file, with the loops that this processor can
 * run.
 */
#define SL_LOOPS sl_snapshot_loops_any
#include "engine/snapshot_loops.h"

static const struct sl_snapshot_loops *loops(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return &sl_snapshot_loops_avx2;
#endif
    return &sl_snapshot_loops_any;
}

bool sl_snapshot_pack_f32(unsigned char *dst, const float *src, size_t n)
{
    return loops()->pack_f32(dst, src, n);
}

bool sl_snapshot_pack_bf16(unsigned char *dst, const float *src, size_t n)
{
    return loops()->pack_bf16(dst, src, n);
}

bool sl_snapshot_pack_i8(unsigned char *dst, float *ret_scale, const float *src, size_t n)
{
    return loops()->pack_i8(dst, ret_scale, src, n);
}

bool sl_snapshot_unpack_f32(float *dst, const unsigned char *src, size_t n)
{
    return loops()->unpack_f32(dst, src, n);
}

void sl_snapshot_unpack_bf16(float *dst, const unsigned char *src, size_t n)
{
    loops()->unpack_bf16(dst, src, n);
}

void sl_snapshot_unpack_i8(float *dst, const unsigned char *src, float scale, size_t n)
{
    loops()->unpack_i8(dst, src, scale, n);
}

bool sl_snapshot_values_good(const unsigned char *src, enum sl_dtype dtype, bool scales, size_t n)
{
    return loops()->values_good(src, dtype, scales, n);
}
