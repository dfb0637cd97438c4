/* avx512.c: kernels.h for x86-64 with AVX-512F; the products are in avx512_matmul.c.
 *
 * The same operations on the same operands in the same order as ref.c, sixteen outputs at a time;
 * where ref.c sums in 16 lanes, they are one register. What is left over at the end of a vector
 * goes through the same instructions under a mask; lanes of a sum that have no element there keep
 * their value (adding a zero could turn -0 into +0). Only entered after the processor was asked
 * (dispatch.c). */
#include "engine/kernels/avx512.h"

#include <assert.h>

#include "engine/kernels/poly.h"

enum { LANES = 16 };

/* The first n lanes, n ≤ 16. */
static inline __mmask16 first_lanes(size_t n)
{
    return (__mmask16)((1U << n) - 1);
}

static inline __m512 fma16(__m512 a, __m512 b, __m512 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* AVX-512F has no bitwise operations on floats. */
static inline __m512 xor16(__m512 a, __m512 b)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

/* 2^i for -126 ≤ i ≤ 127. */
static inline __m512 pow2_16(__m512i i)
{
    __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(127)), 23);
    return _mm512_castsi512_ps(bits);
}

static inline __m512 exp16(__m512 x)
{
    /* max and min give their second operand when one is a NaN. */
    x = _mm512_max_ps(_mm512_set1_ps(SL_EXP_LO), x);
    x = _mm512_min_ps(_mm512_set1_ps(SL_EXP_HI), x);
    const __m512 magic = _mm512_set1_ps(SL_EXP_MAGIC), one = _mm512_set1_ps(1);
    __m512 k = fma16(x, _mm512_set1_ps(SL_EXP_LOG2E), magic);
    __m512 n = _mm512_sub_ps(k, magic);
    __m512 r = fma16(n, _mm512_set1_ps(-SL_EXP_LN2_HI), x);
    r = fma16(n, _mm512_set1_ps(-SL_EXP_LN2_LO), r);
    __m512 p = fma16(_mm512_set1_ps(SL_EXP_C7), r, _mm512_set1_ps(SL_EXP_C6));
    p = fma16(p, r, _mm512_set1_ps(SL_EXP_C5));
    p = fma16(p, r, _mm512_set1_ps(SL_EXP_C4));
    p = fma16(p, r, _mm512_set1_ps(SL_EXP_C3));
    p = fma16(p, r, _mm512_set1_ps(SL_EXP_C2));
    p = fma16(p, r, one);
    p = fma16(p, r, one);
    __m512i i = _mm512_sub_epi32(_mm512_castps_si512(k), _mm512_set1_epi32(SL_EXP_MAGIC_BITS));
    __m512i half = _mm512_srai_epi32(i, 1);
    return _mm512_mul_ps(_mm512_mul_ps(p, pow2_16(half)), pow2_16(_mm512_sub_epi32(i, half)));
}

static inline __m512 tanh16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 a = _mm512_abs_ps(x), sign = xor16(x, a);
    __m512 z = _mm512_mul_ps(a, a);
    __m512 p = fma16(_mm512_set1_ps(SL_TANH_P5), z, _mm512_set1_ps(SL_TANH_P4));
    p = fma16(p, z, _mm512_set1_ps(SL_TANH_P3));
    p = fma16(p, z, _mm512_set1_ps(SL_TANH_P2));
    p = fma16(p, z, _mm512_set1_ps(SL_TANH_P1));
    p = fma16(p, z, _mm512_set1_ps(SL_TANH_P0));
    __m512 small = fma16(_mm512_mul_ps(a, z), p, a);
    __m512 e = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one);
    __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), e));
    __mmask16 is_small = _mm512_cmp_ps_mask(a, _mm512_set1_ps(SL_TANH_SMALL), _CMP_LT_OQ);
    return xor16(_mm512_mask_blend_ps(is_small, large, small), sign);
}

static inline __m512 sigmoid16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 e = exp16(xor16(x, _mm512_set1_ps(-0.0F)));
    return _mm512_div_ps(one, _mm512_add_ps(one, e));
}

static inline __m512 silu16(__m512 x)
{
    __m512 e = exp16(xor16(x, _mm512_set1_ps(-0.0F)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1), e));
}

