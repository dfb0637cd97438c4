/* neon_quant_of.h: products of Q8, Q5 and Q4 matrices on arm64; see quant.h for the layout,
 * kernels.h for the order. Included once by each file that multiplies bytes in its own way and has
 * defined what quant_of.h asks for except tile() and make_ready(), and
 *
 *   MAX_SUMS  rows × panels of a tile at most
 *   dots(rows, panels, type, ready, sum, j, levels, w, x)
 *             sum[panel * rows + row][i] = the integer sums of outputs 4i … 4i + 3 over one group:
 *             codes at w, rows' inputs at x; the first four are constants */
#include "engine/kernels/neon_quant.h"

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *job)
{
    float32x4_t acc[MAX_SUMS][REGISTERS];
    int32x4_t sum[MAX_SUMS][REGISTERS];
    const struct job j = *job;
    const struct sl_group *x = j.x;
    const uint8_t *w = j.w, *scales = j.scales;
    const int8x16_t levels = signed_levels(j.levels);
    const int n = rows * panels * REGISTERS;
#define ROW(i) (i / REGISTERS % rows)
#define PLACE(i)                                                                                   \
    (j.y + (size_t)ROW(i) * j.ldy + (size_t)(i / REGISTERS / rows) * SL_PANEL +                    \
     (size_t)(i % REGISTERS) * 4)
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        acc[i / REGISTERS][i % REGISTERS] = j.first ? vdupq_n_f32(0) : vld1q_f32(PLACE(i));
    for (size_t g = 0; g < j.n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        dots(rows, panels, type, ready, sum, &j, levels, w, x);
        w += ready ? SL_Q8_GROUP : sl_group_bytes(type);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            int at = i / REGISTERS, k = i % REGISTERS;
            const uint8_t *d = scales + (size_t)(at / rows) * j.panel + (size_t)k * 8;
            float32x4_t scale = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(d)));
            scale = vmulq_n_f32(scale, x[(size_t)ROW(i) * j.ldx].scale);
            acc[at][k] = vfmaq_f32(acc[at][k], vcvtq_f32_s32(sum[at][k]), scale);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        vst1q_f32(PLACE(i), acc[i / REGISTERS][i % REGISTERS]);
#undef PLACE
#undef ROW
}

/* Q8's codes are as good as they are. */
static const uint8_t *make_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                 size_t n_groups, const uint8_t *levels)
{
    const int8x16_t table = signed_levels(levels);
    int8_t *to = (int8_t *)buffer;
    if (type == SL_DTYPE_Q8)
        return w;
    const bool five = type == SL_DTYPE_Q5;
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
        for (size_t s = 0; s < SL_STEPS; s++) {
            int8x16_t codes[REGISTERS];
            if (five)
                step_codes(SL_DTYPE_Q5, false, codes, w, s, table);
            else
                step_codes(SL_DTYPE_Q4, false, codes, w, s, table);
            for (int k = 0; k < REGISTERS; k++, to += 16)
                vst1q_s8(to, codes[k]);
        }
    return buffer;
}

#define TYPE_A Q8
#define TYPE_B Q4
#define TYPE_C Q5
#include "engine/kernels/quant_of.h"
