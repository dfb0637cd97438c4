/* snapshot_loops.h: the loops of snapshot_values.c, compiled once for every processor and once for
 * those with AVX2: each includer compiles them with its own flags and names its table SL_LOOPS.
 * Little-endian, as everything here.
 *
 * They are of integers, without branches and calls, so that the compiler makes vectors of them (-O3
 * in the Makefile): a snapshot should cost little more than the copy that it is. The arithmetic of
 * floats in them is one operation at a time, rounded as IEEE says: both give the same bits. */
#include <float.h>
#include <string.h>

#include "engine/snapshot_priv.h"

/* Numbers of a file lie wherever its header ends. */
typedef uint32_t __attribute__((aligned(1), may_alias)) file_u32;
typedef uint16_t __attribute__((aligned(1), may_alias)) file_u16;

#define F32_INFINITY 0x7f800000u
#define F32_SCALE_END 0x7c000000u /* 2^121: times 128 it would be none */
#define F32_MAGNITUDE 0x7fffffffu
#define BF16_EXPONENT 0x7f80u
#define BF16_LARGEST 0x7f7fu

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The largest magnitude, as bits: those of floats without a sign are in the floats' order. What is
 * not finite is at least F32_INFINITY. */
static int32_t largest_f32(const file_u32 *v, size_t n)
{
    int32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t a = (int32_t)(v[i] & F32_MAGNITUDE);
        largest = a > largest ? a : largest;
    }
    return largest;
}

static bool finite_bf16(const file_u16 *v, size_t n)
{
    uint16_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (v[i] & BF16_EXPONENT) == BF16_EXPONENT;
    return !bad;
}

/* Whether all magnitudes, as bits, are below `end`: for F32_INFINITY, all are finite. A sum has its
 * highest bit set where one is not; this takes half the time of finding the largest. */
static bool all_below(const file_u32 *v, size_t n, uint32_t end)
{
    uint32_t sums = 0;
    for (size_t i = 0; i < n; i++)
        sums |= (v[i] & F32_MAGNITUDE) + (0x80000000u - end);
    return sums < 0x80000000u;
}

/* all_below(F32_INFINITY) on the way of a copy: what waits for memory has time to look. */
static bool copy_finite(file_u32 *restrict to, const file_u32 *restrict from, size_t n)
{
    uint32_t sums = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = from[i];
        to[i] = u;
        sums |= (u & F32_MAGNITUDE) + (0x80000000u - F32_INFINITY);
    }
    return sums < 0x80000000u;
}

static bool pack_f32(unsigned char *dst, const float *src, size_t n)
{
    return copy_finite((file_u32 *)(void *)dst, (const file_u32 *)(const void *)src, n);
}

static bool pack_bf16(unsigned char *dst, const float *src, size_t n)
{
    file_u16 *to = (file_u16 *)(void *)dst;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(src[i]), a = u & F32_MAGNITUDE;
        a = (a + 0x7fff + (a >> 16 & 1)) >> 16;
        a = a > BF16_LARGEST ? BF16_LARGEST : a;
        to[i] = (uint16_t)(u >> 16 & 0x8000) | (uint16_t)a;
    }
    return all_below((const file_u32 *)(const void *)src, n, F32_INFINITY);
}

/* What is added to a float of magnitude below 2^22 so that the sum's last bits are the nearest
 * integer, in two's complement. */
#define ROUNDER 0x1.8p23f

static bool pack_i8(unsigned char *dst, float *ret_scale, const float *src, size_t n)
{
    int32_t largest = largest_f32((const file_u32 *)(const void *)src, n);
    float scale = float_of((uint32_t)largest) / 127.0f;
    if (bits_of(scale) >= F32_SCALE_END)
        return false;
    if (scale < FLT_MIN) {
        memset(dst, 0, n);
        *ret_scale = 0;
        return true;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = (unsigned char)bits_of(src[i] / scale + ROUNDER); /* -127 … 127 */
    *ret_scale = scale;
    return true;
}

static bool unpack_f32(float *dst, const unsigned char *src, size_t n)
{
    return copy_finite((file_u32 *)(void *)dst, (const file_u32 *)(const void *)src, n);
}

static void unpack_bf16(float *dst, const unsigned char *src, size_t n)
{
    const file_u16 *from = (const file_u16 *)(const void *)src;
    for (size_t i = 0; i < n; i++) {
        dst[i] = float_of((uint32_t)from[i] << 16);
    }
}

static void unpack_i8(float *dst, const unsigned char *src, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)(signed char)src[i] * scale;
}

static bool values_good(const unsigned char *src, enum sl_dtype dtype, bool scales, size_t n)
{
    switch (dtype) {
    case SL_DTYPE_F32:
        return all_below((const file_u32 *)(const void *)src, n,
                         scales ? F32_SCALE_END : F32_INFINITY);
    case SL_DTYPE_BF16:
        return finite_bf16((const file_u16 *)(const void *)src, n);
    case SL_DTYPE_I64:
        for (size_t i = 0; i < n; i++)
            if (src[8 * i + 7] & 0x80)
                return false;
        return true;
    default:
        return true; /* every I8 is a number */
    }
}

const struct sl_snapshot_loops SL_LOOPS = {.pack_f32 = pack_f32,
                                           .pack_bf16 = pack_bf16,
                                           .pack_i8 = pack_i8,
                                           .unpack_f32 = unpack_f32,
                                           .unpack_bf16 = unpack_bf16,
                                           .unpack_i8 = unpack_i8,
                                           .values_good = values_good};
