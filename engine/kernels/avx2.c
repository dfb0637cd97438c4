/* avx2.c: kernels.h for x86-64 with AVX2, FMA and F16C; the products are in avx2_matmul.c.
 *
 * The same operations on the same operands in the same order as ref.c, eight outputs at a time;
 * where ref.c sums in 16 lanes, they are two registers. What is left over at the end of a vector
 * goes through the same instructions with masked loads and stores; lanes of a sum that have no
 * element there keep their value (adding a zero could turn -0 into +0). Only entered after the
 * processor was asked (dispatch.c). */
#include "engine/kernels/avx2.h"

#include <assert.h>

#include "engine/kernels/poly.h"

/* The first n of 8 lanes, n ≤ 8. */
static inline __m256i first_lanes(size_t n)
{
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(const void *)(mask + 8 - n));
}

static inline __m256 fma8(__m256 a, __m256 b, __m256 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* 2^i for -126 ≤ i ≤ 127. */
static inline __m256 pow2_8(__m256i i)
{
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(i, _mm256_set1_epi32(127)), 23);
    return _mm256_castsi256_ps(bits);
}

static inline __m256 exp8(__m256 x)
{
    /* max and min give their second operand when one is a NaN. */
    x = _mm256_max_ps(_mm256_set1_ps(SL_EXP_LO), x);
    x = _mm256_min_ps(_mm256_set1_ps(SL_EXP_HI), x);
    const __m256 magic = _mm256_set1_ps(SL_EXP_MAGIC), one = _mm256_set1_ps(1);
    __m256 k = fma8(x, _mm256_set1_ps(SL_EXP_LOG2E), magic);
    __m256 n = _mm256_sub_ps(k, magic);
    __m256 r = fma8(n, _mm256_set1_ps(-SL_EXP_LN2_HI), x);
    r = fma8(n, _mm256_set1_ps(-SL_EXP_LN2_LO), r);
    __m256 p = fma8(_mm256_set1_ps(SL_EXP_C7), r, _mm256_set1_ps(SL_EXP_C6));
    p = fma8(p, r, _mm256_set1_ps(SL_EXP_C5));
    p = fma8(p, r, _mm256_set1_ps(SL_EXP_C4));
    p = fma8(p, r, _mm256_set1_ps(SL_EXP_C3));
    p = fma8(p, r, _mm256_set1_ps(SL_EXP_C2));
    p = fma8(p, r, one);
    p = fma8(p, r, one);
    __m256i i = _mm256_sub_epi32(_mm256_castps_si256(k), _mm256_set1_epi32(SL_EXP_MAGIC_BITS));
    __m256i half = _mm256_srai_epi32(i, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, pow2_8(half)), pow2_8(_mm256_sub_epi32(i, half)));
}

static inline __m256 tanh8(__m256 x)
{
    const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0F)), one = _mm256_set1_ps(1);
    __m256 a = _mm256_xor_ps(x, sign);
    __m256 z = _mm256_mul_ps(a, a);
    __m256 p = fma8(_mm256_set1_ps(SL_TANH_P5), z, _mm256_set1_ps(SL_TANH_P4));
    p = fma8(p, z, _mm256_set1_ps(SL_TANH_P3));
    p = fma8(p, z, _mm256_set1_ps(SL_TANH_P2));
    p = fma8(p, z, _mm256_set1_ps(SL_TANH_P1));
    p = fma8(p, z, _mm256_set1_ps(SL_TANH_P0));
    __m256 small = fma8(_mm256_mul_ps(a, z), p, a);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), e));
    __m256 is_small = _mm256_cmp_ps(a, _mm256_set1_ps(SL_TANH_SMALL), _CMP_LT_OQ);
    return _mm256_or_ps(_mm256_blendv_ps(large, small, is_small), sign);
}

