/* neon.h: what the files of the NEON table share. Private to kernels/. */
#ifndef SLATE_KERNELS_NEON_H
#define SLATE_KERNELS_NEON_H

#include <arm_neon.h>

#include "engine/kernels/tables.h"

void sl_neon_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                    const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                    size_t panel_end);

#endif
