/* avx2_kquant.h: what products of Q4_K and Q6_K matrices with AVX2 have in common: reading codes.
 * Private to kernels/. */
#ifndef SLATE_KERNELS_AVX2_KQUANT_H
#define SLATE_KERNELS_AVX2_KQUANT_H

#include "engine/kernels/avx2_quant.h"

/* The 64 codes of a step. low: its 32 bytes; high: its 16 of Q6_K. */
static ALWAYS_INLINE struct pair step_codes(const enum sl_dtype type, const uint8_t *low,
                                            const uint8_t *high)
{
    const __m256i four = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);
    __m256i v = load32(low);
    struct pair c = {_mm256_and_si256(v, four), _mm256_and_si256(_mm256_srli_epi16(v, 4), four)};
    if (type == SL_DTYPE_Q4_K)
        return c;
    /* Codes 0 … 15, 16 … 31 and so on take bits 0, 2, 4, 6: brought to bit 4. */
    __m256i h = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)high));
    __m256i lo = _mm256_sllv_epi32(h, _mm256_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2));
    __m256i hi = _mm256_srlv_epi32(h, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
    c.lo = _mm256_or_si256(c.lo, _mm256_and_si256(lo, two));
    c.hi = _mm256_or_si256(c.hi, _mm256_and_si256(hi, two));
    return c;
}

static ALWAYS_INLINE __m128i load8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

static ALWAYS_INLINE void spread(const enum sl_dtype type, uint8_t *to, const uint8_t *w,
                                 size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
        for (size_t s = 0; s < SL_STEPS; s++, to += SL_STEP_CODES) {
            struct pair v = step_codes(type, w + s * (SL_STEP_CODES / 2),
                                       w + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH);
            _mm256_store_si256((__m256i *)(void *)to, v.lo);
            _mm256_store_si256((__m256i *)(void *)(to + 32), v.hi);
        }
}

static inline const uint8_t *make_k_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                          size_t n_groups, const uint8_t *levels)
{
    (void)levels;
    if (type == SL_DTYPE_Q4_K)
        spread(SL_DTYPE_Q4_K, buffer, w, n_groups);
    else
        spread(SL_DTYPE_Q6_K, buffer, w, n_groups);
    return buffer;
}

#endif
