/* neon_quant.h: what the two ways to multiply bytes on arm64 have in common. Private to kernels/.
 */
#ifndef SLATE_KERNELS_NEON_QUANT_H
#define SLATE_KERNELS_NEON_QUANT_H

#include "engine/kernels/kquant.h"
#include "engine/kernels/neon.h"
#include "engine/kernels/quant_tile.h"

enum { REGISTERS = 4 }; /* of a step's 64 codes, and of 16 outputs' sums */

/* Of 4-bit codes, from the zero. */
static ALWAYS_INLINE int8x16_t signed_levels(const uint8_t *levels)
{
    return vreinterpretq_s8_u8(vsubq_u8(vld1q_u8(levels), vdupq_n_u8(SL_Q4_ZERO)));
}

/* Bytes of a step. */
static ALWAYS_INLINE size_t step_bytes(const enum sl_dtype type, const bool ready)
{
    return ready || type == SL_DTYPE_Q8 ? SL_STEP_CODES : SL_STEP_CODES / 2;
}

/* The levels of register i of step s, whose low four bits are given, from the zero. */
static ALWAYS_INLINE int8x16_t five_bits(uint8x16_t low, const uint8_t *group, int i, size_t s)
{
    uint8x16_t bits = vld1q_u8(group + SL_Q4_GROUP + (ptrdiff_t)16 * i);
    uint8x16_t high = vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t)(4 - (int)s))), vdupq_n_u8(16));
    return vreinterpretq_s8_u8(vsubq_u8(vorrq_u8(low, high), vdupq_n_u8(SL_Q4_ZERO)));
}

/* The codes of step s of a group as signed numbers: register i has four inputs of outputs
 * 4i … 4i + 3. `ready`: they are that already, else 4-bit ones are looked up. */
static ALWAYS_INLINE void step_codes(const enum sl_dtype type, const bool ready, int8x16_t *ret,
                                     const uint8_t *group, size_t s, int8x16_t levels)
{
    const uint8_t *w = group + s * step_bytes(type, ready);
    if (ready || type == SL_DTYPE_Q8) {
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++)
            ret[i] = vreinterpretq_s8_u8(vld1q_u8(w + (ptrdiff_t)16 * i));
        return;
    }
    const uint8x16_t low = vdupq_n_u8(15);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        uint8x16_t two = vld1q_u8(w + (ptrdiff_t)16 * i);
        uint8x16_t first = vandq_u8(two, low), second = vshrq_n_u8(two, 4);
        ret[i] = type == SL_DTYPE_Q5 ? five_bits(first, group, i, s) : vqtbl1q_s8(levels, first);
        ret[i + 2] =
            type == SL_DTYPE_Q5 ? five_bits(second, group, i + 2, s) : vqtbl1q_s8(levels, second);
    }
}

/* Where several panels are read at once, or one, each stream asks for what it needs in some
 * AHEAD_BYTES (over all streams). */
static ALWAYS_INLINE void read_ahead(const int panels, const bool ready, const uint8_t *w)
{
    if (!ready)
        __builtin_prefetch(w + AHEAD_BYTES / panels);
}

#endif