static inline __m256 sigmoid8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1);
    __m256 e = exp8(_mm256_xor_ps(x, _mm256_set1_ps(-0.0F)));
    return _mm256_div_ps(one, _mm256_add_ps(one, e));
}

static inline __m256 silu8(__m256 x)
{
    __m256 e = exp8(_mm256_xor_ps(x, _mm256_set1_ps(-0.0F)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1), e));
}

static inline __m256 relu8(__m256 x)
{
    return _mm256_max_ps(_mm256_setzero_ps(), x); /* NaN stays */
}

static inline __m256 relu2_8(__m256 x)
{
    __m256 t = relu8(x);
    return _mm256_mul_ps(t, t);
}

static inline __m256 softplus8(__m256 x)
{
    __m256 u = exp8(_mm256_or_ps(x, _mm256_set1_ps(-0.0F)));
    __m256 s = _mm256_div_ps(u, _mm256_add_ps(u, _mm256_set1_ps(2)));
    __m256 z = _mm256_mul_ps(s, s), two = _mm256_add_ps(s, s);
    __m256 q = fma8(_mm256_set1_ps(SL_LOG1P_Q3), z, _mm256_set1_ps(SL_LOG1P_Q2));
    q = fma8(q, z, _mm256_set1_ps(SL_LOG1P_Q1));
    q = fma8(q, z, _mm256_set1_ps(SL_LOG1P_Q0));
    return _mm256_add_ps(relu8(x), fma8(_mm256_mul_ps(two, z), q, two));
}

static inline __m256 elu1_8(__m256 x)
{
    __m256 above = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_blendv_ps(exp8(x), _mm256_add_ps(x, _mm256_set1_ps(1)), above);
}

static inline __m256 gelu8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0F);
    __m256 t = _mm256_mul_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(SL_GELU_SQRT_HALF));
    __m256 z = _mm256_mul_ps(t, t);
    __m256 p = fma8(_mm256_set1_ps(SL_GELU_P6), z, _mm256_set1_ps(SL_GELU_P5));
    p = fma8(p, z, _mm256_set1_ps(SL_GELU_P4));
    p = fma8(p, z, _mm256_set1_ps(SL_GELU_P3));
    p = fma8(p, z, _mm256_set1_ps(SL_GELU_P2));
    p = fma8(p, z, _mm256_set1_ps(SL_GELU_P1));
    p = fma8(p, z, _mm256_set1_ps(SL_GELU_P0));
    __m256 small = _mm256_fnmadd_ps(t, p, one);
    __m256 u = _mm256_min_ps(_mm256_set1_ps(SL_GELU_FAR), t); /* NaN stays */
    __m256 q = fma8(_mm256_set1_ps(SL_GELU_Q7), u, _mm256_set1_ps(SL_GELU_Q6));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q5));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q4));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q3));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q2));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q1));
    q = fma8(q, u, _mm256_set1_ps(SL_GELU_Q0));
    __m256 large = exp8(_mm256_xor_ps(_mm256_add_ps(z, q), sign));
    __m256 is_small = _mm256_cmp_ps(t, _mm256_set1_ps(SL_GELU_SMALL), _CMP_LT_OQ);
    __m256 half = _mm256_mul_ps(_mm256_blendv_ps(large, small, is_small), _mm256_set1_ps(0.5F));
    __m256 below = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(one, half), half, below));
}

/* y = f(x), in whole registers, then in the first lanes of one. */
#define MAP1(f)                                                                                    \
    size_t i = 0;                                                                                  \
    for (; i + 8 <= n; i += 8)                                                                     \
        _mm256_storeu_ps(y + i, f(_mm256_loadu_ps(x + i)));                                        \
    if (i < n) {                                                                                   \
        __m256i tail = first_lanes(n - i);                                                         \
        _mm256_maskstore_ps(y + i, tail, f(_mm256_maskload_ps(x + i, tail)));                      \
    }

