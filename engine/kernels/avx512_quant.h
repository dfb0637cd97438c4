/* avx512_quant.h: what products of quantised matrices with AVX-512 have in common: reading inputs
 * and scales, and adding a group. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX512_QUANT_H
#define SLATE_KERNELS_AVX512_QUANT_H

#include "engine/kernels/avx512.h"
#include "engine/kernels/kquant.h"
#include "engine/kernels/quant_tile.h"

static ALWAYS_INLINE __m512i four_inputs(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

static ALWAYS_INLINE __m512 scales16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static ALWAYS_INLINE __m512 add_group(__m512 acc, __m512i sum, __m512 d, float s)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, _mm512_set1_ps(s)), acc);
}

#endif
