/* vnni_quant_of.h: products of Q8, Q5 and Q4 matrices where one instruction multiplies four
 * unsigned bytes with four signed ones and adds up in 32 bits, without saturation (VNNI); see
 * quant.h for the layout, kernels.h for the order. Included once by each file of such products,
 * which has defined what quant_of.h asks for except tile(), and
 *
 *   MAX_SUMS            rows × panels of a tile at most
 *   ints, floats        16 outputs' whole numbers of 32 bits, or their codes, four bytes each; F32
 *   unsigned_codes(type, ready, w, s, levels)
 *                       the 64 codes of step s of a group at w: those of Q8 plus 128, levels as
 *                       they are; ready: what make_ready() made
 *   all_ints(v), add_dots(sum, codes, q)
 *                       and what a row's four inputs at q add
 *   no_floats(), load_floats(p), store_floats(p, v), scales_of(p)
 *                       and the F16 scales at p
 *   add_sum(acc, sum, d, scale)
 *
 * What unsigned codes have too much is known of a row's group (its offset, -16 Σ q) and starts the
 * sum. */
#include "engine/kernels/quant_tile.h"

static ALWAYS_INLINE void tile(const int rows, const int panels, const enum sl_dtype type,
                               const bool ready, const struct job *j)
{
    floats acc[MAX_SUMS];
    ints sum[MAX_SUMS];
    const struct sl_group *x = j->x;
    const size_t ldx = j->ldx, panel = j->panel;
    const bool bytes = ready || type == SL_DTYPE_Q8; /* a code each */
    const uint8_t *w = j->w, *scales = j->scales, *levels = j->levels, *asked = j->ahead;
#pragma GCC unroll 14
    for (int i = 0; i < rows * panels; i++) {
        const float *y = j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL;
        acc[i] = j->first ? no_floats() : load_floats(y);
    }
    for (size_t g = 0; g < j->n_groups; g++, x++, scales += SL_GROUP_SCALES) {
        const size_t ahead = ahead_of(type, j->n_groups, panel, (size_t)panels, g);
#pragma GCC unroll 14
        for (int i = 0; i < rows * panels; i++) {
            int32_t offset = x[(size_t)(i % rows) * ldx].offset;
            sum[i] = all_ints(type == SL_DTYPE_Q8 ? 8 * offset : offset);
        }
#pragma GCC unroll 8
        for (size_t s = 0; s < SL_STEPS; s++) {
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) {
                const uint8_t *group = w + (size_t)p * j->w_panel;
                const ints v = unsigned_codes(type, ready, group, s, levels);
                if (!ready && type == SL_DTYPE_Q8)
                    _mm_prefetch(group + s * SL_STEP_CODES + ahead, _MM_HINT_T1);
                if (!ready && type != SL_DTYPE_Q8 && s % 2 == 0) /* a line is two steps */
                    _mm_prefetch(group + s * (SL_STEP_CODES / 2) + ahead, _MM_HINT_T1);
                if (!ready && type == SL_DTYPE_Q5 && s == 0)
                    _mm_prefetch(group + SL_Q4_GROUP + ahead, _MM_HINT_T1);
#pragma GCC unroll 14
                for (int r = 0; r < rows; r++)
                    sum[p * rows + r] =
                        add_dots(sum[p * rows + r], v, x[(size_t)r * ldx].q + s * SL_STEP);
            }
        }
        w += bytes ? SL_Q8_GROUP : sl_group_bytes(type);
        if (ready)
            asked = ask_ahead(type == SL_DTYPE_Q8, panels, j, asked, scales);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const uint8_t *at = scales + (size_t)p * panel;
            const floats d = scales_of(at);
            if (!ready)
                _mm_prefetch(at + (size_t)panels * panel, _MM_HINT_T1);
#pragma GCC unroll 14
            for (int r = 0; r < rows; r++)
                acc[p * rows + r] =
                    add_sum(acc[p * rows + r], sum[p * rows + r], d, x[(size_t)r * ldx].scale);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows * panels; i++)
        store_floats(j->y + (size_t)(i % rows) * j->ldy + (size_t)(i / rows) * SL_PANEL, acc[i]);
}

#include "engine/kernels/quant_of.h"
