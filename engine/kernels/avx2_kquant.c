/* avx2_kquant.c: products of Q4_K and Q6_K matrices with AVX2. See kquant.h for the layout,
 * kernels.h for the order, avx2_quant.c for how bytes are multiplied.
 *
 * Codes are unsigned, so maddubs takes them as they are; products are added up in 16 bits while
 * they fit (Q4_K: a group; Q6_K: two steps), and madd, which widens, multiplies with the group's
 * whole-number scale at once. What Q6_K's zero point adds starts the sum; Q4_K's minima are one
 * more product, of the group's offset. */
#include "engine/kernels/avx2_kquant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 4, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 3,
    BLOCK_PANELS = 1
};

/* --- scales -----------------------------------------------------------------------------------
 */

/* Whole-number scales of eight outputs, each twice in the 32 bits of its output. */
static ALWAYS_INLINE __m256i scale_pairs(const uint8_t *p)
{
    const __m256i each = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4,
                                          4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
    __m256i v = _mm256_broadcastq_epi64(load8(p));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(v, each), 8);
}

/* Minima of eight outputs: those of a record, and one group's whole numbers. */
static ALWAYS_INLINE __m256 minima8(__m256 m, const uint8_t *p)
{
    return _mm256_mul_ps(m, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(p))));
}

static ALWAYS_INLINE __m256 record_minima8(const uint8_t *p)
{
    return _mm256_mul_ps(scales8(p), _mm256_set1_ps(SL_K_MIN_FACTOR));
}

/* -32 Σ q of half a group, times the scale. */
static ALWAYS_INLINE __m256i zero_of(__m256i scale, int16_t half)
{
    return _mm256_madd_epi16(_mm256_set1_epi16(half), scale);
}

/* What minima are multiplied with. */
static ALWAYS_INLINE __m256 offset_of(const struct sl_group *x)
{
    return _mm256_set1_ps((float)x->offset * x->scale);
}

/* --- few rows -----------------------------------------------------------------------------------
 */

/* part (or its beginning) += one step of `rows` rows × `panels` panels. w: the first panel's codes
 * of the group. */
static ALWAYS_INLINE void step(const int rows, const int panels, const enum sl_dtype type,
                               const bool first, struct pair *part, const struct job *j,
                               const uint8_t *w, const struct sl_group *x, size_t s)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *at = w + (size_t)p * j->panel;
        struct pair v = step_codes(type, at + s * (SL_STEP_CODES / 2),
                                   at + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256i q = four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP);
            __m256i a = _mm256_maddubs_epi16(v.lo, q), b = _mm256_maddubs_epi16(v.hi, q);
            struct pair *to = &part[p * rows + r];
            to->lo = first ? a : so_far(_mm256_add_epi16(to->lo, a));
            to->hi = first ? b : so_far(_mm256_add_epi16(to->hi, b));
        }
    }
}

/* sum (or its beginning) += part, times the scales; scales: the first panel's of this run. */
static ALWAYS_INLINE void widen(const int rows, const int panels, const bool first,
                                struct pair *sum, const struct pair *part, const struct job *j,
                                const uint8_t *scales)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *at = scales + (size_t)p * j->panel;
        __m256i lo = scale_pairs(at), hi = scale_pairs(at + 8);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            struct pair *to = &sum[p * rows + r];
            __m256i a = _mm256_madd_epi16(part[p * rows + r].lo, lo);
            __m256i b = _mm256_madd_epi16(part[p * rows + r].hi, hi);
            to->lo = first ? a : _mm256_add_epi32(to->lo, a);
            to->hi = first ? b : _mm256_add_epi32(to->hi, b);
        }
    }
}

static ALWAYS_INLINE void start_q6_k(const int rows, const int panels, struct pair *sum,
                                     const struct job *j, const uint8_t *scales,
                                     const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++) {
        const uint8_t *at = scales + (size_t)(i / rows) * j->panel;
        const int16_t *half = x[(size_t)(i % rows) * j->ldx].half;
        sum[i].lo = _mm256_add_epi32(zero_of(scale_pairs(at), half[0]),
                                     zero_of(scale_pairs(at + SL_PANEL), half[1]));
        sum[i].hi = _mm256_add_epi32(zero_of(scale_pairs(at + 8), half[0]),
                                     zero_of(scale_pairs(at + SL_PANEL + 8), half[1]));
    }
}

/* sum = a group's: w and scales: the first panel's of the group. */
static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               struct pair *sum, const struct job *j, const uint8_t *w,
                               const uint8_t *scales, size_t ahead, const struct sl_group *x)
{
    const size_t run = type == SL_DTYPE_Q4_K ? SL_STEPS : 2;
    struct pair part[MAX_SUMS];
    if (type == SL_DTYPE_Q6_K)
        start_q6_k(rows, panels, sum, j, scales, x);
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++)
        for (size_t i = 0; i < sl_group_bytes(type); i += SL_ALIGN)
            _mm_prefetch(w + (size_t)p * j->panel + ahead + i, _MM_HINT_T1);
#pragma GCC unroll 8
    for (size_t s = 0; s < SL_STEPS; s++) {
        step(rows, panels, type, s % run == 0, part, j, w, x, s);
        if (s % run == run - 1)
            widen(rows, panels, type == SL_DTYPE_Q4_K, sum, part, j,
                  scales + (type == SL_DTYPE_Q4_K ? 0 : s / (SL_STEPS / 2) * SL_PANEL));
    }
}

