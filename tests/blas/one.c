/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A BLAS as small as can be, by loops: test_blas.py builds it as several libraries. ADD is added to each element of C,
 * so that a result tells whose function computed it.
 */
#include "blas.h"

#ifndef ADD
#define ADD 0
#endif
void solve(int n, const float *a, const float *b, float *c);

void NAME(const char *ta, const char *tb, const INTEGER *m, const INTEGER *n, const INTEGER *k, const float *alpha,
          const float *a, const INTEGER *lda, const float *b, const INTEGER *ldb, const float *beta, float *c,
          const INTEGER *ldc) {
    const int at = (*ta | 32) != 'n', bt = (*tb | 32) != 'n';
    for (INTEGER j = 0; j < *n; j++)
        for (INTEGER i = 0; i < *m; i++) {
            float sum = 0;
            for (INTEGER p = 0; p < *k; p++)
                sum += a[at ? i * *lda + p : p * *lda + i] * b[bt ? p * *ldb + j : j * *ldb + p];
            c[j * *ldc + i] = *alpha * sum + (*beta != 0 ? *beta * c[j * *ldc + i] : 0) + ADD;
        }
}

/* As Netlib's: the other order is the product of the transposed operands, by the function above. */
void CBLAS(int order, int ta, int tb, INTEGER m, INTEGER n, INTEGER k, float alpha, const float *a, INTEGER lda,
           const float *b, INTEGER ldb, float beta, float *c, INTEGER ldc) {
    const char *const letter_a = ta == 111 ? "N" : "T", *const letter_b = tb == 111 ? "N" : "T";
    if (order == 102) NAME(letter_a, letter_b, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
    else NAME(letter_b, letter_a, &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
}

/* What a LAPACK inside the same library does: its products are its own. */
void solve(int n, const float *a, const float *b, float *c) {
    const INTEGER size = n;
    const float one = 1, zero = 0;
    NAME("N", "N", &size, &size, &size, &one, a, &size, b, &size, &zero, c, &size);
}
