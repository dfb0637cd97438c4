/* blas.h: the few calls of BLAS and LAPACK that are used, with row-major matrices. Kernels of
 * `--numerics fast` and of diagnostics; the exact path never calls them.
 *
 * OpenBLAS because its products of middle-sized matrices are near the machine's limit, and because
 * singular values are nobody's side work. Its own threads are off (sl_blas_init()): our workers
 * split the heads, and its threads would spin beside them. Any thread. */
#ifndef SLATE_KERNELS_BLAS_H
#define SLATE_KERNELS_BLAS_H

#include <stdbool.h>
#include <stddef.h>

/* One thread a call. Before the first call, once; harmless again. */
void sl_blas_init(void);

/* The kernels that OpenBLAS has chosen on this machine ("Zen", "SkylakeX"). */
const char *sl_blas_core(void);

/* C[m][n] = op(A)[m][k] · op(B)[k][n] + beta·C; op is the transpose where ta, tb. ld: elements
 * between rows as they are stored. */
void sl_gemm_f32(bool ta, bool tb, size_t m, size_t n, size_t k, const float *a, size_t lda,
                 const float *b, size_t ldb, float beta, float *c, size_t ldc);
void sl_gemm_f64(bool ta, bool tb, size_t m, size_t n, size_t k, const double *a, size_t lda,
                 const double *b, size_t ldb, double beta, double *c, size_t ldc);

/* B[m][n] = A·B with A[m][m] lower triangular (what is above the diagonal is not read). */
void sl_trmm_f32(size_t m, size_t n, const float *a, size_t lda, float *b, size_t ldb);
void sl_trmm_f64(size_t m, size_t n, const double *a, size_t lda, double *b, size_t ldb);

/* B[m][n] = A⁻¹·B with A[m][m] lower triangular and its diagonal taken as 1 (not read). */
void sl_trsm_f32(size_t m, size_t n, const float *a, size_t lda, float *b, size_t ldb);
void sl_trsm_f64(size_t m, size_t n, const double *a, size_t lda, double *b, size_t ldb);

/* The min(m, n) singular values of A[m][n], largest first; A is overwritten. false: it did not
 * converge, or there was no memory. */
bool sl_singular_values(double *ret, double *a, size_t m, size_t n);

#endif
