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

/* The product over all of k of more than four rows with n_panels panels of Q8. */
void sl_avx2_q8_rows(const struct job *all, size_t rows, size_t n_panels);

#endif
