/* avx2vnni_kquant.c: products of Q4_K and Q6_K matrices with AVX2 and its dot products of bytes
 * (AVX-VNNI): vnni_kquant_of.h with two registers for 16 outputs. */
#include "engine/kernels/avx2_kquant.h"
#include "engine/kernels/avx2vnni_quant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 6, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 6,
    BLOCK_PANELS = 1
};

static ALWAYS_INLINE ints load_codes(const uint8_t *p)
{
    return (ints){load32(p), load32(p + 32)};
}

static ALWAYS_INLINE floats to_floats(ints v)
{
    return (floats){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

static ALWAYS_INLINE floats all_floats(float v)
{
    return (floats){_mm256_set1_ps(v), _mm256_set1_ps(v)};
}

static ALWAYS_INLINE floats times(floats a, floats b)
{
    return (floats){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static ALWAYS_INLINE floats add_times(floats a, floats b, floats c)
{
    return (floats){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static ALWAYS_INLINE floats bytes_of(const uint8_t *p)
{
    return (floats){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p))),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p + 8)))};
}

#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)
/* More than 4 rows come in blocks as equal as can be, of 3 rows or more. */
#define READIES(X, TYPE) X(3, 1, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE)

#define make_ready make_k_ready
#define TYPE_A Q6_K
#define TYPE_B Q4_K
#define SL_MATMUL_Q sl_avx2vnni_matmul_k
#include "engine/kernels/vnni_kquant_of.h"
