/* avx2_quant.h: what products of quantised matrices with AVX2 have in common: reading codes, inputs
 * and scales, and adding a group. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX2_QUANT_H
#define SLATE_KERNELS_AVX2_QUANT_H

#include "engine/kernels/avx2.h"
#include "engine/kernels/kquant.h"
#include "engine/kernels/quant_tile.h"

/* Of outputs 0 … 7 and 8 … 15. */
struct pair {
    __m256i lo, hi;
};

struct sums {
    __m256 lo, hi;
};

static ALWAYS_INLINE __m256i load32(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* A sum as it is so far: compilers that may add whole numbers in any order would keep all products
 * of a group until its end, in memory. */
static ALWAYS_INLINE __m256i so_far(__m256i sum)
{
    __asm__("" : "+x"(sum));
    return sum;
}

static ALWAYS_INLINE __m256i four_inputs(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}

static ALWAYS_INLINE __m256 scales8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static ALWAYS_INLINE __m256 add_group(__m256 acc, __m256i sum, __m256 d, float s)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, _mm256_set1_ps(s)), acc);
}

/* Bit s of each byte, where it counts 16. */
static ALWAYS_INLINE __m256i sixteens(__m256i bits, int s)
{
    bits = s < 4 ? _mm256_slli_epi16(bits, 4 - s) : _mm256_srli_epi16(bits, s - 4);
    return _mm256_and_si256(bits, _mm256_set1_epi8(16));
}

/* Levels of the 64 codes of step s of a group. */
static ALWAYS_INLINE struct pair levels64(const enum sl_dtype type, __m256i table,
                                          const uint8_t *group, size_t s)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i codes = load32(group + s * (SL_STEP_CODES / 2));
    __m256i lo = _mm256_and_si256(codes, low);
    __m256i hi = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
    if (type != SL_DTYPE_Q5)
        return (struct pair){_mm256_shuffle_epi8(table, lo), _mm256_shuffle_epi8(table, hi)};
    const uint8_t *bits = group + SL_Q4_GROUP;
    return (struct pair){_mm256_or_si256(lo, sixteens(load32(bits), (int)s)),
                         _mm256_or_si256(hi, sixteens(load32(bits + 32), (int)s))};
}

static ALWAYS_INLINE __m256i level_table(const uint8_t *levels)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)levels));
}

/* Q8's codes are as good as they are. */
static inline const uint8_t *make_levels_ready(uint8_t *buffer, enum sl_dtype type,
                                               const uint8_t *w, size_t n_groups,
                                               const uint8_t *levels)
{
    const __m256i table = level_table(levels);
    uint8_t *to = buffer;
    if (type == SL_DTYPE_Q8)
        return w;
    const bool five = type == SL_DTYPE_Q5;
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type)) {
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++, to += SL_STEP_CODES) {
            struct pair v =
                five ? levels64(SL_DTYPE_Q5, table, w, s) : levels64(SL_DTYPE_Q4, table, w, s);
            _mm256_store_si256((__m256i *)(void *)to, v.lo);
            _mm256_store_si256((__m256i *)(void *)(to + 32), v.hi);
        }
    }
    return buffer;
}

/* The product over all of k of more than four rows with n_panels panels of Q8. */
void sl_avx2_q8_rows(const struct job *all, size_t rows, size_t n_panels);

#endif
