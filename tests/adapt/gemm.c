/* SPDX-License-Identifier: Apache-2.0 */
/* The products of gemm.h, and a program that prints what they give for every order and transposition: whole numbers
 * so small that 16 bits hold them, and sums of them that FP32 holds. */
#include "gemm.h"

#include <stdio.h>
#include <string.h>

void cblas_sgemm(const enum CBLAS_ORDER Order, const enum CBLAS_TRANSPOSE TransA, const enum CBLAS_TRANSPOSE TransB,
                 const int M, const int N, const int K, const float alpha, const float *A, const int lda,
                 const float *B, const int ldb, const float beta, float *C, const int ldc) {
    const int rows = Order == CblasRowMajor;
    const int a_rows = rows != (TransA == CblasTrans), b_rows = rows != (TransB == CblasTrans);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float *c = &C[rows ? i * ldc + j : j * ldc + i], sum = 0;
            for (int k = 0; k < K; k++)
                sum += A[a_rows ? i * lda + k : k * lda + i] * B[b_rows ? k * ldb + j : j * ldb + k];
            *c = alpha * sum + beta * *c;
        }
}

void nn_gemm(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb, float BETA,
             float *C, int ldc) {
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += (TA ? A[k * lda + i] : A[i * lda + k]) * (TB ? B[j * ldb + k] : B[k * ldb + j]);
            C[i * ldc + j] = ALPHA * sum + BETA * C[i * ldc + j];
        }
}

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c,
            const int *ldc) {
    for (int i = 0; i < *m; i++)
        for (int j = 0; j < *n; j++) {
            float sum = 0;
            for (int l = 0; l < *k; l++)
                sum += (*transa == 'N' ? a[l * *lda + i] : a[i * *lda + l]) *
                    (*transb == 'N' ? b[j * *ldb + l] : b[l * *ldb + j]);
            c[j * *ldc + i] = *alpha * sum + *beta * c[j * *ldc + i];
        }
}

enum { M = 5, N = 7, K = 11, LD = 13, LDA = LD, LDB = LD - 1, LDC = LD - 2 };

static void print(const char *what, const float *c) {
    printf("%s", what);
    for (int i = 0; i < LD * LD; i++) printf(" %g", (double)c[i]);
    printf("\n");
}

int run(void) {
    float a[LD * LD], b[LD * LD], start[LD * LD], c[LD * LD];
    for (int i = 0; i < LD * LD; i++) a[i] = (float)(i % 5 - 2), b[i] = (float)(i % 7 - 3), start[i] = (float)(i % 3);
    for (int flags = 0; flags < 8; flags++) {
        char what[16];
        snprintf(what, sizeof what, "%d", flags);
        memcpy(c, start, sizeof c);
        cblas_sgemm(flags & 4 ? CblasColMajor : CblasRowMajor, flags & 2 ? CblasTrans : CblasNoTrans,
                    flags & 1 ? CblasTrans : CblasNoTrans, M, N, K, 2.0f, a, LDA, b, LDB, 1.0f, c, LDC);
        print(what, c);
        if (flags & 4) {
            const int m = M, n = N, k = K, lda = LDA, ldb = LDB, ldc = LDC;
            const float two = 2.0f, one = 1.0f;
            memcpy(c, start, sizeof c);
            sgemm_(flags & 2 ? "T" : "N", flags & 1 ? "T" : "N", &m, &n, &k, &two, a, &lda, b, &ldb, &one, c, &ldc);
            print(what, c);
            continue;
        }
        memcpy(c, start, sizeof c);
        nn_gemm(flags & 2, flags & 1, M, N, K, 2.0f, a, LDA, b, LDB, 1.0f, c, LDC);
        print(what, c);
    }
    return 0;
}
