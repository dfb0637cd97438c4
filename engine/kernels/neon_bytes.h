/* neon_bytes.h: bytes multiplied with what every arm64 processor has. Private to kernels/. */
#ifndef SLATE_KERNELS_NEON_BYTES_H
#define SLATE_KERNELS_NEON_BYTES_H

#include "engine/kernels/neon_quant.h"

static ALWAYS_INLINE int8x16_t four_inputs(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

/* part[2i], part[2i + 1] (+)= the products of a step, four outputs' in each pair. */
static ALWAYS_INLINE void multiply(const bool first, int16x8_t *part, const int8x16_t *w,
                                   int8x16_t q)
{
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) {
        int8x8_t wl = vget_low_s8(w[i]), ql = vget_low_s8(q);
        int16x8_t *lo = part + (ptrdiff_t)2 * i, *hi = lo + 1;
        *lo = first ? vmull_s8(wl, ql) : vmlal_s8(*lo, wl, ql);
        *hi = first ? vmull_high_s8(w[i], q) : vmlal_high_s8(*hi, w[i], q);
    }
}

#endif