static inline __m512 relu16(__m512 x)
{
    return _mm512_max_ps(_mm512_setzero_ps(), x); /* NaN stays */
}

static inline __m512 relu2_16(__m512 x)
{
    __m512 t = relu16(x);
    return _mm512_mul_ps(t, t);
}

static inline __m512 softplus16(__m512 x)
{
    __m512 u = exp16(xor16(_mm512_abs_ps(x), _mm512_set1_ps(-0.0F)));
    __m512 s = _mm512_div_ps(u, _mm512_add_ps(u, _mm512_set1_ps(2)));
    __m512 z = _mm512_mul_ps(s, s), two = _mm512_add_ps(s, s);
    __m512 q = fma16(_mm512_set1_ps(SL_LOG1P_Q3), z, _mm512_set1_ps(SL_LOG1P_Q2));
    q = fma16(q, z, _mm512_set1_ps(SL_LOG1P_Q1));
    q = fma16(q, z, _mm512_set1_ps(SL_LOG1P_Q0));
    return _mm512_add_ps(relu16(x), fma16(_mm512_mul_ps(two, z), q, two));
}

static inline __m512 elu1_16(__m512 x)
{
    __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_add_ps(exp16(x), above, x, _mm512_set1_ps(1));
}

static inline __m512 gelu16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    __m512 t = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(SL_GELU_SQRT_HALF));
    __m512 z = _mm512_mul_ps(t, t);
    __m512 p = fma16(_mm512_set1_ps(SL_GELU_P6), z, _mm512_set1_ps(SL_GELU_P5));
    p = fma16(p, z, _mm512_set1_ps(SL_GELU_P4));
    p = fma16(p, z, _mm512_set1_ps(SL_GELU_P3));
    p = fma16(p, z, _mm512_set1_ps(SL_GELU_P2));
    p = fma16(p, z, _mm512_set1_ps(SL_GELU_P1));
    p = fma16(p, z, _mm512_set1_ps(SL_GELU_P0));
    __m512 small = _mm512_fnmadd_ps(t, p, one);
    __m512 u = _mm512_min_ps(_mm512_set1_ps(SL_GELU_FAR), t); /* NaN stays */
    __m512 q = fma16(_mm512_set1_ps(SL_GELU_Q7), u, _mm512_set1_ps(SL_GELU_Q6));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q5));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q4));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q3));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q2));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q1));
    q = fma16(q, u, _mm512_set1_ps(SL_GELU_Q0));
    __m512 large = exp16(xor16(_mm512_add_ps(z, q), _mm512_set1_ps(-0.0F)));
    __mmask16 is_small = _mm512_cmp_ps_mask(t, _mm512_set1_ps(SL_GELU_SMALL), _CMP_LT_OQ);
    __m512 half = _mm512_mul_ps(_mm512_mask_blend_ps(is_small, large, small), _mm512_set1_ps(0.5F));
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_blend_ps(below, _mm512_sub_ps(one, half), half));
}

/* y = f(x), register by register, the last one in part. */
#define MAP1(f)                                                                                    \
    for (size_t i = 0; i < n; i += LANES) {                                                        \
        __mmask16 in = first_lanes(n - i < LANES ? n - i : LANES);                                 \
        _mm512_mask_storeu_ps(y + i, in, f(_mm512_maskz_loadu_ps(in, x + i)));                     \
    }

#define MAP2(f, a, b)                                                                              \
    for (size_t i = 0; i < n; i += LANES) {                                                        \
        __mmask16 in = first_lanes(n - i < LANES ? n - i : LANES);                                 \
        __m512 t = f(_mm512_maskz_loadu_ps(in, (a) + i), _mm512_maskz_loadu_ps(in, (b) + i));      \
        _mm512_mask_storeu_ps(y + i, in, t);                                                       \
    }

#define MAP3(f, a, b, c)                                                                           \
    for (size_t i = 0; i < n; i += LANES) {                                                        \
        __mmask16 in = first_lanes(n - i < LANES ? n - i : LANES);                                 \
        __m512 t = f(_mm512_maskz_loadu_ps(in, (a) + i), _mm512_maskz_loadu_ps(in, (b) + i),       \
                     _mm512_maskz_loadu_ps(in, (c) + i));                                          \
        _mm512_mask_storeu_ps(y + i, in, t);                                                       \
    }

