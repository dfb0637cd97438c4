/* neon.c: kernels.h for arm64: what vector_of.h needs to be told. The products are in
 * neon_matmul.c, neon_quant.c and neondot_quant.c. Every arm64 processor that Linux runs on has
 * what the first two need; it is asked all the same (dispatch.c). */
#include "engine/kernels/neon.h"

#include "engine/kernels/pack4.h"

typedef float32x4_t vec;
typedef int32_t ints __attribute__((vector_size(sizeof(vec))));
typedef uint32_t uints __attribute__((vector_size(sizeof(vec))));

enum { LANES = 4, WIDE = 8, REREAD = 1, HOLD_ROWS = 8 };

static inline vec v_all(float x)
{
    return vdupq_n_f32(x);
}

static inline vec v_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void v_store(float *p, vec v)
{
    vst1q_f32(p, v);
}

static inline vec v_load_first(const float *p, size_t n)
{
    vec v = vld1q_lane_f32(p, v_all(0), 0);
    if (n > 1)
        v = vld1q_lane_f32(p + 1, v, 1);
    return n > 2 ? vld1q_lane_f32(p + 2, v, 2) : v;
}

static inline void v_store_first(float *p, size_t n, vec v)
{
    vst1q_lane_f32(p, v, 0);
    if (n > 1)
        vst1q_lane_f32(p + 1, v, 1);
    if (n > 2)
        vst1q_lane_f32(p + 2, v, 2);
}

static inline vec v_keep_first(size_t n, vec a, vec b)
{
    static const uint32_t mask[2 * LANES] = {~0U, ~0U, ~0U, ~0U};
    return vbslq_f32(vld1q_u32(mask + LANES - n), a, b);
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return vbslq_f32(vcltq_f32(a, b), yes, no);
}

/* Not the instructions for it: those make a NaN of two operands of which one is a NaN, and of two
 * zeros the positive one. */
static inline vec v_max(vec a, vec b)
{
    return v_if_less(b, a, a, b);
}

static inline vec v_min(vec a, vec b)
{
    return v_if_less(a, b, a, b);
}

static inline float v_fold(vec v)
{
    return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}

static inline float v_largest(vec v)
{
    return vmaxvq_f32(v);
}

static inline bool v_any(uints m)
{
    return vmaxvq_u32((uint32x4_t)m) != 0;
}

typedef float64x2_t wide;

static inline wide v_widen_low(vec v)
{
    return vcvt_f64_f32(vget_low_f32(v));
}

static inline wide v_widen_high(vec v)
{
    return vcvt_high_f64_f32(v);
}

static inline size_t v_pack(float *p, uints m, vec v)
{
    static const uint32_t bits[LANES] = {1, 2, 4, 8};
    uint32_t mask = vaddvq_u32(vandq_u32((uint32x4_t)m, vld1q_u32(bits)));
    uint8x16_t packed = vqtbl1q_u8(vreinterpretq_u8_f32(v), vld1q_u8(pack4[mask]));
    vst1q_f32(p, vreinterpretq_f32_u8(packed));
    return (size_t)__builtin_popcount(mask);
}

#include "engine/kernels/vector_of.h"

const struct sl_kernels sl_kernels_neon = {
    .name = "neon",
    .row_cost = ROW_COST(20, 20, 20, 24, 24), /* by instructions */
    .matmul = sl_neon_matmul,
    .quantise = sl_neon_quantise,
    .matmul_q = sl_neon_matmul_q,
    VECTOR_KERNELS,
};

/* For processors that also have dot products of bytes. */
const struct sl_kernels sl_kernels_neondot = {
    .name = "neondot",
    .row_cost = ROW_COST(12, 12, 12, 16, 16), /* by instructions */
    .matmul = sl_neon_matmul,
    .quantise = sl_neon_quantise,
    .matmul_q = sl_neondot_matmul_q,
    VECTOR_KERNELS,
};
