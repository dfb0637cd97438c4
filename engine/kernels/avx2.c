/* avx2.c: kernels.h for x86-64 with AVX2, FMA and F16C: what vector_of.h needs to be told. The
 * products are in avx2_matmul.c. Only entered after the processor was asked (dispatch.c). */
#include "engine/kernels/avx2.h"

#include "engine/kernels/pack4.h"

typedef __m256 vec;
typedef int32_t ints __attribute__((vector_size(sizeof(vec))));
typedef uint32_t uints __attribute__((vector_size(sizeof(vec))));

enum { LANES = 8, WIDE = 4, REREAD = 0, HOLD_ROWS = 4 };

static inline vec v_all(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}

static inline __m256i first_lanes(size_t n)
{
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(const void *)(mask + LANES - n));
}

static inline vec v_load_first(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, first_lanes(n));
}

static inline void v_store_first(float *p, size_t n, vec v)
{
    _mm256_maskstore_ps(p, first_lanes(n), v);
}

static inline vec v_keep_first(size_t n, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first_lanes(n)));
}

static inline vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* The instructions give their second operand when one is a NaN, or both are zeros. */
static inline vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline float v_fold(vec v)
{
    __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
}

static inline float v_largest(vec v)
{
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

static inline bool v_any(uints m)
{
    return !_mm256_testz_si256((__m256i)m, (__m256i)m);
}

typedef __m256d wide;

static inline wide v_widen_low(vec v)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}

static inline wide v_widen_high(vec v)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

static inline size_t pack_four(float *p, unsigned mask, __m128 v)
{
    __m128i bytes = _mm_load_si128((const __m128i *)(const void *)pack4[mask]);
    _mm_storeu_ps(p, _mm_castsi128_ps(_mm_shuffle_epi8(_mm_castps_si128(v), bytes)));
    return (size_t)__builtin_popcount(mask);
}

static inline size_t v_pack(float *p, uints m, vec v)
{
    unsigned mask = (unsigned)_mm256_movemask_ps((__m256)m);
    size_t n = pack_four(p, mask & 15, _mm256_castps256_ps128(v));
    return n + pack_four(p + n, mask >> 4, _mm256_extractf128_ps(v, 1));
}

#include "engine/kernels/vector_of.h"

const struct sl_kernels sl_kernels_avx2 = {
    .name = "avx2",
    .row_cost = ROW_COST(22, 15, 15, 17, 22),
    .matmul = sl_avx2_matmul,
    .quantise = sl_avx2_quantise,
    .matmul_q = sl_avx2_matmul_q,
    VECTOR_KERNELS,
};

/* For processors that also multiply bytes. */
const struct sl_kernels sl_kernels_avx2vnni = {
    .name = "avx2vnni",
    .row_cost = ROW_COST(10, 10, 10, 14, 16), /* by avx2's, and by instructions */
    .matmul = sl_avx2_matmul,
    .quantise = sl_avx2_quantise,
    .matmul_q = sl_avx2vnni_matmul_q,
    VECTOR_KERNELS,
};
