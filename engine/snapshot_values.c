/* snapshot_values.c: numbers between a state and a file. Little-endian, as everything here.
 *
 * The loops have no branches and no calls, so that the compiler makes vectors of them: a snapshot
 * should cost little more than the copy that it is. A finite f32 is told by its exponent bits. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/snapshot_priv.h"

/* Numbers of a file lie wherever its header ends. */
typedef uint32_t __attribute__((aligned(1), may_alias)) file_u32;
typedef uint16_t __attribute__((aligned(1), may_alias)) file_u16;
typedef float __attribute__((aligned(1), may_alias)) file_f32;

#define F32_EXPONENT 0x7f800000u
#define BF16_EXPONENT 0x7f80u
#define BF16_LARGEST 0x1.fep127f

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static bool finite_f32(const file_u32 *v, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (v[i] & F32_EXPONENT) == F32_EXPONENT;
    return !bad;
}

static bool finite_bf16(const file_u16 *v, size_t n)
{
    uint16_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (v[i] & BF16_EXPONENT) == BF16_EXPONENT;
    return !bad;
}

bool sl_snapshot_pack_f32(unsigned char *dst, const float *src, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
    return finite_f32((const file_u32 *)(const void *)src, n);
}

bool sl_snapshot_pack_bf16(unsigned char *dst, const float *src, size_t n)
{
    file_u16 *to = (file_u16 *)(void *)dst;
    for (size_t i = 0; i < n; i++) {
        float f = src[i];
        f = f > BF16_LARGEST ? BF16_LARGEST : f < -BF16_LARGEST ? -BF16_LARGEST : f;
        uint32_t u = bits_of(f);
        to[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    return finite_f32((const file_u32 *)(const void *)src, n);
}

bool sl_snapshot_pack_i8(unsigned char *dst, float *ret_scale, const float *src, size_t n)
{
    if (!finite_f32((const file_u32 *)(const void *)src, n))
        return false;
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fabsf(src[i]) > largest ? fabsf(src[i]) : largest;
    float scale = largest / 127.0f;
    if (scale < FLT_MIN) {
        memset(dst, 0, n);
        *ret_scale = 0;
        return true;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = (unsigned char)(signed char)rintf(src[i] / scale); /* at most 127 */
    *ret_scale = scale;
    return true;
}

void sl_snapshot_unpack_bf16(float *dst, const unsigned char *src, size_t n)
{
    const file_u16 *from = (const file_u16 *)(const void *)src;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)from[i] << 16;
        memcpy(&dst[i], &u, sizeof u);
    }
}

void sl_snapshot_unpack_i8(float *dst, const unsigned char *src, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)(signed char)src[i] * scale;
}

static bool good_scales(const file_f32 *v, size_t n)
{
    bool good = true;
    for (size_t i = 0; i < n; i++)
        good &= fabsf(v[i]) <= FLT_MAX / 128; /* false for NaN */
    return good;
}

bool sl_snapshot_values_good(const unsigned char *src, enum sl_dtype dtype, bool scales, size_t n)
{
    switch (dtype) {
    case SL_DTYPE_F32:
        return scales ? good_scales((const file_f32 *)(const void *)src, n)
                      : finite_f32((const file_u32 *)(const void *)src, n);
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
