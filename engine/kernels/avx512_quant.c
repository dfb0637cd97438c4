/* avx512_quant.c: products of Q8, Q5 and Q4 matrices with AVX-512 and its dot products of bytes
 * (VNNI).
 *
 * A step's 64 codes are one register: four inputs of 16 outputs. One instruction multiplies them
 * with a row's four inputs and adds up in 32 bits, without saturation. Its first factor is
 * unsigned: Q8 codes are taken plus 128, levels as they are, and what that adds too much is
 * known of the row's group (its offset, -16 Σ q) and starts the sum.
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

/* Of step s of a group. */
static ALWAYS_INLINE __m512i unsigned_codes(const enum sl_dtype type, const uint8_t *group,
                                            size_t s, const uint8_t *levels)
{
    if (type == SL_DTYPE_Q8)
        return _mm512_xor_si512(_mm512_loadu_si512(group + s * SL_STEP_CODES),
                                _mm512_set1_epi8((char)0x80));
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

/* -Σ (what the codes have too much) · q */
static ALWAYS_INLINE __m512i start(const enum sl_dtype type, int32_t offset)
{
    __m512i v = _mm512_set1_epi32(offset);
    return type == SL_DTYPE_Q8 ? _mm512_slli_epi32(v, 3) : v;
}

/* `ready`: the codes are unsigned already, 64 bytes a step. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    __m512 acc[MAX_SUMS];
    __m512i sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const size_t ldx = j->ldx, panel = j->panel;
    const bool bytes = ready || type == SL_DTYPE_Q8; /* a code each */
    const uint8_t *w = j->w, *scales = j->scales, *levels = j->levels, *asked = j->ahead;
#pragma GCC unroll 14
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i] = j->first ? _mm512_setzero_ps() : _mm512_loadu_ps(y);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        const size_t ahead = ahead_of(type, j->n_groups, panel, (size_t)panels, g);
#pragma GCC unroll 14
        for (int i = 0; i < rows * panels; i++)
            sum[i] = start(type, x[(size_t)(i % rows) * ldx].offset);
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const uint8_t *group = w + (size_t)p * j->w_panel;
                __m512i v = ready && type != SL_DTYPE_Q8
                                ? _mm512_load_si512(group + s * SL_STEP_CODES)
                                : unsigned_codes(type, group, s, levels);
                if (!ready && type == SL_DTYPE_Q8)
                    _mm_prefetch(group + s * SL_STEP_CODES + ahead, _MM_HINT_T0);
                if (!ready && type != SL_DTYPE_Q8 && s % 2 == 0) /* a line is two steps */
                    _mm_prefetch(group + s * (SL_STEP_CODES / 2) + ahead, _MM_HINT_T0);
                if (!ready && type == SL_DTYPE_Q5 && s == 0)
                    _mm_prefetch(group + SL_Q4_GROUP + ahead, _MM_HINT_T0);
#pragma GCC unroll 14
                for (int r = 0; r < rows; r++)
                    sum[p * rows + r] = _mm512_dpbusd_epi32(
                        sum[p * rows + r], v, four_inputs(x[(size_t)r * ldx].q + s * SL_STEP));
            }
        }
        w += bytes ? SL_Q8_GROUP : sl_group_bytes(type);
        if (ready)
            asked = ask_ahead(panels, j, asked, scales);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = scales + (size_t)p * panel;
            __m512 d = scales16(at);
            if (!ready)
                _mm_prefetch(at + (size_t)panels * panel, _MM_HINT_T0);
#pragma GCC unroll 14
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    add_group(acc[p * rows + r], sum[p * rows + r], d, x[(size_t)r * ldx].scale);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows * panels; i++)
        _mm512_storeu_ps(j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL,
                         acc[i]);
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
            _mm512_store_si512(to, five ? unsigned_codes(SL_DTYPE_Q5, w, s, levels)
                                        : unsigned_codes(SL_DTYPE_Q4, w, s, levels));
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
    X(4, 2, TYPE)                                                                                  \
    X(5, 1, TYPE)                                                                                  \
    X(5, 2, TYPE)                                                                                  \
    X(6, 1, TYPE)                                                                                  \
    X(6, 2, TYPE)                                                                                  \
    X(7, 1, TYPE)                                                                                  \
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
#include "engine/kernels/quant_of.h"
