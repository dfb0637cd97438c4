/* neon_kquant.h: how the two ways to multiply bytes on arm64 read codes of Q4_K and Q6_K. Private
 * to kernels/. */
#ifndef SLATE_KERNELS_NEON_KQUANT_H
#define SLATE_KERNELS_NEON_KQUANT_H

#include "engine/kernels/neon_quant.h"

/* Step s of a group at w, as signed numbers from the zero: register i has four inputs of outputs
 * 4i … 4i + 3. `ready`: they are that already, 64 bytes a step. */
static ALWAYS_INLINE void k_step_codes(const enum sl_dtype type, const bool ready, int8x16_t *ret,
                                       const uint8_t *w, size_t s)
{
    if (ready) {
#pragma GCC unroll 4
        for (int i = 0; i < REGISTERS; i++)
            ret[i] = vreinterpretq_s8_u8(vld1q_u8(w + s * SL_STEP_CODES + (ptrdiff_t)16 * i));
        return;
    }
    const uint8x16_t four = vdupq_n_u8(15), two = vdupq_n_u8(0x30);
    const uint8_t *low = w + s * (SL_STEP_CODES / 2);
    uint8x16_t a = vld1q_u8(low), b = vld1q_u8(low + 16);
    uint8x16_t c[REGISTERS] = {vandq_u8(a, four), vandq_u8(b, four), vshrq_n_u8(a, 4),
                               vshrq_n_u8(b, 4)};
    if (type == SL_DTYPE_Q6_K) {
        uint8x16_t h = vld1q_u8(w + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH);
        c[0] = vorrq_u8(c[0], vandq_u8(vshlq_n_u8(h, 4), two));
        c[1] = vorrq_u8(c[1], vandq_u8(vshlq_n_u8(h, 2), two));
        c[2] = vorrq_u8(c[2], vandq_u8(h, two));
        c[3] = vorrq_u8(c[3], vandq_u8(vshrq_n_u8(h, 2), two));
    }
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) {
        ret[i] = vreinterpretq_s8_u8(c[i]);
        if (type == SL_DTYPE_Q6_K)
            ret[i] = vsubq_s8(ret[i], vdupq_n_s8(32));
    }
}

/* What a group's step asks memory for. */
static ALWAYS_INLINE void k_read_ahead(const int panels, const bool ready, const uint8_t *w,
                                       size_t s)
{
    read_ahead(panels, ready, w + s * (SL_STEP_CODES / 2));
}

#endif
