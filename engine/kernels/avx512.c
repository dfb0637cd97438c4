/* avx512.c: kernels.h for x86-64 with AVX-512F: what vector_of.h needs to be told. The products are
 * in avx512_matmul.c. Only entered after the processor was asked (dispatch.c). */
#include "engine/kernels/avx512.h"

typedef __m512 vec;
typedef int32_t ints __attribute__((vector_size(sizeof(vec))));
typedef uint32_t uints __attribute__((vector_size(sizeof(vec))));

enum { LANES = 16, WIDE = 4, REREAD = 1, HOLD_ROWS = 8 };

static inline vec v_all(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}

static inline __mmask16 first_lanes(size_t n)
{
    return (__mmask16)((1U << n) - 1);
}

static inline vec v_load_first(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

static inline void v_store_first(float *p, size_t n, vec v)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

static inline vec v_keep_first(size_t n, vec a, vec b)
{
    return _mm512_mask_blend_ps(first_lanes(n), b, a);
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The instructions give their second operand when one is a NaN, or both are zeros. */
static inline vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

static inline float v_fold(vec v)
{
    __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    __m256 l8 = _mm256_add_ps(_mm512_castps512_ps256(v), hi);
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

static inline float v_largest(vec v)
{
    return _mm512_reduce_max_ps(v);
}

static inline bool v_any(uints m)
{
    return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0;
}

typedef __m512d wide;

static inline wide v_widen_low(vec v)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}

static inline wide v_widen_high(vec v)
{
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
}

/* Not the instruction that stores what it packs: some processors take a hundred cycles for it. */
static inline size_t v_pack(float *p, uints m, vec v)
{
    __mmask16 mask = _mm512_test_epi32_mask((__m512i)m, (__m512i)m);
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps(mask, v));
    return (size_t)__builtin_popcount(mask);
}

#include "engine/kernels/vector_of.h"

const struct sl_kernels sl_kernels_avx512 = {
    .name = "avx512",
    .row_cost = ROW_COST(25, 17, 17, 19, 25),
    .matmul = sl_avx512_matmul,
    .quantise = sl_avx2_quantise,
    .matmul_q = sl_avx2_matmul_q,
    VECTOR_KERNELS,
};

/* For processors that also multiply bytes. */
const struct sl_kernels sl_kernels_avx512vnni = {
    .name = "avx512vnni",
    .row_cost = ROW_COST(10, 10, 10, 14, 14),
    .matmul = sl_avx512_matmul,
    .quantise = sl_avx2_quantise,
    .matmul_q = sl_avx512_matmul_q,
    VECTOR_KERNELS,
};
