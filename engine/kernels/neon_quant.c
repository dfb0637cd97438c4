/* neon_quant.c: products of Q8, Q5 and Q4 matrices with NEON as every arm64 processor has it, and
 * inputs to 8 bits. neon_quant_of.h makes the product of dots().
 *
 * Bytes are multiplied to 16 bits and added up there as long as they fit, then added by pairs in 32
 * bits. Q8: two products, 2 · 128 · 127 = 32,512 in magnitude. Levels are at most 16 from the
 * zero, so all eight steps of a group: 8 · 16 · 127 = 16,256. */
#include "engine/kernels/neon_bytes.h"

enum {
    FEW_ROWS = 2,
    MAX_ROWS = FEW_ROWS,
    BLOCK_PANELS = 1,
    MAX_PANELS = 2,
    MAX_SUMS = 2 /* rows × panels of a tile: eight registers each, and four of the sums in f32 */
};

static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, int32x4_t (*sum)[REGISTERS], const struct job *j,
                               int8x16_t levels, const uint8_t *w, const struct sl_group *x)
{
    const size_t run = type == SL_DTYPE_Q8 ? 2 : SL_STEPS; /* steps that fit in 16 bits */
    int32x4_t pairs[MAX_SUMS][2 * REGISTERS];
#pragma GCC unroll 16
    for (int i = 0; i < rows * panels * 2 * REGISTERS; i++)
        pairs[i / (2 * REGISTERS)][i % (2 * REGISTERS)] = vdupq_n_s32(0);
    for (size_t s = 0; s < SL_STEPS; s += run) {
        int16x8_t part[MAX_SUMS][2 * REGISTERS];
#pragma GCC unroll 8
        for (size_t t = s; t < s + run; t++) {
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) {
                const uint8_t *group = w + (size_t)p * j->panel;
                int8x16_t codes[REGISTERS];
                read_ahead(panels, ready, group + t * step_bytes(type, ready));
                step_codes(type, ready, codes, group, t, levels);
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++)
                    multiply(t == s, part[p * rows + r], codes,
                             four_inputs(x[(size_t)r * j->ldx].q + t * SL_STEP));
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows * panels * 2 * REGISTERS; i++) {
            int at = i / (2 * REGISTERS), k = i % (2 * REGISTERS);
            pairs[at][k] = vpadalq_s16(pairs[at][k], part[at][k]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels * REGISTERS; i++) {
        int at = i / REGISTERS, k = i % REGISTERS;
        const int32x4_t *lo = pairs[at] + (ptrdiff_t)2 * k;
        sum[at][k] = vpaddq_s32(lo[0], lo[1]);
    }
}

#define READIES(X, TYPE) X(1, 1, TYPE) X(2, 1, TYPE)
#define TILES(X, TYPE) X(1, 1, TYPE) X(1, 2, TYPE) X(2, 1, TYPE)

#define SL_MATMUL_K sl_neon_matmul_k
#define SL_MATMUL_Q sl_neon_matmul_q
#include "engine/kernels/neon_quant_of.h"

/* --- inputs -------------------------------------------------------------------------------------
 */

static void quantise_group(struct sl_group *y, const float *x)
{
    enum { N = SL_GROUP / 4 };
    float32x4_t v[N];
    uint32x4_t top = vdupq_n_u32(0);
    float inverse;
    for (int i = 0; i < N; i++) {
        v[i] = vld1q_f32(x + (ptrdiff_t)4 * i);
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    if (!sl_group_scale(y, vmaxvq_u32(top), &inverse))
        return;
    int32x4_t n[N], sum[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (int i = 0; i < N; i++) {
        n[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
        sum[i / (N / 2)] = vaddq_s32(sum[i / (N / 2)], n[i]);
    }
    int16_t sums[2][2];
    for (int i = 0; i < 2; i++) {
        sums[i][0] = (int16_t)(vgetq_lane_s32(sum[i], 0) + vgetq_lane_s32(sum[i], 1));
        sums[i][1] = (int16_t)(vgetq_lane_s32(sum[i], 2) + vgetq_lane_s32(sum[i], 3));
    }
    sl_group_sums(y, sums);
    for (int i = 0; i < N; i += 4) {
        int16x8_t a = vcombine_s16(vmovn_s32(n[i]), vmovn_s32(n[i + 1]));
        int16x8_t b = vcombine_s16(vmovn_s32(n[i + 2]), vmovn_s32(n[i + 3]));
        vst1q_s8(y->q + (ptrdiff_t)4 * i, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
    }
}

void sl_neon_quantise(struct sl_group *y, const float *x, size_t n)
{
    sl_quantise_row(quantise_group, y, x, n);
}
