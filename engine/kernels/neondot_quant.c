/* neondot_quant.c: products of Q8, Q5 and Q4 matrices with the dot products of bytes that arm64
 * processors have since ARMv8.2 (most of them). neon_quant_of.h makes the product of dots().
 *
 * One instruction multiplies four inputs of a row, a lane of a register, with the codes of four
 * outputs, and adds up in 32 bits. */
#include "engine/kernels/neondot_bytes.h"

enum {
    FEW_ROWS = 4,
    MAX_ROWS = FEW_ROWS,
    BLOCK_PANELS = 1,
    MAX_PANELS = 4,
    MAX_SUMS = 4 /* rows × panels of a tile, four registers each */
};

static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, int32x4_t (*sum)[REGISTERS], const struct job *j,
                               int8x16_t levels, const uint8_t *w, const struct sl_group *x)
{
    int8x16_t q[MAX_ROWS]; /* 16 inputs: four steps */
#pragma GCC unroll 16
    for (int i = 0; i < rows * panels * REGISTERS; i++)
        sum[i / REGISTERS][i % REGISTERS] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (int s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            q[r] = s % 4 ? q[r] : vld1q_s8(x[(size_t)r * j->ldx].q + (ptrdiff_t)SL_STEP * s);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *group = w + (size_t)p * j->panel;
            int8x16_t codes[REGISTERS];
            read_ahead(panels, ready, group + (size_t)s * step_bytes(type, ready));
            step_codes(type, ready, codes, group, (size_t)s, levels);
#pragma GCC unroll 16
            for (int i = 0; i < rows * REGISTERS; i++) {
                int32x4_t *to = &sum[p * rows + i / REGISTERS][i % REGISTERS];
                *to = add_dots(*to, codes[i % REGISTERS], q[i / REGISTERS], s % 4);
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

#define SL_MATMUL_K sl_neondot_matmul_k
#define SL_MATMUL_Q sl_neondot_matmul_q
#include "engine/kernels/neon_quant_of.h"