static void vexp(float *y, const float *x, size_t n)
{
    MAP1(exp16)
}

static void vtanh(float *y, const float *x, size_t n)
{
    MAP1(tanh16)
}

static void vsigmoid(float *y, const float *x, size_t n)
{
    MAP1(sigmoid16)
}

static void vsilu(float *y, const float *x, size_t n)
{
    MAP1(silu16)
}

static void vsoftplus(float *y, const float *x, size_t n)
{
    MAP1(softplus16)
}

static void velu1(float *y, const float *x, size_t n)
{
    MAP1(elu1_16)
}

static void vrelu(float *y, const float *x, size_t n)
{
    MAP1(relu16)
}

static void vgelu(float *y, const float *x, size_t n)
{
    MAP1(gelu16)
}

static void vrelu2(float *y, const float *x, size_t n)
{
    MAP1(relu2_16)
}

static void vscale(float *y, const float *x, float s, size_t n)
{
    const __m512 factor = _mm512_set1_ps(s);
#define SCALE(v) _mm512_mul_ps(v, factor)
    MAP1(SCALE)
#undef SCALE
}

static void vadd(float *y, const float *a, const float *b, size_t n)
{
    MAP2(_mm512_add_ps, a, b)
}

static void vmul(float *y, const float *a, const float *b, size_t n)
{
    MAP2(_mm512_mul_ps, a, b)
}

static void vfma(float *y, const float *a, const float *b, const float *c, size_t n)
{
    MAP3(fma16, a, b, c)
}

static inline __m512 lerp16(__m512 x, __m512 prev, __m512 m)
{
    return fma16(_mm512_sub_ps(prev, x), m, x);
}

static void lerp(float *y, const float *x, const float *prev, const float *m, size_t n)
{
    MAP3(lerp16, x, prev, m)
}

/* --- sums in 16 lanes --- */

static inline float fold16(__m512 l16)
{
    __m256 lo = _mm512_castps512_ps256(l16);
    __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(l16), 1));
    __m256 l8 = _mm256_add_ps(lo, hi);
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

static float sum16(const float *x, size_t n)
{
    __m512 acc = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        acc = _mm512_add_ps(acc, _mm512_loadu_ps(x + i));
    __mmask16 in = first_lanes(n - i);
    return fold16(_mm512_mask_add_ps(acc, in, acc, _mm512_maskz_loadu_ps(in, x + i)));
}

static float dot16(const float *x, const float *y, size_t n)
{
    __m512 acc = _mm512_setzero_ps();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        acc = fma16(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), acc);
    __mmask16 in = first_lanes(n - i);
    __m512 vx = _mm512_maskz_loadu_ps(in, x + i), vy = _mm512_maskz_loadu_ps(in, y + i);
    return fold16(_mm512_mask3_fmadd_ps(vx, vy, acc, in));
}

static float sum16_of_squares(const float *x, float mean, size_t n)
{
    const __m512 centre = _mm512_set1_ps(mean);
    __m512 acc = _mm512_setzero_ps(), d;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        d = _mm512_sub_ps(_mm512_loadu_ps(x + i), centre);
        acc = fma16(d, d, acc);
    }
    __mmask16 in = first_lanes(n - i);
    d = _mm512_sub_ps(_mm512_maskz_loadu_ps(in, x + i), centre);
    return fold16(_mm512_mask3_fmadd_ps(d, d, acc, in));
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, size_t n,
                       float eps)
{
    float mean = sum16(x, n) / (float)n;
    float variance = sum16_of_squares(x, mean, n) / (float)n;
    const __m512 centre = _mm512_set1_ps(mean);
    const __m512 rstd = _mm512_set1_ps(1 / sqrtf(variance + eps));
#define NORMAL(v) _mm512_mul_ps(_mm512_sub_ps(v, centre), rstd)
    if (b) {
#define WITH_BIAS(v, vw, vb) fma16(NORMAL(v), vw, vb)
        MAP3(WITH_BIAS, x, w, b)
#undef WITH_BIAS
    } else {
#define WITHOUT(v, vw) _mm512_mul_ps(NORMAL(v), vw)
        MAP2(WITHOUT, x, w)
#undef WITHOUT
    }
#undef NORMAL
}

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    const __m512 r = _mm512_set1_ps(1 / sqrtf(dot16(x, x, n) / (float)n + eps));
    if (w) {
#define WEIGHTED(v, vw) _mm512_mul_ps(_mm512_mul_ps(v, r), vw)
        MAP2(WEIGHTED, x, w)
#undef WEIGHTED
    } else {
#define BARE(v) _mm512_mul_ps(v, r)
        MAP1(BARE)
#undef BARE
    }
}