#define MAP2(f, a, b)                                                                              \
    size_t i = 0;                                                                                  \
    for (; i + 8 <= n; i += 8)                                                                     \
        _mm256_storeu_ps(y + i, f(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));                \
    if (i < n) {                                                                                   \
        __m256i tail = first_lanes(n - i);                                                         \
        __m256 t = f(_mm256_maskload_ps(a + i, tail), _mm256_maskload_ps(b + i, tail));            \
        _mm256_maskstore_ps(y + i, tail, t);                                                       \
    }

#define MAP3(f, a, b, c)                                                                           \
    size_t i = 0;                                                                                  \
    for (; i + 8 <= n; i += 8) {                                                                   \
        __m256 t = f(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), _mm256_loadu_ps(c + i));      \
        _mm256_storeu_ps(y + i, t);                                                                \
    }                                                                                              \
    if (i < n) {                                                                                   \
        __m256i tail = first_lanes(n - i);                                                         \
        __m256 t = f(_mm256_maskload_ps(a + i, tail), _mm256_maskload_ps(b + i, tail),             \
                     _mm256_maskload_ps(c + i, tail));                                             \
        _mm256_maskstore_ps(y + i, tail, t);                                                       \
    }

static void vexp(float *y, const float *x, size_t n)
{
    MAP1(exp8)
}

static void vtanh(float *y, const float *x, size_t n)
{
    MAP1(tanh8)
}

static void vsigmoid(float *y, const float *x, size_t n)
{
    MAP1(sigmoid8)
}

static void vsilu(float *y, const float *x, size_t n)
{
    MAP1(silu8)
}

static void vsoftplus(float *y, const float *x, size_t n)
{
    MAP1(softplus8)
}

static void velu1(float *y, const float *x, size_t n)
{
    MAP1(elu1_8)
}

static void vrelu(float *y, const float *x, size_t n)
{
    MAP1(relu8)
}

static void vgelu(float *y, const float *x, size_t n)
{
    MAP1(gelu8)
}

static void vrelu2(float *y, const float *x, size_t n)
{
    MAP1(relu2_8)
}

static void vscale(float *y, const float *x, float s, size_t n)
{
    const __m256 factor = _mm256_set1_ps(s);
#define SCALE(v) _mm256_mul_ps(v, factor)
    MAP1(SCALE)
#undef SCALE
}

static void vadd(float *y, const float *a, const float *b, size_t n)
{
    MAP2(_mm256_add_ps, a, b)
}

static void vmul(float *y, const float *a, const float *b, size_t n)
{
    MAP2(_mm256_mul_ps, a, b)
}

static void vfma(float *y, const float *a, const float *b, const float *c, size_t n)
{
    MAP3(fma8, a, b, c)
}

static inline __m256 lerp8(__m256 x, __m256 prev, __m256 m)
{
    return fma8(_mm256_sub_ps(prev, x), m, x);
}

static void lerp(float *y, const float *x, const float *prev, const float *m, size_t n)
{
    MAP3(lerp8, x, prev, m)
}

/* --- sums in 16 lanes ---------------------------------------------------------------------------
 */

static inline float fold16(__m256 lo, __m256 hi)
{
    __m256 l8 = _mm256_add_ps(lo, hi);
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

/* acc[0], acc[1] = the lanes after element n - 1, where step(acc, i, mask) is one register's
 * worth. */
#define SUM16(lo, hi, n, STEP)                                                                     \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + 16 <= (n); i += 16) {                                                           \
            lo = STEP(lo, _mm256_loadu_ps, i);                                                     \
            hi = STEP(hi, _mm256_loadu_ps, i + 8);                                                 \
        }                                                                                          \
        size_t in_lo = (n)-i < 8 ? (n)-i : 8, in_hi = (n)-i - in_lo;                               \
        __m256i m = first_lanes(in_lo);                                                            \
        lo = _mm256_blendv_ps(lo, STEP(lo, MASKED, i), _mm256_castsi256_ps(m));                    \
        if (in_hi > 0) {                                                                           \
            m = first_lanes(in_hi);                                                                \
            hi = _mm256_blendv_ps(hi, STEP(hi, MASKED, i + 8), _mm256_castsi256_ps(m));            \
        }                                                                                          \
    } while (0)
