/* neon.h: what the files of the NEON tables share. Private to kernels/. */
#ifndef SLATE_KERNELS_NEON_H
#define SLATE_KERNELS_NEON_H

#include <arm_neon.h>

#include "engine/kernels/tables.h"

void sl_neon_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                    const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                    size_t panel_end);

void sl_neon_quantise(struct sl_group *y, const float *x, size_t n);
void sl_neon_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end);
void sl_neondot_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                         const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                         size_t panel_end);

#endif
