/* avx2vnni_quant.c: products of Q8, Q5 and Q4 matrices with AVX2 and its dot products of bytes
 * (AVX-VNNI: for processors that have these and no AVX-512).
 *
 * A step's 64 codes are two registers: four inputs of outputs 0 … 7 and of 8 … 15
 * (vnni_quant_of.h says how they are multiplied).
 *
 * Up to 6 rows × panels at a time: a group's sums are in registers, and the sums of groups, touched
 * once for 32 inputs, wherever there is room. Few rows: as many streams as panels, prefetched
 * ahead. Many rows: levels are looked up once. */
#include "engine/kernels/avx2vnni_quant.h"

enum {
    FEW_ROWS = 6,
    MAX_PANELS = 4,
    MAX_SUMS = 6, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 6,
    BLOCK_PANELS = 1
};

static ALWAYS_INLINE ints unsigned_codes(const enum sl_dtype type, const bool ready,
                                         const uint8_t *w, size_t s, const uint8_t *levels)
{
    const uint8_t *at = w + s * SL_STEP_CODES;
    const __m256i top = _mm256_set1_epi8((char)0x80);
    if (type == SL_DTYPE_Q8)
        return (ints){_mm256_xor_si256(load32(at), top), _mm256_xor_si256(load32(at + 32), top)};
    return ready ? (ints){load32(at), load32(at + 32)} : levels64(type, level_table(levels), w, s);
}

static ALWAYS_INLINE floats add_sum(floats acc, ints sum, floats d, float scale)
{
    return (floats){add_group(acc.lo, sum.lo, d.lo, scale), add_group(acc.hi, sum.hi, d.hi, scale)};
}

#define TILES(X, TYPE)                                                                             \
    X(1, 1, TYPE)                                                                                  \
    X(1, 2, TYPE)                                                                                  \
    X(1, 4, TYPE)                                                                                  \
    X(2, 1, TYPE)                                                                                  \
    X(2, 2, TYPE)                                                                                  \
    X(3, 1, TYPE)                                                                                  \
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)                                                                                  \
    X(5, 1, TYPE)                                                                                  \
    X(6, 1, TYPE)
/* More than 6 rows come in blocks as equal as can be: of three rows or more. */
#define READIES(X, TYPE) X(3, 1, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE)

#define make_ready make_levels_ready
#define TYPE_A Q8
#define TYPE_B Q4
#define TYPE_C Q5
#define SL_MATMUL_K sl_avx2vnni_matmul_k
#define SL_MATMUL_Q sl_avx2vnni_matmul_q
#include "engine/kernels/vnni_quant_of.h"
