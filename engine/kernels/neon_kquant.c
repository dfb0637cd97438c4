/* neon_kquant.c: products of Q4_K and Q6_K matrices with NEON as every arm64 processor has it.
 * neon_kquant_of.h makes the product of dots(). Codes are at most 32 from the zero, so four
 * products of one output fit in 16 bits: 4 · 32 · 127 = 16,256. */
#include "engine/kernels/neon_kquant.h"
#include "engine/kernels/neon_bytes.h"

enum {
    FEW_ROWS = 2,
    MAX_ROWS = FEW_ROWS,
    BLOCK_PANELS = 1,
    MAX_PANELS = 2,
    MAX_SUMS = 2 /* rows × panels of a tile */
};

static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, int32x4_t (*sum)[REGISTERS], const struct job *j,
                               const uint8_t *w, const struct sl_group *x, const size_t half)
{
    const size_t begin = half * (SL_STEPS / 2), end = begin + SL_STEPS / 2;
    int16x8_t part[MAX_SUMS][2 * REGISTERS];
#pragma GCC unroll 4
    for (size_t s = begin; s < end; s++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * j->panel;
            int8x16_t codes[REGISTERS];
            k_read_ahead(panels, ready, at, s);
            k_step_codes(type, ready, codes, at, s);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
                multiply(s == begin, part[p * rows + r], codes,
                         four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels * REGISTERS; i++) {
        const int16x8_t *two = part[i / REGISTERS] + (ptrdiff_t)2 * (i % REGISTERS);
        sum[i / REGISTERS][i % REGISTERS] = vpaddq_s32(vpaddlq_s16(two[0]), vpaddlq_s16(two[1]));
    }
}

#define READIES(X, TYPE) X(1, 1, TYPE) X(2, 1, TYPE)
#define TILES(X, TYPE) X(1, 1, TYPE) X(1, 2, TYPE) X(2, 1, TYPE)

#define SL_MATMUL_Q sl_neon_matmul_k
#include "engine/kernels/neon_kquant_of.h"
