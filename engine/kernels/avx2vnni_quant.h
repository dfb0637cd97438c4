/* avx2vnni_quant.h: what products of quantised matrices with AVX2 and its dot products of bytes
 * (AVX-VNNI) have in common: what vnni_quant_of.h and vnni_kquant_of.h ask for. Private to
 * kernels/. */
#ifndef SLATE_KERNELS_AVX2VNNI_QUANT_H
#define SLATE_KERNELS_AVX2VNNI_QUANT_H

#include "engine/kernels/avx2_quant.h"

typedef struct pair ints;
typedef struct sums floats;

static ALWAYS_INLINE ints all_ints(int32_t v)
{
    return (ints){_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}

static ALWAYS_INLINE ints add_dots(ints sum, ints codes, const int8_t *q)
{
    __m256i four = four_inputs(q);
    return (ints){_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, four),
                  _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, four)};
}

static ALWAYS_INLINE floats no_floats(void)
{
    return (floats){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static ALWAYS_INLINE floats load_floats(const float *p)
{
    return (floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static ALWAYS_INLINE void store_floats(float *p, floats v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

static ALWAYS_INLINE floats scales_of(const uint8_t *p)
{
    return (floats){scales8(p), scales8(p + 16)};
}

#endif