static float max(const float *x, size_t n)
{
    assert(n >= 1);
    const __m512 first = _mm512_set1_ps(x[0]);
    __m512 best = first;
    __mmask16 nan = 0;
    for (size_t i = 0; i < n; i += LANES) {
        __mmask16 in = first_lanes(n - i < LANES ? n - i : LANES);
        __m512 v = _mm512_mask_loadu_ps(first, in, x + i);
        best = _mm512_max_ps(best, v);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    return nan ? NAN : _mm512_reduce_max_ps(best) + 0.0F;
}

/* --- states -------------------------------------------------------------------------------------
 *
 * A block of columns is walked from the first key to the last with its sums in registers: 64
 * columns (a head of the usual size is one block), then up to 16 at a time. */

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { WIDE = 4 };

static ALWAYS_INLINE void read_block(const int width, __mmask16 in, float *out, const float *s,
                                     const float *q, size_t n_k, size_t n_v)
{
    __m512 acc[WIDE];
    for (int j = 0; j < width; j++)
        acc[j] = _mm512_setzero_ps();
    for (size_t k = 0; k < n_k; k++, s += n_v) {
        __m512 qk = _mm512_set1_ps(q[k]);
        for (int j = 0; j < width; j++)
            acc[j] = fma16(_mm512_maskz_loadu_ps(in, s + (ptrdiff_t)LANES * j), qk, acc[j]);
    }
    for (int j = 0; j < width; j++)
        _mm512_mask_storeu_ps(out + (ptrdiff_t)LANES * j, in, acc[j]);
}

static void state_read(float *out, const float *s, const float *q, size_t n_k, size_t n_v)
{
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64)
        read_block(WIDE, first_lanes(LANES), out + v, s + v, q, n_k, n_v);
    for (; v < n_v; v += LANES)
        read_block(1, first_lanes(n_v - v < LANES ? n_v - v : LANES), out + v, s + v, q, n_k, n_v);
}

struct step {
    const float *decay, *b, *a, *key, *val, *q;
    size_t n_k, n_v;
};

static ALWAYS_INLINE void step_block(const int width, bool decays, bool adds, __mmask16 in,
                                     float *out, float *s, const struct step *t, size_t v)
{
    __m512 acc[WIDE], a[WIDE], val[WIDE];
    const size_t n_k = t->n_k, n_v = t->n_v;
    for (int j = 0; j < width; j++) {
        size_t o = v + (size_t)(LANES * j);
        acc[j] = _mm512_setzero_ps();
        a[j] = adds ? _mm512_maskz_loadu_ps(in, t->a + o) : acc[j];
        val[j] = _mm512_maskz_loadu_ps(in, t->val + o);
    }
    for (size_t k = 0; k < n_k; k++, s += n_v) {
        for (int j = 0; j < width; j++) {
            __m512 x = _mm512_maskz_loadu_ps(in, s + (ptrdiff_t)LANES * j);
            if (decays)
                x = _mm512_mul_ps(x, _mm512_set1_ps(t->decay[k]));
            if (adds)
                x = fma16(_mm512_set1_ps(t->b[k]), a[j], x);
            x = fma16(_mm512_set1_ps(t->key[k]), val[j], x);
            _mm512_mask_storeu_ps(s + (ptrdiff_t)LANES * j, in, x);
            acc[j] = fma16(x, _mm512_set1_ps(t->q[k]), acc[j]);
        }
    }
    for (int j = 0; j < width; j++)
        _mm512_mask_storeu_ps(out + (ptrdiff_t)LANES * j, in, acc[j]);
}

