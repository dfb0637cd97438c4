/* avx2vnni_kquant.c: products of Q4_K and Q6_K matrices with AVX2 and its dot products of bytes
 * (AVX-VNNI). See kquant.h for the layout, kernels.h for the order, avx2vnni_quant.c for how bytes
 * are multiplied.
 *
 * Codes are unsigned, as the instruction wants them; what Q6_K's zero point adds starts the sum.
 * Sums of what has one scale are multiplied with it as F32, which is exact, and added up so. */
#include "engine/kernels/avx2_kquant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 6, /* rows × panels of a tile, two registers each */
    MAX_ROWS = 6,
    BLOCK_PANELS = 1
};

/* Sixteen bytes as F32: whole-number scales, which may be negative, or minima. */
static ALWAYS_INLINE struct sums whole16(const uint8_t *p)
{
    return (struct sums){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p))),
                         _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p + 8)))};
}

/* sum[panel * rows + row] = products of the steps from `begin` on, of one scale. */
static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, struct pair *sum, const struct job *j,
                               const uint8_t *w, size_t ahead, const struct sl_group *x,
                               const size_t begin, const size_t end)
{
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++) {
        const struct sl_group *in = &x[(size_t)(i % rows) * j->ldx];
        sum[i].lo = sum[i].hi = type == SL_DTYPE_Q4_K
                                    ? _mm256_setzero_si256()
                                    : _mm256_set1_epi32(2 * in->half[begin / (SL_STEPS / 2)]);
    }
#pragma GCC unroll 8
    for (size_t s = begin; s < end; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * j->w_panel, *codes = at + s * SL_STEP_CODES;
            const uint8_t *low = at + s * (SL_STEP_CODES / 2),
                          *high = at + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH;
            struct pair v = ready ? (struct pair){load32(codes), load32(codes + 32)}
                                  : step_codes(type, low, high);
            if (!ready && s % 2 == 0)
                _mm_prefetch(low + ahead, _MM_HINT_T0);
            if (!ready && type == SL_DTYPE_Q6_K && s % 4 == 0)
                _mm_prefetch(high + ahead, _MM_HINT_T0);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                __m256i q = four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP);
                struct pair *to = &sum[p * rows + r];
                to->lo = _mm256_dpbusd_avx_epi32(to->lo, v.lo, q);
                to->hi = _mm256_dpbusd_avx_epi32(to->hi, v.hi, q);
            }
        }
    }
}

/* whole (or its beginning) += sum, times the scales; scales: the first panel's. */
static ALWAYS_INLINE void scale_sums(const int rows, const int panels, const bool first,
                                     struct sums *whole, const struct pair *sum,
                                     const struct job *j, const uint8_t *scales)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        struct sums s = whole16(scales + (size_t)p * j->panel);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            struct sums *to = &whole[p * rows + r];
            __m256 lo = _mm256_cvtepi32_ps(sum[p * rows + r].lo),
                   hi = _mm256_cvtepi32_ps(sum[p * rows + r].hi);
            to->lo = first ? _mm256_mul_ps(lo, s.lo) : _mm256_fmadd_ps(lo, s.lo, to->lo);
            to->hi = first ? _mm256_mul_ps(hi, s.hi) : _mm256_fmadd_ps(hi, s.hi, to->hi);
        }
    }
}

static ALWAYS_INLINE void add_groups(const int rows, const int panels, const enum sl_dtype type,
                                     struct sums *acc, const struct sums *whole,
                                     const struct job *j, const uint8_t *record,
                                     const uint8_t *scales, const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *at = record + (size_t)p * j->panel;
        const uint8_t *minima = scales + (size_t)p * j->panel + SL_PANEL;
        __m256 d_lo = scales8(at), d_hi = scales8(at + 16);
        struct sums m = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (type == SL_DTYPE_Q4_K)
            m = (struct sums){minima8(record_minima8(at + SL_Q4_K_MINS), minima),
                              minima8(record_minima8(at + SL_Q4_K_MINS + 16), minima + 8)};
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const struct sl_group *in = &x[(size_t)r * j->ldx];
            const struct sums *v = &whole[p * rows + r];
            struct sums *to = &acc[p * rows + r];
            __m256 scale = _mm256_set1_ps(in->scale);
            to->lo = _mm256_fmadd_ps(v->lo, _mm256_mul_ps(d_lo, scale), to->lo);
            to->hi = _mm256_fmadd_ps(v->hi, _mm256_mul_ps(d_hi, scale), to->hi);
            if (type == SL_DTYPE_Q4_K) {
                to->lo = _mm256_fmadd_ps(m.lo, offset_of(in), to->lo);
                to->hi = _mm256_fmadd_ps(m.hi, offset_of(in), to->hi);
            }
        }
    }
}

/* `ready`: 64 bytes a step. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    struct sums acc[MAX_SUMS], whole[MAX_SUMS];
    struct pair sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const uint8_t *w = j->w, *asked = j->ahead;
    const size_t one = type == SL_DTYPE_Q4_K ? SL_STEPS : SL_STEPS / 2; /* steps of a scale */
#pragma GCC unroll 6
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i].lo = j->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y);
        acc[i].hi = j->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + 8);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, w += ready ? SL_Q8_GROUP : sl_group_bytes(type)) {
        const size_t ahead = ahead_of(type, j->n_groups, j->panel, (size_t)panels, g);
        const uint8_t *record = j->scales + g / SL_K_GROUPS * sl_k_record(type);
        const uint8_t *scales = record + sl_k_group_at(type, g % SL_K_GROUPS);
#pragma GCC unroll 4
        for (int p = 0; p < panels && !ready; p++)
            _mm_prefetch(scales + (size_t)(panels + p) * j->panel, _MM_HINT_T0);
#pragma GCC unroll 2
        for (size_t s = 0; s < SL_STEPS; s += one) {
            dots(rows, panels, type, ready, sum, j, w, ahead, x, s, s + one);
            scale_sums(rows, panels, s == 0, whole, sum, j, scales + s / one * SL_PANEL);
        }
        if (ready)
            asked = ask_ahead(panels, j, asked, scales);
        add_groups(rows, panels, type, acc, whole, j, record, scales, x);
    }
#pragma GCC unroll 6
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
    X(3, 2, TYPE)                                                                                  \
    X(4, 1, TYPE)
/* More than 4 rows come in blocks as equal as can be, of 3 rows or more. */
#define READIES(X, TYPE) X(3, 1, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE)

#define make_ready make_k_ready
#define TYPE_A Q6_K
#define TYPE_B Q4_K
#define SL_MATMUL_Q sl_avx2vnni_matmul_k
#include "engine/kernels/quant_of.h"
