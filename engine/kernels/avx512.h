/* avx512.h: what the files of the AVX-512 tables share. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX512_H
#define SLATE_KERNELS_AVX512_H

#include <immintrin.h>

#include "engine/kernels/avx2.h"

void sl_avx512_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end);
/* Needs AVX512BW and VNNI. */
void sl_avx512_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                        const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                        size_t panel_end);

#endif
