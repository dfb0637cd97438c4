/* avx512_kquant.c: products of Q4_K and Q6_K matrices with AVX-512 and its dot products of bytes
 * (VNNI): vnni_kquant_of.h with a register for 16 outputs. */
#include "engine/kernels/avx512_quant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 8, /* rows × panels of a tile */
    MAX_ROWS = 8,
    BLOCK_PANELS = 1
};

static ALWAYS_INLINE ints step_codes(const enum sl_dtype type, const uint8_t *low,
                                     const uint8_t *high)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)low);
    __m512i c =
        _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(v), _mm256_srli_epi16(v, 4), 1),
                         _mm512_set1_epi8(15));
    if (type == SL_DTYPE_Q4_K)
        return c;
    /* Codes 0 … 15, 16 … 31 and so on take bits 0, 2, 4, 6: brought to bit 4. */
    const __m512i turns = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
    __m512i h = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)high));
    h = _mm512_and_si512(_mm512_rolv_epi32(h, turns), _mm512_set1_epi8(0x30));
    return _mm512_or_si512(c, h);
}

static ALWAYS_INLINE ints load_codes(const uint8_t *p)
{
    return _mm512_load_si512(p);
}

static ALWAYS_INLINE floats to_floats(ints v)
{
    return _mm512_cvtepi32_ps(v);
}

static ALWAYS_INLINE floats all_floats(float v)
{
    return _mm512_set1_ps(v);
}

static ALWAYS_INLINE floats times(floats a, floats b)
{
    return _mm512_mul_ps(a, b);
}

static ALWAYS_INLINE floats add_times(floats a, floats b, floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static ALWAYS_INLINE floats bytes_of(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

static ALWAYS_INLINE void spread(const enum sl_dtype type, uint8_t *to, const uint8_t *w,
                                 size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
        for (size_t s = 0; s < SL_STEPS; s++, to += SL_STEP_CODES)
            _mm512_store_si512(to, step_codes(type, w + s * (SL_STEP_CODES / 2),
                                              w + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH));
}

static const uint8_t *make_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                 size_t n_groups, const uint8_t *levels)
{
    (void)levels;
    if (type == SL_DTYPE_Q4_K)
        spread(SL_DTYPE_Q4_K, buffer, w, n_groups);
    else
        spread(SL_DTYPE_Q6_K, buffer, w, n_groups);
    return buffer;
}

#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(2, 4, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)                                                                                  \
    X(4, 2, TYPE)
/* More than 8 rows come in blocks as equal as can be, which have 4 rows or more. */
#define READIES(X, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE) X(7, 1, TYPE) X(8, 1, TYPE)

#define TYPE_A Q6_K
#define TYPE_B Q4_K
#define SL_MATMUL_Q sl_avx512_matmul_k
#include "engine/kernels/vnni_kquant_of.h"
