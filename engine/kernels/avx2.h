/* avx2.h: what the files of the AVX2 table share. Private to kernels/. */
#ifndef SLATE_KERNELS_AVX2_H
#define SLATE_KERNELS_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "engine/kernels/tables.h"

void sl_avx2_matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                    const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                    size_t panel_end);
void sl_avx2_quantise(struct sl_group *y, const float *x, size_t n);
void sl_avx2_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                      const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                      size_t panel_end);
/* Needs AVX-VNNI. */
void sl_avx2vnni_matmul_q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                          const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                          size_t panel_end);

#endif
