/* tables.h: the kernel tables that dispatch.c chooses from. Private to kernels/. */
#ifndef SLATE_KERNELS_TABLES_H
#define SLATE_KERNELS_TABLES_H

#include "engine/kernels/kernels.h"

extern const struct sl_kernels sl_kernels_ref;

void sl_ref_quantise(struct sl_group *y, const float *x, size_t n);
void sl_ref_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                     const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                     size_t panel_end);
#ifdef __x86_64__
extern const struct sl_kernels sl_kernels_avx2;
extern const struct sl_kernels sl_kernels_avx2vnni;
extern const struct sl_kernels sl_kernels_avx512;
extern const struct sl_kernels sl_kernels_avx512vnni;
#endif
#ifdef __aarch64__
extern const struct sl_kernels sl_kernels_neon;
extern const struct sl_kernels sl_kernels_neondot;
#endif

/* kernels.h: row_cost. Q4_0 is multiplied as Q4 is. */
#define ROW_COST(q8, q5, q4, q4_k, q6_k)                                                           \
    {                                                                                              \
        [SL_DTYPE_F32] = 32, [SL_DTYPE_F16] = 32, [SL_DTYPE_BF16] = 32, [SL_DTYPE_Q8] = (q8),      \
        [SL_DTYPE_Q5] = (q5), [SL_DTYPE_Q4] = (q4), [SL_DTYPE_Q4_0] = (q4),                        \
        [SL_DTYPE_Q4_K] = (q4_k), [SL_DTYPE_Q6_K] = (q6_k)                                         \
    }

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Asks for the places of some rows × panels of outputs, before the sums that will be written there:
 * what is stored to lines that are not in a cache waits for one after the other. (Zen 4, Q4, 512
 * rows of 768 inputs: 1.1 times as fast so.) */
static ALWAYS_INLINE void sl_ask_outputs(const float *y, size_t ldy, size_t rows, size_t panels)
{
    for (size_t r = 0; r < rows; r++, y += ldy)
        for (size_t p = 0; p < panels; p++)
            __builtin_prefetch(y + p * SL_PANEL, 1);
}

#endif
