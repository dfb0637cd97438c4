/* avx2vnni_quant.c: products of Q8, Q5 and Q4 matrices with AVX2 and its dot products of bytes
 * (AVX-VNNI: processors that have these and no AVX-512).
 *
 * A step's 64 codes are two registers: four inputs of outputs 0 … 7 and of 8 … 15. One instruction
 * multiplies one of them with a row's four inputs and adds up in 32 bits, without saturation. Its
 * first factor is unsigned: as in avx512_quant.c Q8 codes are taken plus 128, levels as they are,
 * and what that adds too much starts the sum.
 *
 * Up to 6 rows × panels at a time: their sums of a group are in registers, and those of groups,
 * which are touched once for 32 inputs, wherever there is room. Few rows: as many streams as
 * panels, prefetched ahead. Many rows: levels are looked up once. */
#include "engine/kernels/avx2_quant.h"

enum {
    FEW_ROWS = 6,
    MAX_PANELS = 4,
    MAX_SUMS = 6, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 6,
    BLOCK_PANELS = 1
};

/* Of step s of a group at w; `ready`: of one that make_ready() made. */
static ALWAYS_INLINE struct pair unsigned_codes(const enum sl_dtype type, const bool ready,
                                                const uint8_t *w, size_t s, const uint8_t *levels)
{
    const uint8_t *at = w + s * SL_STEP_CODES;
    const __m256i top = _mm256_set1_epi8((char)0x80);
    if (type == SL_DTYPE_Q8)
        return (struct pair){_mm256_xor_si256(load32(at), top),
                             _mm256_xor_si256(load32(at + 32), top)};
    return ready ? (struct pair){load32(at), load32(at + 32)}
                 : levels64(type, level_table(levels), w, s);
}

/* -Σ (what the codes have too much) · q */
static ALWAYS_INLINE __m256i start(const enum sl_dtype type, int32_t offset)
{
    __m256i v = _mm256_set1_epi32(offset);
    return type == SL_DTYPE_Q8 ? _mm256_slli_epi32(v, 3) : v;
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    __m256 lo[MAX_SUMS], hi[MAX_SUMS];
    struct pair sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const size_t ldx = j->ldx, panel = j->panel;
    const uint8_t *w = j->w, *scales = j->scales, *asked = j->ahead;
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        lo[i] = j->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y);
        hi[i] = j->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + 8);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        const size_t ahead = ahead_of(type, j->n_groups, panel, (size_t)panels, g);
#pragma GCC unroll 6
        for (int i = 0; i < rows * panels; i++)
            sum[i].lo = sum[i].hi = start(type, x[(size_t)(i % rows) * ldx].offset);
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const uint8_t *group = w + (size_t)p * j->w_panel, *at = group + s * SL_STEP_CODES;
                struct pair v = unsigned_codes(type, ready, group, s, j->levels);
                if (!ready && type == SL_DTYPE_Q8)
                    _mm_prefetch(at + ahead, _MM_HINT_T0);
                if (!ready && type != SL_DTYPE_Q8 && s % 2 == 0) /* a line is two steps */
                    _mm_prefetch(group + s * (SL_STEP_CODES / 2) + ahead, _MM_HINT_T0);
                if (!ready && type == SL_DTYPE_Q5 && s == 0)
                    _mm_prefetch(group + SL_Q4_GROUP + ahead, _MM_HINT_T0);
#pragma GCC unroll 6
                for (int r = 0; r < rows; r++) {
                    __m256i q = four_inputs(x[(size_t)r * ldx].q + s * SL_STEP);
                    struct pair *to = &sum[p * rows + r];
                    to->lo = _mm256_dpbusd_avx_epi32(to->lo, v.lo, q);
                    to->hi = _mm256_dpbusd_avx_epi32(to->hi, v.hi, q);
                }
            }
        }
        w += ready ? SL_Q8_GROUP : sl_group_bytes(type);
        if (ready)
            asked = ask_ahead(panels, j, asked, scales);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = scales + (size_t)p * panel;
            __m256 d_lo = scales8(at), d_hi = scales8(at + 16);
            if (!ready)
                _mm_prefetch(at + (size_t)panels * panel, _MM_HINT_T0);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                int i = p * rows + r;
                float scale = x[(size_t)r * ldx].scale;
                lo[i] = add_group(lo[i], sum[i].lo, d_lo, scale);
                hi[i] = add_group(hi[i], sum[i].hi, d_hi, scale);
            }
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++) {
        float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        _mm256_storeu_ps(y, lo[i]);
        _mm256_storeu_ps(y + 8, hi[i]);
    }
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
#include "engine/kernels/quant_of.h"
