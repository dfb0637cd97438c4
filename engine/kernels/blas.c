/* blas.c: see blas.h. */
#include "engine/kernels/blas.h"

#include <cblas.h>
#include <lapacke.h>

void sl_blas_init(void)
{
    openblas_set_num_threads(1);
}

const char *sl_blas_core(void)
{
    return openblas_get_corename();
}

static enum CBLAS_TRANSPOSE op(bool transposed)
{
    return transposed ? CblasTrans : CblasNoTrans;
}

void sl_gemm_f32(bool ta, bool tb, size_t m, size_t n, size_t k, const float *a, size_t lda,
                 const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    cblas_sgemm(CblasRowMajor, op(ta), op(tb), (blasint)m, (blasint)n, (blasint)k, 1, a,
                (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

void sl_gemm_f64(bool ta, bool tb, size_t m, size_t n, size_t k, const double *a, size_t lda,
                 const double *b, size_t ldb, double beta, double *c, size_t ldc)
{
    cblas_dgemm(CblasRowMajor, op(ta), op(tb), (blasint)m, (blasint)n, (blasint)k, 1, a,
                (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

void sl_trmm_f32(size_t m, size_t n, const float *a, size_t lda, float *b, size_t ldb)
{
    cblas_strmm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)m,
                (blasint)n, 1, a, (blasint)lda, b, (blasint)ldb);
}

void sl_trmm_f64(size_t m, size_t n, const double *a, size_t lda, double *b, size_t ldb)
{
    cblas_dtrmm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, (blasint)m,
                (blasint)n, 1, a, (blasint)lda, b, (blasint)ldb);
}

void sl_trsm_f32(size_t m, size_t n, const float *a, size_t lda, float *b, size_t ldb)
{
    cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, (blasint)m,
                (blasint)n, 1, a, (blasint)lda, b, (blasint)ldb);
}

void sl_trsm_f64(size_t m, size_t n, const double *a, size_t lda, double *b, size_t ldb)
{
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, (blasint)m,
                (blasint)n, 1, a, (blasint)lda, b, (blasint)ldb);
}

bool sl_singular_values(double *ret, double *a, size_t m, size_t n)
{
    /* By columns it is the transpose, whose singular values are the same. */
    return LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'N', (lapack_int)n, (lapack_int)m, a, (lapack_int)n,
                          ret, NULL, 1, NULL, 1) == 0;
}