static void state_step(float *out, float *s, const float *decay, const float *b, const float *a,
                       const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    assert(!a == !b);
    const struct step t = {decay, b, a, key, val, q, n_k, n_v};
    const __mmask16 all = first_lanes(LANES);
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64) {
        if (decay && a)
            step_block(WIDE, true, true, all, out + v, s + v, &t, v);
        else if (decay)
            step_block(WIDE, true, false, all, out + v, s + v, &t, v);
        else
            step_block(WIDE, false, a != NULL, all, out + v, s + v, &t, v);
    }
    for (; v < n_v; v += LANES)
        step_block(1, decay != NULL, a != NULL, first_lanes(n_v - v < LANES ? n_v - v : LANES),
                   out + v, s + v, &t, v);
}

struct bonus {
    const float *decay, *bonus, *key, *val, *q;
    size_t n_k, n_v;
};

static ALWAYS_INLINE void bonus_block(const int width, __mmask16 in, float *out, float *s,
                                      const struct bonus *t, size_t v)
{
    __m512 acc[WIDE], val[WIDE];
    for (int j = 0; j < width; j++) {
        acc[j] = _mm512_setzero_ps();
        val[j] = _mm512_maskz_loadu_ps(in, t->val + v + (ptrdiff_t)LANES * j);
    }
    for (size_t k = 0; k < t->n_k; k++, s += t->n_v) {
        const __m512 key = _mm512_set1_ps(t->key[k]), q = _mm512_set1_ps(t->q[k]);
        const __m512 now = _mm512_mul_ps(_mm512_set1_ps(t->bonus[k]), key);
        const __m512 decay = _mm512_set1_ps(t->decay[k]);
        for (int j = 0; j < width; j++) {
            __m512 x = _mm512_maskz_loadu_ps(in, s + (ptrdiff_t)LANES * j);
            acc[j] = fma16(fma16(now, val[j], x), q, acc[j]);
            _mm512_mask_storeu_ps(s + (ptrdiff_t)LANES * j, in,
                                  fma16(key, val[j], _mm512_mul_ps(x, decay)));
        }
    }
    for (int j = 0; j < width; j++)
        _mm512_mask_storeu_ps(out + (ptrdiff_t)LANES * j, in, acc[j]);
}

static void state_bonus(float *out, float *s, const float *decay, const float *bonus,
                        const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    const struct bonus t = {decay, bonus, key, val, q, n_k, n_v};
    size_t v = 0;
    for (; v + 64 <= n_v; v += 64)
        bonus_block(WIDE, first_lanes(LANES), out + v, s + v, &t, v);
    for (; v < n_v; v += LANES)
        bonus_block(1, first_lanes(n_v - v < LANES ? n_v - v : LANES), out + v, s + v, &t, v);
}

static void wkv4(float *out, float *num, float *den, float *peak, const float *decay,
                 const float *bonus, const float *k, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        __mmask16 in = first_lanes(n - i < LANES ? n - i : LANES);
        __m512 key = _mm512_maskz_loadu_ps(in, k + i), val = _mm512_maskz_loadu_ps(in, v + i);
        __m512 sum = _mm512_maskz_loadu_ps(in, num + i),
               weight = _mm512_maskz_loadu_ps(in, den + i);
        __m512 top = _mm512_maskz_loadu_ps(in, peak + i);
        __m512 now = _mm512_add_ps(_mm512_maskz_loadu_ps(in, bonus + i), key);
        __m512 p = _mm512_max_ps(top, now);
        __m512 a = exp16(_mm512_sub_ps(top, p)), b = exp16(_mm512_sub_ps(now, p));
        __m512 read = _mm512_div_ps(fma16(a, sum, _mm512_mul_ps(b, val)), fma16(a, weight, b));
        _mm512_mask_storeu_ps(out + i, in, read);
        __m512 old = _mm512_add_ps(top, _mm512_maskz_loadu_ps(in, decay + i));
        p = _mm512_max_ps(old, key);
        a = exp16(_mm512_sub_ps(old, p)), b = exp16(_mm512_sub_ps(key, p));
        _mm512_mask_storeu_ps(num + i, in, fma16(a, sum, _mm512_mul_ps(b, val)));
        _mm512_mask_storeu_ps(den + i, in, fma16(a, weight, b));
        _mm512_mask_storeu_ps(peak + i, in, p);
    }
}

const struct sl_kernels sl_kernels_avx512 = {
    .name = "avx512",
    .matmul = sl_avx512_matmul,
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
