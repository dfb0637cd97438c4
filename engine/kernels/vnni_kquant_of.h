/* vnni_kquant_of.h: products of Q4_K and Q6_K matrices as vnni_quant_of.h's; see kquant.h for the
 * layout. Included once by each file of such products, which has defined what quant_of.h asks for
 * except tile(), what vnni_quant_of.h asks for except unsigned_codes() and add_sum(), and
 *
 *   step_codes(type, low, high)
 *                       the 64 codes of a step. low: its 32 bytes; high: its 16 of Q6_K
 *   load_codes(p)       those that make_ready() wrote
 *   to_floats(ints), all_floats(v), times(a, b), add_times(a, b, c)
 *                       and a · b + c, rounded once
 *   bytes_of(p)         sixteen signed bytes at p as F32
 *
 * Codes are unsigned, as the instruction wants them; what Q6_K's zero point adds starts the sum.
 * Sums of what has one scale are multiplied with it as F32, which is exact, and added up so. */
#include "engine/kernels/quant_tile.h"

/* sum[panel * rows + row] = products of the steps from `begin` on, of one scale. */
static ALWAYS_INLINE void dots(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, ints *sum, const struct job *j, const uint8_t *w,
                               size_t ahead, const struct sl_group *x, const size_t begin,
                               const size_t end)
{
#pragma GCC unroll 12
    for (int i = 0; i < rows * panels; i++) {
        const struct sl_group *in = &x[(size_t)(i % rows) * j->ldx];
        sum[i] = all_ints(type == SL_DTYPE_Q4_K ? 0 : 2 * in->half[begin / (SL_STEPS / 2)]);
    }
#pragma GCC unroll 8
    for (size_t s = begin; s < end; s++) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = w + (size_t)p * j->w_panel;
            const uint8_t *low = at + s * (SL_STEP_CODES / 2),
                          *high = at + SL_Q6_K_HIGH + s * SL_Q6_K_STEP_HIGH;
            const ints v = ready ? load_codes(at + s * SL_STEP_CODES) : step_codes(type, low, high);
            if (!ready && s % 2 == 0)
                _mm_prefetch(low + ahead, _MM_HINT_T1);
            if (!ready && type == SL_DTYPE_Q6_K && s % 4 == 0)
                _mm_prefetch(high + ahead, _MM_HINT_T1);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                sum[p * rows + r] =
                    add_dots(sum[p * rows + r], v, x[(size_t)r * j->ldx].q + s * SL_STEP);
        }
    }
}

/* whole (or its beginning) += sum, times the scales; scales: the first panel's. */
static ALWAYS_INLINE void scale_sums(const int rows, const int panels, const bool first,
                                     floats *whole, const ints *sum, const struct job *j,
                                     const uint8_t *scales)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const floats s = bytes_of(scales + (size_t)p * j->panel);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            floats v = to_floats(sum[p * rows + r]), *to = &whole[p * rows + r];
            *to = first ? times(v, s) : add_times(v, s, *to);
        }
    }
}

static ALWAYS_INLINE void add_groups(const int rows, const int panels, const enum sl_dtype type,
                                     floats *acc, const floats *whole, const struct job *j,
                                     const uint8_t *record, const uint8_t *scales,
                                     const struct sl_group *x)
{
#pragma GCC unroll 4
    for (int p = 0; p < panels; p++) {
        const uint8_t *at = record + (size_t)p * j->panel;
        const floats d = scales_of(at);
        floats m = no_floats();
        if (type == SL_DTYPE_Q4_K)
            m = times(times(scales_of(at + SL_Q4_K_MINS), all_floats(SL_K_MIN_FACTOR)),
                      bytes_of(scales + (size_t)p * j->panel + SL_PANEL));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const struct sl_group *in = &x[(size_t)r * j->ldx];
            floats *to = &acc[p * rows + r];
            *to = add_times(whole[p * rows + r], times(d, all_floats(in->scale)), *to);
            if (type == SL_DTYPE_Q4_K)
                *to = add_times(m, all_floats((float)in->offset * in->scale), *to);
        }
    }
}

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    floats acc[MAX_SUMS], whole[MAX_SUMS];
    ints sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const uint8_t *w = j->w, *asked = j->ahead;
    const size_t one = type == SL_DTYPE_Q4_K ? SL_STEPS : SL_STEPS / 2; /* steps of a scale */
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i] = j->first ? no_floats() : load_floats(y);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, w += ready ? SL_Q8_GROUP : sl_group_bytes(type)) {
        const size_t ahead = ahead_of(type, j->n_groups, j->panel, (size_t)panels, g);
        const uint8_t *record = j->scales + g / SL_K_GROUPS * sl_k_record(type);
        const uint8_t *scales = record + sl_k_group_at(type, g % SL_K_GROUPS);
#pragma GCC unroll 4
        for (int p = 0; p < panels && !ready; p++)
            _mm_prefetch(scales + (size_t)(panels + p) * j->panel, _MM_HINT_T1);
#pragma GCC unroll 2
        for (size_t s = 0; s < SL_STEPS; s += one) {
            dots(rows, panels, type, ready, sum, j, w, ahead, x, s, s + one);
            scale_sums(rows, panels, s == 0, whole, sum, j, scales + s / one * SL_PANEL);
        }
        if (ready)
            asked = ask_ahead(false, panels, j, asked, scales);
        add_groups(rows, panels, type, acc, whole, j, record, scales, x);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * panels; i++)
        store_floats(j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL, acc[i]);
}

#include "engine/kernels/quant_of.h"
