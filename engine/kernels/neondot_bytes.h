/* neondot_bytes.h: bytes multiplied with the dot products of ARMv8.2. Private to kernels/. */
#ifndef SLATE_KERNELS_NEONDOT_BYTES_H
#define SLATE_KERNELS_NEONDOT_BYTES_H

#include "engine/kernels/neon_quant.h"

/* The lane is a constant; the language wants to see it. */
static ALWAYS_INLINE int32x4_t add_dots(int32x4_t sum, int8x16_t codes, int8x16_t q, const int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, codes, q, 0);
    case 1:
        return vdotq_laneq_s32(sum, codes, q, 1);
    case 2:
        return vdotq_laneq_s32(sum, codes, q, 2);
    default:
        return vdotq_laneq_s32(sum, codes, q, 3);
    }
}

#endif
