/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only speed: the function that multiplies becomes libamp's, and nothing else of a trainer changes. Same arguments,
 * FP32 in and FP32 out: no adapter, no level, no loss scale.
 *
 *     cc -O2 only_speed.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_kernels.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- before: row-major, C = alpha op(A) op(B) + beta C, as in BLAS and darknet ---- */

static void gemm_loops(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                       int ldb, float beta, float *c, int ldc) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) c[i * ldc + j] *= beta;
        for (int p = 0; p < k; p++) {
            const float x = alpha * (ta ? a[p * lda + i] : a[i * lda + p]);
            for (int j = 0; j < n; j++) c[i * ldc + j] += x * (tb ? b[j * ldb + p] : b[p * ldb + j]);
        }
    }
}

/* ---- after: put this in its place ---- */

static void gemm(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.transpose_a = ta != 0, args.transpose_b = tb != 0;
    args.m = m, args.n = n, args.k = k;
    args.alpha = alpha, args.beta = beta;
    args.a = a, args.ld_a = lda, args.a_dtype = AMP_FLOAT32;
    args.b = b, args.ld_b = ldb, args.b_dtype = AMP_FLOAT32;
    args.c = args.d = c, args.ld_c = args.ld_d = ldc, args.c_dtype = args.d_dtype = AMP_FLOAT32;
    if (amp_matmul(&args) != AMP_OK) exit((puts(amp_last_error()), 1));
}

/* ---- or this, where the processor multiplies bf16 faster: bf16 in, sums and result in FP32 ---- */

static uint16_t *rounded(const float *x, int rows, int columns, int ld) {
    const int64_t size = (int64_t)(rows - 1) * ld + columns;
    const amp_span from = { (void *)x, (uint64_t)size, AMP_FLOAT32, 0 };
    const amp_span to = { malloc(2 * (size_t)size), (uint64_t)size, AMP_BFLOAT16, 0 };
    if (!to.data || amp_cast_list(&to, &from, 1) != AMP_OK) exit((puts(amp_last_error()), 1));
    return to.data;
}

static void gemm_bf16(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                      int ldb, float beta, float *c, int ldc) {
    uint16_t *low_a = rounded(a, ta ? k : m, ta ? m : k, lda), *low_b = rounded(b, tb ? n : k, tb ? k : n, ldb);
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.transpose_a = ta != 0, args.transpose_b = tb != 0;
    args.m = m, args.n = n, args.k = k;
    args.alpha = alpha, args.beta = beta;
    args.a = low_a, args.ld_a = lda, args.a_dtype = AMP_BFLOAT16;
    args.b = low_b, args.ld_b = ldb, args.b_dtype = AMP_BFLOAT16;
    args.c = args.d = c, args.ld_c = args.ld_d = ldc, args.c_dtype = args.d_dtype = AMP_FLOAT32;
    if (amp_matmul(&args) != AMP_OK) exit((puts(amp_last_error()), 1));
    free(low_a);
    free(low_b);
}

/* ---- how fast, and how exact, here ---- */

enum { N = 384 };
typedef void gemm_function(int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

/* c = a b; the least of three times, in seconds */
static double measure(gemm_function *multiply, const float *a, const float *b, float *c) {
    double least = 1e9;
    for (int turn = 0; turn < 3; turn++) {
        const clock_t start = clock();
        multiply(0, 0, N, N, N, 1.0f, a, N, b, N, 0.0f, c, N);
        const double took = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (took < least) least = took;
    }
    return least;
}

static float difference(const float *x, const float *y) {
    float most = 0.0f;
    for (int i = 0; i < N * N; i++) {
        const float apart = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i];
        if (!(apart <= most)) most = apart;
    }
    return most;
}

/* From -0.5 to 0.5. */
static float random_number(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

int main(void) {
    static float a[N * N], b[N * N], loops[N * N], fp32[N * N], bf16[N * N];
    for (int i = 0; i < N * N; i++) a[i] = random_number(), b[i] = random_number();
    const double before = measure(gemm_loops, a, b, loops);
    const double in_fp32 = measure(gemm, a, b, fp32), in_bf16 = measure(gemm_bf16, a, b, bf16);
    const float fp32_apart = difference(loops, fp32), bf16_apart = difference(loops, bf16);
    printf("fp32: %4.1f times as fast, at most %.0e from the loops' result\n", before / in_fp32, (double)fp32_apart);
    printf("bf16: %4.1f times as fast, at most %.0e from the loops' result\n", before / in_bf16, (double)bf16_apart);
    /* |a b| is at most N / 4; each of the N products adds at most 2^-24 of that in FP32, and 2^-8 of itself in bf16 */
    return !(fp32_apart < N * (N / 4) * 0x1p-24f && bf16_apart < N / 4 * 0x1p-7f);
}
