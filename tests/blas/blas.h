/* SPDX-License-Identifier: Apache-2.0 */
/* The two functions of a BLAS that test_blas.py builds; NAME, CBLAS and INTEGER are those of another one. */
#ifndef BLAS_H
#define BLAS_H

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

#endif /* BLAS_H */
