/* avx512_kquant.c: products of Q4_K and Q6_K matrices with AVX-512 and its dot products of bytes
 * (VNNI). See kquant.h for the layout, kernels.h for the order, avx512_quant.c for how bytes are
 * multiplied.
 *
 * Codes are unsigned, as the instruction wants them; what Q6_K's zero point adds starts the sum.
 * Sums of what has one scale are multiplied with it as F32, which is exact, and added up so. */
#include "engine/kernels/avx512_quant.h"

enum {
    FEW_ROWS = 4,
    MAX_PANELS = 4,
    MAX_SUMS = 8, /* rows × panels of a tile */
    MAX_ROWS = 8,
    BLOCK_PANELS = 1
};

/* The 64 codes of a step. low: its 32 bytes; high: its 16 of Q6_K. */
static ALWAYS_INLINE __m512i step_codes(const enum sl_dtype type, const uint8_t *low,
                                        const uint8_t *high)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)low);
    __m512i c =
        _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(v), _mm256_srli_epi16(v, 4), 1),
                         _mm512_set1_epi8(15));
    if (type == SL_DTYPE_Q4_K)
        return c;
    /* Codes 0 … 15, 16 … 31 and so on take bits 0, 2, 4, 6: brought to bit 4. */
    const __m512i turns = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
    __m512i h = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)high));
    h = _mm512_and_si512(_mm512_rolv_epi32(h, turns), _mm512_set1_epi8(0x30));
    return _mm512_or_si512(c, h);
}

/* Sixteen bytes as F32: whole-number scales, which may be negative, or minima. */
static ALWAYS_INLINE __m512 whole16(const uint8_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

/* sum[panel * rows + row] = products of the steps from `begin` on, of one scale. */
static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, __m512i *sum, const struct job *j,
                               const uint8_t *w, size_t ahead, const struct sl_group *x,
                               const size_t begin, const size_t end)
{
#pragma GCC unroll 12
    for (int i = 0; i < rows * panels; i++) {
        const struct sl_group *in = &x[(size_t)(i % rows) * j->ldx];
        sum[i] = type == SL_DTYPE_Q4_K ? _mm512_setzero_si512()
                                       : _mm512_set1_epi32(2 * in->half[begin / (SL_STEPS / 2)]);
    }
#pragma GCC unroll 8
    for (size_t s = begin; s < end; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * j->w_panel;
            const uint8_t *low = at + s * (SL_STEP_CODES / 2),
                          *high = at + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH;
            __m512i v =
                ready ? _mm512_load_si512(at + s * SL_STEP_CODES) : step_codes(type, low, high);
            if (!ready && s % 2 == 0)
                _mm_prefetch(low + ahead, _MM_HINT_T0);
            if (!ready && type == SL_DTYPE_Q6_K && s % 4 == 0)
                _mm_prefetch(high + ahead, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                sum[p * rows + r] = _mm512_dpbusd_epi32(
                    sum[p * rows + r], v, four_inputs(x[(size_t)r * j->ldx].q + s * SL_STEP));
        }
    }
}

/* whole (or its beginning) += sum, times the scales; scales: the first panel's. */
static ALWAYS_INLINE void scale_sums(const int rows, const int panels, const bool first,
                                     __m512 *whole, const __m512i *sum, const struct job *j,
                                     const uint8_t *scales)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        __m512 s = whole16(scales + (size_t)p * j->panel);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512 v = _mm512_cvtepi32_ps(sum[p * rows + r]);
            whole[p * rows + r] =
                first ? _mm512_mul_ps(v, s) : _mm512_fmadd_ps(v, s, whole[p * rows + r]);
        }
    }
}

static ALWAYS_INLINE void add_groups(const int rows, const int panels, const enum sl_dtype type,
                                     __m512 *acc, const __m512 *whole, const struct job *j,
                                     const uint8_t *record, const uint8_t *scales,
                                     const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *at = record + (size_t)p * j->panel;
        __m512 d = scales16(at), m = _mm512_setzero_ps();
        if (type == SL_DTYPE_Q4_K)
            m = _mm512_mul_ps(
                _mm512_mul_ps(scales16(at + SL_Q4_K_MINS), _mm512_set1_ps(SL_K_MIN_FACTOR)),
                whole16(scales + (size_t)p * j->panel + SL_PANEL));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const struct sl_group *in = &x[(size_t)r * j->ldx];
            __m512 *to = &acc[p * rows + r];
            *to = _mm512_fmadd_ps(whole[p * rows + r], _mm512_mul_ps(d, _mm512_set1_ps(in->scale)),
                                  *to);
            if (type == SL_DTYPE_Q4_K)
                *to = _mm512_fmadd_ps(m, _mm512_set1_ps((float)in->offset * in->scale), *to);
        }
    }
}

/* `ready`: 64 bytes a step. */
static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    __m512 acc[MAX_SUMS], whole[MAX_SUMS];
    __m512i sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const uint8_t *w = j->w, *asked = j->ahead;
    const size_t one = type == SL_DTYPE_Q4_K ? SL_STEPS : SL_STEPS / 2; /* steps of a scale */
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i] = j->first ? _mm512_setzero_ps() : _mm512_loadu_ps(y);
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
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels; i++)
        _mm512_storeu_ps(j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL,
                         acc[i]);
}

static ALWAYS_INLINE void spread(const enum sl_dtype type, uint8_t *to, const uint8_t *w,
                                 size_t n_groups)
{
    for (size_t g = 0; g < n_groups; g++, w += sl_group_bytes(type))
        for (size_t s = 0; s < SL_STEPS; s++, to += SL_STEP_CODES)
            _mm512_store_si512(to, step_codes(type, w + s * (SL_STEP_CODES / 2),
                                              w + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH));
}

static const uint8_t *make_ready(uint8_t *buffer, enum sl_dtype type, const uint8_t *w,
                                 size_t n_groups, const uint8_t *levels)
{
    (void)levels;
    if (type == SL_DTYPE_Q4_K)
        spread(SL_DTYPE_Q4_K, buffer, w, n_groups);
    else
        spread(SL_DTYPE_Q6_K, buffer, w, n_groups);
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
    X(4, 2, TYPE)
/* More than 8 rows come in blocks as equal as can be, which have 4 rows or more. */
#define READIES(X, TYPE) X(4, 1, TYPE) X(5, 1, TYPE) X(6, 1, TYPE) X(7, 1, TYPE) X(8, 1, TYPE)

#define TYPE_A Q6_K
#define TYPE_B Q4_K
#define SL_MATMUL_Q sl_avx512_matmul_k
#include "engine/kernels/quant_of.h"
