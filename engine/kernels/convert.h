/* convert.h: one number from one format to another, in integer code. Private to kernels/.
 *
 * Widening is exact; narrowing rounds to nearest, ties to even, keeps denormals, and gives infinity
 * where the rounded value is too large. A NaN stays a NaN, quiet, with the upper bits of its
 * payload, as the processors' own conversions do. */
#ifndef SLATE_KERNELS_CONVERT_H
#define SLATE_KERNELS_CONVERT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t sl_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float sl_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float sl_f32_from_bf16(uint16_t h)
{
    return sl_f32_from_bits((uint32_t)h << 16);
}

static inline float sl_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31;
    uint32_t fraction = h & 0x3ff;
    if (exponent == 31)
        return sl_f32_from_bits(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) /* fraction · 2^-24: exact, and zero or a normal f32 */
        return sl_f32_from_bits(sign | sl_f32_bits((float)fraction * 0x1p-24F));
    return sl_f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t sl_bf16_from_f32(float f)
{
    uint32_t u = sl_f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline uint16_t sl_f16_from_f32(float f)
{
    uint32_t u = sl_f32_bits(f);
    uint32_t sign = u >> 16 & 0x8000;
    uint32_t a = u & 0x7fffffff;
    uint32_t h;
    if (a > 0x7f800000) {
        h = 0x7e00 | (a >> 13 & 0x3ff);
    } else if (a >= 0x477ff000) { /* 65520, halfway between the largest f16 and the next power */
        h = 0x7c00;
    } else if (a >= 0x38800000) { /* 2^-14, the smallest normal f16 */
        h = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
    } else if (a >= 0x33000000) { /* 2^-25, half the smallest f16 */
        uint32_t fraction = (a & 0x7fffff) | 0x800000;
        uint32_t shift = 126 - (a >> 23);
        uint32_t rest = fraction & ((1U << shift) - 1);
        uint32_t half = 1U << (shift - 1);
        h = fraction >> shift;
        h += rest > half || (rest == half && (h & 1));
    } else {
        h = 0;
    }
    return (uint16_t)(sign | h);
}

/* Rounds to odd: towards zero, with the last bit set where anything was cut off. The result can be
 * narrowed again, to f16 or bf16, as if that had been the only rounding (Boldo and Melquiond 2008).
 */
static inline float sl_f32_from_f64_odd(double d)
{
    float f = (float)d;
    if (isnan(d) || (double)f == d)
        return f;
    uint32_t u = sl_f32_bits(f);
    if (fabs((double)f) > fabs(d))
        u--;
    return sl_f32_from_bits(u | 1);
}

#endif