#define MASKED(p) _mm256_maskload_ps(p, m)

static float sum16(const float *x, size_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
#define STEP(acc, LOAD, i) _mm256_add_ps(acc, LOAD(x + (i)))
    SUM16(lo, hi, n, STEP);
#undef STEP
    return fold16(lo, hi);
}

static float dot16(const float *x, const float *y, size_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
#define STEP(acc, LOAD, i) fma8(LOAD(x + (i)), LOAD(y + (i)), acc)
    SUM16(lo, hi, n, STEP);
#undef STEP
    return fold16(lo, hi);
}

static float sum16_of_squares(const float *x, float mean, size_t n)
{
    const __m256 centre = _mm256_set1_ps(mean);
    __m256 lo = _mm256_setzero_ps(), hi = lo;
#define SQUARE(d, acc) fma8(d, d, acc)
#define STEP(acc, LOAD, i) SQUARE(_mm256_sub_ps(LOAD(x + (i)), centre), acc)
    SUM16(lo, hi, n, STEP);
#undef STEP
#undef SQUARE
    return fold16(lo, hi);
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, size_t n,
                       float eps)
{
    float mean = sum16(x, n) / (float)n;
    float variance = sum16_of_squares(x, mean, n) / (float)n;
    const __m256 centre = _mm256_set1_ps(mean);
    const __m256 rstd = _mm256_set1_ps(1 / sqrtf(variance + eps));
#define NORMAL(v) _mm256_mul_ps(_mm256_sub_ps(v, centre), rstd)
    if (b) {
#define WITH_BIAS(v, vw, vb) fma8(NORMAL(v), vw, vb)
        MAP3(WITH_BIAS, x, w, b)
#undef WITH_BIAS
    } else {
#define WITHOUT(v, vw) _mm256_mul_ps(NORMAL(v), vw)
        MAP2(WITHOUT, x, w)
#undef WITHOUT
    }
#undef NORMAL
}

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    const __m256 r = _mm256_set1_ps(1 / sqrtf(dot16(x, x, n) / (float)n + eps));
    if (w) {
#define WEIGHTED(v, vw) _mm256_mul_ps(_mm256_mul_ps(v, r), vw)
        MAP2(WEIGHTED, x, w)
#undef WEIGHTED
    } else {
#define BARE(v) _mm256_mul_ps(v, r)
        MAP1(BARE)
#undef BARE
    }
}

static float max(const float *x, size_t n)
{
    assert(n >= 1);
    const __m256 first = _mm256_set1_ps(x[0]);
    __m256 best = first, nan = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) {
        __m256 v;
        if (i + 8 <= n) {
            v = _mm256_loadu_ps(x + i);
        } else {
            __m256i m = first_lanes(n - i);
            v = _mm256_blendv_ps(first, _mm256_maskload_ps(x + i, m), _mm256_castsi256_ps(m));
        }
        best = _mm256_max_ps(best, v);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(nan) != 0)
        return NAN;
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(best), _mm256_extractf128_ps(best, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2))) + 0.0F;
}

/* --- states -------------------------------------------------------------------------------------
 *
 * A block of columns is walked from the first key to the last with its sums in registers: 64
 * columns (a head of the usual size is one block), then 8, then what is left. */

static inline __m256 load_lanes(const float *p, bool whole, __m256i m)
{
    return whole ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, m);
}

