/* avx2.h: what the two files of the AVX2 table share. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX2_H
#define SLATE_KERNELS_AVX2_H

#include <immintrin.h>

#include "engine/kernels/tables.h"

void sl_avx2_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                    const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                    size_t panel_end);

#endif
