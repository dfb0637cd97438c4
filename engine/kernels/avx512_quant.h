/* avx512_quant.h: what products of quantised matrices with AVX-512 and its dot products of bytes
 * have in common: what vnni_quant_of.h and vnni_kquant_of.h ask for. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX512_QUANT_H
#define SLATE_KERNELS_AVX512_QUANT_H

#include "engine/kernels/avx512.h"
#include "engine/kernels/kquant.h"
#include "engine/kernels/quant_tile.h"

typedef __m512i ints;
typedef __m512 floats;

static ALWAYS_INLINE ints all_ints(int32_t v)
{
    return _mm512_set1_epi32(v);
}

static ALWAYS_INLINE ints add_dots(ints sum, ints codes, const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(v));
}

static ALWAYS_INLINE floats no_floats(void)
{
    return _mm512_setzero_ps();
}

static ALWAYS_INLINE floats load_floats(const float *p)
{
    return _mm512_loadu_ps(p);
}

static ALWAYS_INLINE void store_floats(float *p, floats v)
{
    _mm512_storeu_ps(p, v);
}

static ALWAYS_INLINE floats scales_of(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

#endif
