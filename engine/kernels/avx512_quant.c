/* avx512_quant.c: products of Q8, Q5 and Q4 matrices with AVX-512 and its dot products of bytes
 * (VNNI).
 *
 * A step's 64 codes are one register: four inputs of 16 outputs (vnni_quant_of.h says how they are
 * multiplied).
 *
 * Few rows (up to 12, of Q8 7): as many panels at once as registers hold sums of, prefetched ahead.
 * Many rows: up to 7 rows and 2 panels at a time, so that reading is no bound (9 loads for 14
 * products); levels are looked up once. */
#include "engine/kernels/avx512_quant.h"

enum {
    FEW_ROWS = 12,
    FEW_ROWS_Q8 = 7, /* no look-up is saved */
    MAX_PANELS = 4,
    MAX_SUMS = 14, /* rows × panels of a tile */
    MAX_ROWS = 7,
    BLOCK_PANELS = 2
};

/* Bit s of each byte, where it counts 16. */
static ALWAYS_INLINE __m512i sixteens(__m512i bits, size_t s)
{
    typedef uint16_t lanes __attribute__((vector_size(sizeof(__m512i))));
    lanes v = (lanes)bits;
    v = s < 4 ? v << (4 - s) : v >> (s - 4);
    return _mm512_and_si512((__m512i)v, _mm512_set1_epi8(16));
}

/* Levels of step s of a group. */
static ALWAYS_INLINE ints levels64(const enum sl_dtype type, const uint8_t *group, size_t s,
                                   const uint8_t *levels)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)levels));
    const uint8_t *w = group + s * (SL_STEP_CODES / 2);
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)w);
    __m256i lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
    if (type == SL_DTYPE_Q5)
        return _mm512_or_si512(codes, sixteens(_mm512_loadu_si512(group + SL_Q4_GROUP), s));
    return _mm512_shuffle_epi8(table, codes);
}

static ALWAYS_INLINE ints unsigned_codes(const enum sl_dtype type, const bool ready,
                                         const uint8_t *w, size_t s, const uint8_t *levels)
{
    const uint8_t *at = w + s * SL_STEP_CODES;
    if (type == SL_DTYPE_Q8)
        return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8((char)0x80));
    return ready ? _mm512_load_si512(at) : levels64(type, w, s, levels);
}

static ALWAYS_INLINE floats add_sum(floats acc, ints sum, floats d, float scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(d, _mm512_set1_ps(scale)), acc);
}

/* Q8's codes are as good as they are. */
static const uint8_t *make_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                 size_t n_groups, const uint8_t *levels)
{
    uint8_t *to = buffer;
    if (type == SL_DTYPE_Q8)
        return w;
    const bool five = type == SL_DTYPE_Q5;
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++, to += SL_STEP_CODES)
            _mm512_store_si512(to, five ? levels64(SL_DTYPE_Q5, w, s, levels)
                                        : levels64(SL_DTYPE_Q4, w, s, levels));
    return buffer;
}

#define TILES_A(X, TYPE)                                                                           \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(2, 4, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)                                                                                  \
    X(4, 2, TYPE)                                                                                  \
    X(5, 1, TYPE)                                                                                  \
    X(5, 2, TYPE)                                                                                  \
    X(6, 1, TYPE)                                                                                  \
    X(6, 2, TYPE)                                                                                  \
    X(7, 1, TYPE)
#define TILES(X, TYPE)                                                                             \
    TILES_A(X, TYPE)                                                                               \
    X(8, 1, TYPE)                                                                                  \
    X(9, 1, TYPE)                                                                                  \
    X(10, 1, TYPE)                                                                                 \
    X(11, 1, TYPE)                                                                                 \
    X(12, 1, TYPE)
/* More than 7 rows come in blocks as equal as can be: of four rows or more. */
#define READIES(X, TYPE)                                                                           \
    X(4, 1, TYPE)                                                                                  \
    X(4, 2, TYPE)                                                                                  \
    X(5, 1, TYPE)                                                                                  \
    X(5, 2, TYPE)                                                                                  \
    X(6, 1, TYPE)                                                                                  \
    X(6, 2, TYPE)                                                                                  \
    X(7, 1, TYPE)                                                                                  \
    X(7, 2, TYPE)

#define TYPE_A Q8
#define TYPE_B Q4
#define TYPE_C Q5
#define FEW_ROWS_A FEW_ROWS_Q8
#define SL_MATMUL_K sl_avx512_matmul_k
#define SL_MATMUL_Q sl_avx512_matmul_q
#include "engine/kernels/vnni_quant_of.h"
