/* avx2_quant.c: products of Q8, Q5 and Q4 matrices with AVX2, and inputs to 8 bits. See quant.h for
 * the layout, kernels.h for the order.
 *
 * A step's 64 codes are two registers: four inputs of outputs 0 … 7 and of 8 … 15. A row's four
 * inputs are broadcast, maddubs multiplies bytes and adds pairs in 16 bits, madd with ones adds
 * those pairs in 32. maddubs takes one unsigned factor and saturates.
 *
 * Q8: |w| · (x with the sign of w): a pair is at most 2 · 128 · 127 = 32,512 in magnitude, so each
 * is widened at once. Q5, Q4: levels are unsigned, a pair is at most 2 · 31 · 127 = 7,874. Those of
 * a whole group are added up in 16 bits, modulo 2^16, starting from what the zero point adds too
 * much (known of the row's group): what comes out is a sum of 16 products of a level less the zero
 * and an input, at most 16 · 16 · 127 = 32,512 in magnitude, so it is that sum whatever overflowed
 * on the way. It is widened once.
 *
 * Few rows (up to 4): as many streams as panels, each prefetched (ahead_of()). Many rows: of Q8 see
 * avx2_q8_rows.c; of the others up to 3 at a time, so that the sums of a group stay in registers,
 * and levels are looked up once. */
#include "engine/kernels/avx2_quant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 4, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 3,
    BLOCK_PANELS = 1
};

/* What sums of levels in 16 bits start from. */
static ALWAYS_INLINE __m256i offsets(const struct sl_group *x)
{
    int32_t v;
    memcpy(&v, x->pair, sizeof v);
    return _mm256_set1_epi32(v);
}

/* --- few rows -----------------------------------------------------------------------------------
 */

/* sum += the products of one group: of `rows` rows × `panels` panels, codes at w. */
static ALWAYS_INLINE void dots_q8(const int rows, const int panels, struct pair *sum,
                                  const uint8_t *w, size_t panel, size_t ahead,
                                  const struct sl_group *x, size_t ldx)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++)
        sum[i] = (struct pair){_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (size_t s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * panel + s * SL_STEP_CODES;
            _mm_prefetch(at + ahead, _MM_HINT_T1);
            __m256i lo = load32(at), hi = load32(at + 32);
            __m256i abs_lo = _mm256_abs_epi8(lo), abs_hi = _mm256_abs_epi8(hi);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                __m256i q = four_inputs(x[(size_t)r * ldx].q + s * SL_STEP);
                __m256i a = _mm256_maddubs_epi16(abs_lo, _mm256_sign_epi8(q, lo));
                __m256i b = _mm256_maddubs_epi16(abs_hi, _mm256_sign_epi8(q, hi));
                struct pair *to = &sum[p * rows + r];
                to->lo = so_far(_mm256_add_epi32(to->lo, _mm256_madd_epi16(a, ones)));
                to->hi = so_far(_mm256_add_epi32(to->hi, _mm256_madd_epi16(b, ones)));
            }
        }
    }
}

/* The same of levels, in 16 bits. */
static ALWAYS_INLINE void dots_levels(const int rows, const int panels, const enum sl_dtype type,
                                      struct pair *sum, const struct job *j, const uint8_t *w,
                                      size_t ahead, const struct sl_group *x)
{
    const __m256i ones = _mm256_set1_epi16(1), table = level_table(j->levels);
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++)
        sum[i].lo = sum[i].hi = offsets(&x[(size_t)(i % rows) * j->ldx]);
#pragma GCC unroll 8
    for (size_t s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *group = w + (size_t)p * j->panel;
            if (s % 2 == 0) /* a line is two steps */
                _mm_prefetch(group + s * (SL_STEP_CODES / 2) + ahead, _MM_HINT_T1);
            if (type == SL_DTYPE_Q5 && s == 0)
                _mm_prefetch(group + SL_Q4_GROUP + ahead, _MM_HINT_T1);
            struct pair v = levels64(type, table, group, s);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                __m256i q = four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP);
                struct pair *to = &sum[p * rows + r];
                to->lo = so_far(_mm256_add_epi16(to->lo, _mm256_maddubs_epi16(v.lo, q)));
                to->hi = so_far(_mm256_add_epi16(to->hi, _mm256_maddubs_epi16(v.hi, q)));
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++) {
        sum[i].lo = _mm256_madd_epi16(sum[i].lo, ones);
        sum[i].hi = _mm256_madd_epi16(sum[i].hi, ones);
    }
}

static ALWAYS_INLINE void few_tile(const int rows, const int panels, const enum sl_dtype type,
                                   const struct job *j)
{
    struct pair sum[MAX_SUMS];
    __m256 lo[MAX_SUMS], hi[MAX_SUMS];
    const struct sl_group *x = j->x;
    const uint8_t *scales = j->scales, *codes = j->w;
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++)
        lo[i] = hi[i] = _mm256_setzero_ps();
    for (size_t g = 0; g < j->n_groups; g++) {
        const size_t ahead = ahead_of(type, j->n_groups, j->panel, (size_t)panels, g);
        if (type == SL_DTYPE_Q8)
            dots_q8(rows, panels, sum, codes, j->panel, ahead, x, j->ldx);
        else
            dots_levels(rows, panels, type, sum, j, codes, ahead, x);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *d = scales + (size_t)p * j->panel;
            _mm_prefetch(d + (size_t)panels * j->panel, _MM_HINT_T1);
            __m256 d_lo = scales8(d), d_hi = scales8(d + 16);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                int i = p * rows + r;
                float s = x[(size_t)r * j->ldx].scale;
                lo[i] = add_group(lo[i], sum[i].lo, d_lo, s);
                hi[i] = add_group(hi[i], sum[i].hi, d_hi, s);
            }
        }
        x++;
        codes += sl_group_bytes(type);
        scales += SL_GROUP_SCALES;
    }
