/* SPDX-License-Identifier: Apache-2.0 */
/* A library that multiplies by the BLAS that it is linked to: test_blas.py builds it against several. */
#include <stdint.h>

#ifndef NAME
#define NAME sgemm_
#define CBLAS cblas_sgemm
#define INTEGER int32_t
#endif

void NAME(const char *ta, const char *tb, const INTEGER *m, const INTEGER *n, const INTEGER *k, const float *alpha,
          const float *a, const INTEGER *lda, const float *b, const INTEGER *ldb, const float *beta, float *c,
          const INTEGER *ldc);
void CBLAS(int order, int ta, int tb, INTEGER m, INTEGER n, INTEGER k, float alpha, const float *a, INTEGER lda,
           const float *b, INTEGER ldb, float beta, float *c, INTEGER ldc);
void multiply(int cblas, int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
              const float *b, int ldb, float beta, float *c, int ldc);

void multiply(int cblas, int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
              const float *b, int ldb, float beta, float *c, int ldc) {
    const INTEGER M = m, N = n, K = k, A = lda, B = ldb, C = ldc;
    if (cblas) CBLAS(order, ta ? 112 : 111, tb ? 112 : 111, M, N, K, alpha, a, A, b, B, beta, c, C);
    else NAME(ta ? "T" : "N", tb ? "t" : "n", &M, &N, &K, &alpha, a, &A, b, &B, &beta, c, &C);
}
