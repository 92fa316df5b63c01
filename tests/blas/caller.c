/* SPDX-License-Identifier: Apache-2.0 */
/* A library that multiplies by the BLAS that it is linked to: test_blas.py builds it against several. */
#include "blas.h"

void multiply(int cblas, int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
              const float *b, int ldb, float beta, float *c, int ldc);

void multiply(int cblas, int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
              const float *b, int ldb, float beta, float *c, int ldc) {
    const INTEGER M = m, N = n, K = k, A = lda, B = ldb, C = ldc;
    if (cblas) CBLAS(order, ta ? 112 : 111, tb ? 112 : 111, M, N, K, alpha, a, A, b, B, beta, c, C);
    else NAME(ta ? "T" : "N", tb ? "t" : "n", &M, &N, &K, &alpha, a, &A, b, &B, &beta, c, &C);
}
