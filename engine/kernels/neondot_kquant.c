/* neondot_kquant.c: products of Q4_K and Q6_K matrices with the dot products of bytes of ARMv8.2.
 * neon_kquant_of.h makes the product of dots(). */
#include "engine/kernels/neon_kquant.h"
#include "engine/kernels/neondot_bytes.h"

enum {
    FEW_ROWS = 4,
    MAX_ROWS = FEW_ROWS,
    BLOCK_PANELS = 1,
    MAX_PANELS = 4,
    MAX_SUMS = 4 /* rows × panels of a tile */
};

static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, int32x4_t (*sum)[REGISTERS], const struct job *j,
                               const uint8_t *w, const struct sl_group *x, const size_t half)
{
    const size_t begin = half * (SL_STEPS / 2);
    int8x16_t q[MAX_ROWS]; /* 16 inputs: four steps */
#pragma GCC unroll 16
    for (int i = 0; i < rows * panels * REGISTERS; i++)
        sum[i / REGISTERS][i % REGISTERS] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        q[r] = vld1q_s8(x[(size_t)r * j->ldx].q + begin * SL_STEP);
#pragma GCC unroll 4
    for (int s = 0; s < SL_STEPS / 2; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * j->panel;
            int8x16_t codes[REGISTERS];
            k_read_ahead(panels, ready, at, begin + (size_t)s);
            k_step_codes(type, ready, codes, at, begin + (size_t)s);
#pragma GCC unroll 16
            for (int i = 0; i < rows * REGISTERS; i++) {
                int32x4_t *to = &sum[p * rows + i / REGISTERS][i % REGISTERS];
                *to = add_dots(*to, codes[i % REGISTERS], q[i / REGISTERS], s);
            }
        }
    }
}

#define READIES(X, TYPE) X(2, 1, TYPE) X(3, 1, TYPE) X(4, 1, TYPE)
#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(4, 1, TYPE)

#define SL_MATMUL_Q sl_neondot_matmul_k
#include "engine/kernels/neon_kquant_of.h"
