/* neon_kquant_of.h: products of Q4_K and Q6_K matrices on arm64; see kquant.h for the layout,
 * kernels.h for the order. Included once by each file that multiplies bytes in its own way and has
 * defined what quant_of.h asks for except tile(), make_ready() and the types, and
 *
 *   MAX_SUMS  rows × panels of a tile at most
 *   dots(rows, panels, type, ready, sum, j, w, x, half)
 *             sum[panel * rows + row][i] = the integer sums of outputs 4i … 4i + 3 over half a
 *             group: codes of the group, from the zero, at w, rows' inputs at x; the first four and
 *             the last are constants */
#include "engine/kernels/neon_kquant.h"

/* Four whole-number scales, which may be negative, or minima. */
static ALWAYS_INLINE int32x4_t whole4(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    int8x8_t v = vreinterpret_s8_u32(vdup_n_u32(four));
    return vmovl_s16(vget_low_s16(vmovl_s8(v)));
}

static ALWAYS_INLINE float32x4_t half4(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* A group's sums are added to acc, four outputs of one row. record, scales: at these outputs; g:
 * the group's sums of its halves. */
static ALWAYS_INLINE float32x4_t add_group(const enum sl_dtype type, float32x4_t acc,
                                           const int32x4_t g[2], const uint8_t *d,
                                           const uint8_t *scales, const struct sl_group *x)
{
    int32x4_t whole = vmulq_s32(g[0], whole4(scales));
    if (type == SL_DTYPE_Q4_K)
        whole = vmlaq_s32(whole, g[1], whole4(scales));
    else
        whole = vmlaq_s32(whole, g[1], whole4(scales + SL_PANEL));
    acc = vfmaq_f32(acc, vcvtq_f32_s32(whole), vmulq_n_f32(half4(d), x->scale));
    if (type == SL_DTYPE_Q6_K)
        return acc;
    float32x4_t m = vmulq_n_f32(half4(d + SL_Q4_K_MINS), SL_K_MIN_FACTOR);
    m = vmulq_f32(m, vcvtq_f32_s32(whole4(scales + SL_PANEL)));
    return vfmaq_n_f32(acc, m, (float)x->offset * x->scale);
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *job)
{
    float32x4_t acc[MAX_SUMS][REGISTERS];
    int32x4_t sum[2][MAX_SUMS][REGISTERS];
    const struct job j = *job;
    const struct sl_group *x = j.x;
    const uint8_t *w = j.w;
    const int n = rows * panels * REGISTERS;
#define ROW(i) (i / REGISTERS % rows)
#define PLACE(i)                                                                                   \
    (j.y + (size_t)ROW(i) * j.ldy + (size_t)(i / REGISTERS / rows) * SL_PANEL +                    \
     (size_t)(i % REGISTERS) * 4)
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        acc[i / REGISTERS][i % REGISTERS] = j.first ? vdupq_n_f32(0) : vld1q_f32(PLACE(i));
    for (size_t g = 0; g < j.n_groups; g++, x++) {
        const uint8_t *record = j.scales + g / SL_K_GROUPS * sl_k_record(type);
        dots(rows, panels, type, ready, sum[0], &j, w, x, 0);
        dots(rows, panels, type, ready, sum[1], &j, w, x, 1);
        w += ready ? SL_Q8_GROUP : sl_group_bytes(type);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            int at = i / REGISTERS, k = i % REGISTERS;
            const uint8_t *d = record + (size_t)(at / rows) * j.panel;
            const uint8_t *scales = d + sl_k_group_at(type, g % SL_K_GROUPS) + (ptrdiff_t)4 * k;
            const int32x4_t both[2] = {sum[0][at][k], sum[1][at][k]};
            acc[at][k] = add_group(type, acc[at][k], both, d + (ptrdiff_t)8 * k, scales,
                                   &x[(size_t)ROW(i) * j.ldx]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        vst1q_f32(PLACE(i), acc[i / REGISTERS][i % REGISTERS]);
#undef PLACE
#undef ROW
}

static ALWAYS_INLINE void spread(const enum sl_dtype type, int8_t *to, const uint8_t *w,
                                 size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
        for (size_t s = 0; s < SL_STEPS; s++) {
            int8x16_t codes[REGISTERS];
            k_step_codes(type, false, codes, w, s);
            for (int k = 0; k < REGISTERS; k++, to += 16)
                vst1q_s8(to, codes[k]);
        }
}

static const uint8_t *make_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                 size_t n_groups, const uint8_t *levels)
{
    (void)levels;
    if (type == SL_DTYPE_Q4_K)
        spread(SL_DTYPE_Q4_K, (int8_t *)buffer, w, n_groups);
    else
        spread(SL_DTYPE_Q6_K, (int8_t *)buffer, w, n_groups);
    return buffer;
}

#define TYPE_A Q6_K
#define TYPE_B Q4_K
#include "engine/kernels/quant_of.h"