static inline void store_lanes(float *p, bool whole, __m256i m, __m256 v)
{
    if (whole)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, m, v);
}

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void read_block(const int width, bool whole, __m256i m, float *out,
                                     const float *s, const float *q, size_t n_k, size_t n_v)
{
    __m256 acc[8];
    for (int j = 0; j < width; j++)
        acc[j] = _mm256_setzero_ps();
    for (size_t k = 0; k < n_k; k++, s += n_v) {
        __m256 qk = _mm256_broadcast_ss(q + k);
        for (int j = 0; j < width; j++)
            acc[j] = fma8(load_lanes(s + (ptrdiff_t)8 * j, whole, m), qk, acc[j]);
    }
    for (int j = 0; j < width; j++)
        store_lanes(out + (ptrdiff_t)8 * j, whole, m, acc[j]);
}

static void state_read(float *out, const float *s, const float *q, size_t n_k, size_t n_v)
{
    const __m256i none = _mm256_setzero_si256();
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64)
        read_block(8, true, none, out + v, s + v, q, n_k, n_v);
    for (; v + 8 <= n_v; v += 8)
        read_block(1, true, none, out + v, s + v, q, n_k, n_v);
    if (v < n_v)
        read_block(1, false, first_lanes(n_v - v), out + v, s + v, q, n_k, n_v);
}

struct step {
    const float *decay, *b, *a, *key, *val, *q;
    size_t n_k, n_v;
};

static ALWAYS_INLINE void step_block(const int width, bool decays, bool adds, bool whole, __m256i m,
                                     float *out, float *s, const struct step *t, size_t v)
{
    __m256 acc[8];
    for (int j = 0; j < width; j++)
        acc[j] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->n_k; k++, s += t->n_v) {
        for (int j = 0; j < width; j++) {
            ptrdiff_t o = (ptrdiff_t)8 * j;
            __m256 x = load_lanes(s + o, whole, m);
            if (decays)
                x = _mm256_mul_ps(x, _mm256_broadcast_ss(t->decay + k));
            if (adds)
                x = fma8(_mm256_broadcast_ss(t->b + k), load_lanes(t->a + v + o, whole, m), x);
            x = fma8(_mm256_broadcast_ss(t->key + k), load_lanes(t->val + v + o, whole, m), x);
            store_lanes(s + o, whole, m, x);
            acc[j] = fma8(x, _mm256_broadcast_ss(t->q + k), acc[j]);
        }
    }
    for (int j = 0; j < width; j++)
        store_lanes(out + (ptrdiff_t)8 * j, whole, m, acc[j]);
}

static void state_step(float *out, float *s, const float *decay, const float *b, const float *a,
                       const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    assert(!a == !b);
    const struct step t = {decay, b, a, key, val, q, n_k, n_v};
    const __m256i none = _mm256_setzero_si256();
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64) {
        if (decay && a)
            step_block(8, true, true, true, none, out + v, s + v, &t, v);
        else if (decay)
            step_block(8, true, false, true, none, out + v, s + v, &t, v);
        else
            step_block(8, false, a != NULL, true, none, out + v, s + v, &t, v);
    }
    for (; v + 8 <= n_v; v += 8)
        step_block(1, decay != NULL, a != NULL, true, none, out + v, s + v, &t, v);
    if (v < n_v)
        step_block(1, decay != NULL, a != NULL, false, first_lanes(n_v - v), out + v, s + v, &t, v);
}

struct bonus {
    const float *decay, *bonus, *key, *val, *q;
    size_t n_k, n_v;
};

