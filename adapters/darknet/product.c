/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <amp_kernels.h>

/* A and B come in `dtype`; C, which is updated, is darknet's own FP32. */
static void product(amp_dtype dtype, int TA, int TB, int M, int N, int K, float ALPHA, const void *A, int lda,
                    const void *B, int ldb, float BETA, float *C, int ldc) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.transpose_a = TA != 0, g.transpose_b = TB != 0;
    g.m = M, g.n = N, g.k = K;
    g.alpha = ALPHA, g.beta = BETA;
    g.a = A, g.ld_a = lda, g.a_dtype = dtype;
    g.b = B, g.ld_b = ldb, g.b_dtype = dtype;
    g.c = g.d = C, g.ld_c = g.ld_d = ldc, g.c_dtype = g.d_dtype = AMP_FLOAT32;
    must(amp_matmul(&g), "a product");
}

#define PRODUCT(name, dtype)                                                                                           \
    static void name(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb,           \
                     float BETA, float *C, int ldc) {                                                                  \
        product(dtype, TA, TB, M, N, K, ALPHA, A, lda, B, ldb, BETA, C, ldc);                                          \
    }
PRODUCT(product_fp16, AMP_FLOAT16)
PRODUCT(product_bf16, AMP_BFLOAT16)
PRODUCT(product_fp32, AMP_FLOAT32)

static amp_op describe(const char *name, const char *backward_of, amp_fn *slot) {
    amp_op op = AMP_OP_INIT;
    *slot = (amp_fn)darknet_gemm();
    op.name = name, op.slot = slot;
    op.aliases = "matmul", op.backward_of = backward_of;
    op.flags = AMP_OP_MATMUL;
    op.schema = "gemm(int TA, int TB, int M, int N, int K, float ALPHA, float A[TA?K:M, TA?M:K : lda], int lda, "
                "float B[TB?N:K, TB?K:N : ldb], int ldb, float BETA, float(a!) C[M,N : ldc], int ldc) -> void";
    op.fp16 = (amp_fn)product_fp16, op.bf16 = (amp_fn)product_bf16;
    if (options()->fast) op.fp32 = (amp_fn)product_fp32;
    return op;
}

void describe_products(amp_op *ops, struct part *parts, int n_parts, amp_fn *other) {
    for (int i = 0; i < n_parts; i++) {
        ops[2 * i] = describe(parts[i].name, NULL, &parts[i].forward);
        ops[2 * i + 1] = describe(parts[i].backward_name, parts[i].name, &parts[i].backward);
    }
    ops[2 * n_parts] = describe("gemm", NULL, other);
}

static bool within(const float *p, const float *begin, int n) { return p >= begin && p < begin + n; }

gemm_fn *product_of(const struct wired *w, const float *A, const float *B, const float *C) {
    for (int i = 0; i < w->n_parts; i++) {
        const struct part *p = &w->parts[i];
        const bool its = within(A, p->weights, p->n_weights) || within(B, p->weights, p->n_weights) ||
            within(C, p->l->weight_updates, p->n_weights);
        if (its) return (gemm_fn *)(w->backward ? p->backward : p->forward);
    }
    return (gemm_fn *)w->other;
}