static ALWAYS_INLINE void add_groups(const int rows, const int panels, struct sums *acc,
                                     const struct pair *sum, const struct job *j,
                                     const uint8_t *record, const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *d = record + (size_t)p * j->panel;
        __m256 lo = scales8(d), hi = scales8(d + 16);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            int i = p * rows + r;
            float s = x[(size_t)r * j->ldx].scale;
            acc[i].lo = add_group(acc[i].lo, sum[i].lo, lo, s);
            acc[i].hi = add_group(acc[i].hi, sum[i].hi, hi, s);
        }
    }
}

static ALWAYS_INLINE void take_minima(const int rows, const int panels, struct sums *acc,
                                      const struct job *j, const uint8_t *record,
                                      const uint8_t *scales, const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *m = record + (size_t)p * j->panel + SL_Q4_K_MINS;
        const uint8_t *n = scales + (size_t)p * j->panel + SL_PANEL;
        __m256 lo = minima8(record_minima8(m), n), hi = minima8(record_minima8(m + 16), n + 8);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256 offset = offset_of(&x[(size_t)r * j->ldx]);
            struct sums *to = &acc[p * rows + r];
            to->lo = _mm256_fmadd_ps(lo, offset, to->lo);
            to->hi = _mm256_fmadd_ps(hi, offset, to->hi);
        }
    }
}

static ALWAYS_INLINE void few_tile(const int rows, const int panels, const enum sl_dtype type,
                                   const struct job *j)
{
    struct pair sum[MAX_SUMS];
    struct sums acc[MAX_SUMS];
    const struct sl_group *x = j->x;
    const uint8_t *codes = j->w;
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++)
        acc[i] = (struct sums){_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t g = 0; g < j->n_groups; g++, x++, codes += sl_group_bytes(type)) {
        const uint8_t *record = j->scales + g / SL_K_GROUPS * sl_k_record(type);
        const uint8_t *scales = record + sl_k_group_at(type, g % SL_K_GROUPS);
        dots(rows, panels, type, sum, j, codes, scales,
             ahead_of(type, j->n_groups, j->panel, (size_t)panels, g), x);
        add_groups(rows, panels, acc, sum, j, record, x);
        for (int p = 0; p < panels; p++)
            _mm_prefetch(scales + (size_t)(panels + p) * j->panel, _MM_HINT_T1);
        if (type == SL_DTYPE_Q4_K)
            take_minima(rows, panels, acc, j, record, scales, x);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows * panels; i++) {
        float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        _mm256_storeu_ps(y, acc[i].lo);
        _mm256_storeu_ps(y + 8, acc[i].hi);
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

/* sum = one group's of all rows. w: its codes, 64 bytes a step. */
static ALWAYS_INLINE void block_dots(const int rows, const enum sl_dtype type, struct pair *sum,
                                     const struct job *j, const struct sl_group *x,
                                     const uint8_t *w, const uint8_t *scales)
{
    const size_t run = type == SL_DTYPE_Q4_K ? SL_STEPS : 2;
    struct pair part[MAX_ROWS];
    if (type == SL_DTYPE_Q6_K)
        start_q6_k(rows, 1, sum, j, scales, x);
#pragma GCC unroll 8
    for (size_t s = 0; s < SL_STEPS; s++, w += SL_STEP_CODES) {
        __m256i lo = load32(w), hi = load32(w + 32);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256i q = four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP);
            __m256i a = _mm256_maddubs_epi16(lo, q), b = _mm256_maddubs_epi16(hi, q);
            part[r].lo = s % run == 0 ? a : so_far(_mm256_add_epi16(part[r].lo, a));
            part[r].hi = s % run == 0 ? b : so_far(_mm256_add_epi16(part[r].hi, b));
        }
        if (s % run == run - 1)
            widen(rows, 1, type == SL_DTYPE_Q4_K, sum, part, j,
                  scales + (type == SL_DTYPE_Q4_K ? 0 : s / (SL_STEPS / 2) * SL_PANEL));
    }
}

static ALWAYS_INLINE void block(const int rows, const enum sl_dtype type, const struct job *j)
{
    struct sums acc[MAX_ROWS];
    struct pair sum[MAX_ROWS];
    const struct sl_group *x = j->x;
    const uint8_t *w = j->w, *ahead = j->ahead;
    const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const float *y = j->y + (size_t)r * j->ldy;
        acc[r].lo = j->first ? zero : _mm256_loadu_ps(y);
        acc[r].hi = j->first ? zero : _mm256_loadu_ps(y + 8);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, w += SL_Q8_GROUP) {
        const uint8_t *record = j->scales + g / SL_K_GROUPS * sl_k_record(type);
        const uint8_t *scales = record + sl_k_group_at(type, g % SL_K_GROUPS);
        block_dots(rows, type, sum, j, x, w, scales);
        add_groups(rows, 1, acc, sum, j, record, x);
        if (type == SL_DTYPE_Q4_K)
            take_minima(rows, 1, acc, j, record, scales, x);
        ahead = ask_ahead(false, 1, j, ahead, scales);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *y = j->y + (size_t)r * j->ldy;
        _mm256_storeu_ps(y, acc[r].lo);
        _mm256_storeu_ps(y + 8, acc[r].hi);
    }
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    if (!ready)
        few_tile(rows, panels, type, j);
    else
        block(rows, type, j);
}

/* More than 4 rows come in blocks as equal as can be. */
#define READIES(X, TYPE) X(2, 1, TYPE) X(3, 1, TYPE)

#define make_ready make_k_ready
#define TYPE_A Q6_K
#define TYPE_B Q4_K
#define SL_MATMUL_Q sl_avx2_matmul_k
#include "engine/kernels/quant_of.h"