static ALWAYS_INLINE void bonus_block(const int width, bool whole, __m256i m, float *out, float *s,
                                      const struct bonus *t, size_t v)
{
    __m256 acc[8];
    for (int j = 0; j < width; j++)
        acc[j] = _mm256_setzero_ps();
    for (size_t k = 0; k < t->n_k; k++, s += t->n_v) {
        const __m256 key = _mm256_broadcast_ss(t->key + k), q = _mm256_broadcast_ss(t->q + k);
        const __m256 now = _mm256_mul_ps(_mm256_broadcast_ss(t->bonus + k), key);
        const __m256 decay = _mm256_broadcast_ss(t->decay + k);
        for (int j = 0; j < width; j++) {
            ptrdiff_t o = (ptrdiff_t)8 * j;
            __m256 x = load_lanes(s + o, whole, m), val = load_lanes(t->val + v + o, whole, m);
            acc[j] = fma8(fma8(now, val, x), q, acc[j]);
            store_lanes(s + o, whole, m, fma8(key, val, _mm256_mul_ps(x, decay)));
        }
    }
    for (int j = 0; j < width; j++)
        store_lanes(out + (ptrdiff_t)8 * j, whole, m, acc[j]);
}

static void state_bonus(float *out, float *s, const float *decay, const float *bonus,
                        const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    const struct bonus t = {decay, bonus, key, val, q, n_k, n_v};
    const __m256i none = _mm256_setzero_si256();
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64)
        bonus_block(8, true, none, out + v, s + v, &t, v);
    for (; v + 8 <= n_v; v += 8)
        bonus_block(1, true, none, out + v, s + v, &t, v);
    if (v < n_v)
        bonus_block(1, false, first_lanes(n_v - v), out + v, s + v, &t, v);
}

/* Eight channels at most; those beyond n are zeros on the way and not written. */
static ALWAYS_INLINE void wkv4_8(bool whole, __m256i m, float *out, float *num, float *den,
                                 float *peak, const float *decay, const float *bonus,
                                 const float *k, const float *v)
{
    __m256 key = load_lanes(k, whole, m), val = load_lanes(v, whole, m);
    __m256 sum = load_lanes(num, whole, m), weight = load_lanes(den, whole, m);
    __m256 top = load_lanes(peak, whole, m);
    __m256 now = _mm256_add_ps(load_lanes(bonus, whole, m), key);
    __m256 p = _mm256_max_ps(top, now);
    __m256 a = exp8(_mm256_sub_ps(top, p)), b = exp8(_mm256_sub_ps(now, p));
    __m256 read = _mm256_div_ps(fma8(a, sum, _mm256_mul_ps(b, val)), fma8(a, weight, b));
    store_lanes(out, whole, m, read);
    __m256 old = _mm256_add_ps(top, load_lanes(decay, whole, m));
    p = _mm256_max_ps(old, key);
    a = exp8(_mm256_sub_ps(old, p)), b = exp8(_mm256_sub_ps(key, p));
    store_lanes(num, whole, m, fma8(a, sum, _mm256_mul_ps(b, val)));
    store_lanes(den, whole, m, fma8(a, weight, b));
    store_lanes(peak, whole, m, p);
}

static void wkv4(float *out, float *num, float *den, float *peak, const float *decay,
                 const float *bonus, const float *k, const float *v, size_t n)
{
    const __m256i none = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        wkv4_8(true, none, out + i, num + i, den + i, peak + i, decay + i, bonus + i, k + i, v + i);
    if (i < n)
        wkv4_8(false, first_lanes(n - i), out + i, num + i, den + i, peak + i, decay + i, bonus + i,
               k + i, v + i);
}

const struct sl_kernels sl_kernels_avx2 = {
    .name = "avx2",
    .matmul = sl_avx2_matmul,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .lerp = lerp,
    .vexp = vexp,
    .vtanh = vtanh,
    .vsigmoid = vsigmoid,
    .vsilu = vsilu,
    .vsoftplus = vsoftplus,
    .velu1 = velu1,
    .vrelu = vrelu,
    .vrelu2 = vrelu2,
    .vgelu = vgelu,
    .vadd = vadd,
    .vmul = vmul,
    .vfma = vfma,
    .vscale = vscale,
    .sum16 = sum16,
    .dot16 = dot16,
    .max = max,
    .state_read = state_read,
    .state_step = state_step,
    .state_bonus = state_bonus,
    .wkv4 = wkv4,
};