#pragma GCC unroll 4
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
    X(4, 1, TYPE)

/* --- many rows ----------------------------------------------------------------------------------
 */

static ALWAYS_INLINE void block_levels(const int rows, struct pair *sum, const struct job *j,
                                       const struct sl_group *x, const uint8_t *w)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        sum[r].lo = sum[r].hi = offsets(&x[(size_t)r * j->ldx]);
#pragma GCC unroll 8
    for (size_t s = 0; s < SL_STEPS; s++, w += SL_STEP_CODES) {
        __m256i lo = load32(w), hi = load32(w + 32);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256i q = four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP);
            sum[r].lo = so_far(_mm256_add_epi16(sum[r].lo, _mm256_maddubs_epi16(lo, q)));
            sum[r].hi = so_far(_mm256_add_epi16(sum[r].hi, _mm256_maddubs_epi16(hi, q)));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        sum[r].lo = _mm256_madd_epi16(sum[r].lo, ones);
        sum[r].hi = _mm256_madd_epi16(sum[r].hi, ones);
    }
}

/* Levels: Q8 has a file of its own. */
static ALWAYS_INLINE void block(const int rows, const struct job *j)
{
    __m256 lo[MAX_ROWS], hi[MAX_ROWS];
    struct pair sum[MAX_ROWS];
    const struct sl_group *x = j->x;
    const uint8_t *w = j->w, *scales = j->scales, *ahead = j->ahead;
    const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *y = j->y + (size_t)r * j->ldy;
        lo[r] = j->first ? zero : _mm256_loadu_ps(y);
        hi[r] = j->first ? zero : _mm256_loadu_ps(y + 8);
    }
    for (size_t g = 0; g < j->n_groups; g++) {
        block_levels(rows, sum, j, x, w);
        __m256 d_lo = scales8(scales), d_hi = scales8(scales + 16);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            float scale = x[(size_t)r * j->ldx].scale;
            lo[r] = add_group(lo[r], sum[r].lo, d_lo, scale);
            hi[r] = add_group(hi[r], sum[r].hi, d_hi, scale);
        }
        ahead = ask_ahead(false, 1, j, ahead, scales);
        x++;
        w += SL_Q8_GROUP;
        scales += SL_GROUP_SCALES;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *y = j->y + (size_t)r * j->ldy;
        _mm256_storeu_ps(y, lo[r]);
        _mm256_storeu_ps(y + 8, hi[r]);
    }
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    if (!ready)
        few_tile(rows, panels, type, j);
    else
        block(rows, j);
}

#define READIES(X, TYPE) X(2, 1, TYPE) X(3, 1, TYPE)

#define make_ready make_levels_ready
#define TYPE_A Q8
#define TYPE_B Q4
#define TYPE_C Q5
#define SL_MATMUL_K sl_avx2_matmul_k
#define MANY_ROWS_A sl_avx2_q8_rows
#define SL_MATMUL_Q sl_avx2_matmul_q
#include "engine/kernels/quant_of.h"

/* --- inputs -------------------------------------------------------------------------------------
 */

static ALWAYS_INLINE int32_t fold_max(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

/* v: 16 inputs in each half, added up by pairs. */
static ALWAYS_INLINE void fold_sums(struct sl_group *y, __m256i v)
{
    int16_t sum[2][2];
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1));
    int32_t first = _mm_cvtsi128_si32(_mm256_castsi256_si128(v));
    int32_t last = _mm_cvtsi128_si32(_mm256_extracti128_si256(v, 1));
    memcpy(sum[0], &first, sizeof first);
    memcpy(sum[1], &last, sizeof last);
    sl_group_sums(y, sum);
}

static void quantise_group(struct sl_group *y, const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256(), n[4];
    for (size_t i = 0; i < 4; i++)
        top = _mm256_max_epi32(top, _mm256_and_si256(load32(x + 8 * i), magnitude));
    float factor;
    if (!sl_group_scale(y, (uint32_t)fold_max(top), &factor))
        return;
    __m256 inverse = _mm256_set1_ps(factor);
    for (size_t i = 0; i < 4; i++)
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    /* Packing goes by halves of registers: put 32-bit groups back in order. */
    __m256i ab = _mm256_packs_epi32(n[0], n[1]), cd = _mm256_packs_epi32(n[2], n[3]);
    __m256i all = _mm256_packs_epi16(ab, cd);
    all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)y->q, all);
    fold_sums(y, _mm256_maddubs_epi16(_mm256_set1_epi8(1), all));
}

void sl_avx2_quantise(struct sl_group *y, const float *x, size_t n)
{
    sl_quantise_row(quantise_group, y, x, n);
}
