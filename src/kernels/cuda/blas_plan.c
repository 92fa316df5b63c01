/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/blas_plan.h"

#include <string.h>

static uint64_t width_of(amp_dtype type) { return type == AMP_FLOAT32 ? 4 : 2; }

/* ---- the matrices ---- */

/* Stored as rows of `cols` elements: columns, to cuBLASLt. */
static struct blas_matrix matrix_of(const void *data, amp_dtype type, int64_t rows, int64_t cols, int64_t ld,
                                    int64_t stride) {
    return (struct blas_matrix){ type, (uint64_t)cols, (uint64_t)rows, ld, stride, data };
}

static void place_operands(const amp_matmul_args *g, struct blas_plan *plan) {
    plan->transpose_a = g->transpose_b != 0, plan->transpose_b = g->transpose_a != 0;
    plan->a = matrix_of(g->b, g->b_dtype, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n, g->ld_b,
                        g->stride_b);
    plan->b = matrix_of(g->a, g->a_dtype, g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, g->ld_a,
                        g->stride_a);
    plan->d = matrix_of(g->d, g->d_dtype, g->m, g->n, g->ld_d, g->stride_d);
    plan->batch = (int32_t)g->batch, plan->alpha = g->alpha;
    plan->tf32 = g->flags & AMP_MATMUL_TF32 && g->a_dtype == AMP_FLOAT32;
}

/* ---- division of work ---- */

static uint32_t parts_of(const amp_matmul_args *g, const amp_device_epilogue *e) {
    return (g->c && g->beta != 0.0f ? BLAS_C : 0u) | (g->bias ? BLAS_BIAS : 0u) |
           (g->activation != AMP_ACTIVATION_NONE ? BLAS_ACTIVATION : 0u) | (e->aux && !e->backward ? BLAS_AUX : 0u) |
           (e->bias_grad_of != AMP_BIAS_GRAD_NONE ? BLAS_BIAS_GRAD : 0u);
}

/* True if cuBLASLt computes the activation. Its ReLU has no documented result for NaN, and copies or clears in
 * backward. Its GELU is never used: with 16-bit results it is applied to the rounded sum (seen of 13.1 on an H200, in
 * algorithms with and without thread block clusters), with fp32 its tanh may be the fast one of the processor, and
 * there is no erf. */
static bool has_activation(const amp_matmul_args *g, const amp_device_epilogue *e) {
    return g->activation == AMP_ACTIVATION_RELU && (e->backward || g->flags & AMP_MATMUL_FAST_RELU);
}

/* True if cuBLASLt sums the bias gradient. Sums of operands have an epilogue of their own, those of d are combined with
 * its activation. */
static bool has_bias_grad(const amp_matmul_args *g, const amp_device_epilogue *e, uint32_t fused, amp_dtype type) {
    if (e->bias_grad_dtype != type || g->batch != 1) return false;
    if (e->bias_grad_of == AMP_BIAS_GRAD_D) return (fused & BLAS_ACTIVATION) != 0;
    return g->alpha == 1.0f && !(fused & (BLAS_BIAS | BLAS_ACTIVATION));
}

/* True if the remaining work may start from d in 16 bits. ReLU copies or clears rounded values, all other work would
 * round twice. */
static bool is_exact_after(const amp_matmul_args *g, uint32_t left) {
    return !(left & (BLAS_C | BLAS_BIAS)) && (!(left & BLAS_ACTIVATION) || g->activation == AMP_ACTIVATION_RELU);
}

/* Returns the parts that cuBLASLt computes for a result of `type`, in its order. Nothing may follow a part that it does
 * not compute, and nothing that needs the sum may follow the addition of c in 16 bits, since some of its algorithms
 * have rounded by then (seen of 13.1 on an H200). */
static uint32_t fused_parts(const amp_matmul_args *g, const amp_device_epilogue *e, uint32_t parts, amp_dtype type,
                            bool fuses) {
    uint32_t fused = 0, left;
    if (parts & BLAS_C && g->c_dtype == type && !(g->batch > 1 && g->stride_c == 0)) fused |= BLAS_C;
    if (!fuses || (fused && type != AMP_FLOAT32 && !is_exact_after(g, parts & ~fused))) return fused;
    if (parts & BLAS_BIAS && !(parts & ~fused & BLAS_C) && g->bias_dtype == type) fused |= BLAS_BIAS;
    left = parts & ~fused;
    if (parts & BLAS_ACTIVATION && !(left & (BLAS_C | BLAS_BIAS)) && has_activation(g, e))
        fused |= BLAS_ACTIVATION | (parts & BLAS_AUX);
    if (parts & BLAS_BIAS_GRAD && has_bias_grad(g, e, fused, type)) fused |= BLAS_BIAS_GRAD;
    return fused;
}

static void use_scratch(const amp_matmul_args *g, struct blas_plan *plan) {
    plan->scratch = (uint64_t)g->m * (uint64_t)g->n * (uint64_t)g->batch * sizeof(float);
    plan->d = matrix_of(NULL, AMP_FLOAT32, g->m, g->n, g->n, g->m * g->n);
}

static bool has_finish(const struct blas_plan *plan) {
    return !plan->multiplies || plan->left & ~(uint32_t)BLAS_BIAS_GRAD;
}

/* Returns the number of groups for cuda_finish. Each factor is below 2^63, but the product may overflow. */
static uint64_t groups_of(const amp_matmul_args *g) {
    const uint64_t in_row = ((uint64_t)g->n + CUDA_GROUP - 1) / CUDA_GROUP;
    uint64_t rows, groups;
    return __builtin_mul_overflow((uint64_t)g->m, (uint64_t)g->batch, &rows) ||
                   __builtin_mul_overflow(rows, in_row, &groups) ? UINT64_MAX : groups;
}

static const char TOO_MANY[] = "more than 2^32 times 8 elements of which cuBLASLt leaves something to be done: "
                               "multiply fewer rows at a time";

const char *cuda_blas_plan(const amp_matmul_args *g, const amp_device_epilogue *e, bool fuses, struct blas_plan *plan) {
    const uint32_t parts = parts_of(g, e);
    *plan = (struct blas_plan){ .multiplies = g->k != 0 && g->alpha != 0.0f, .left = parts };
    if (g->batch > INT32_MAX) return "more than 2^31 - 1 products";
    if (!plan->multiplies) return groups_of(g) > UINT32_MAX ? TOO_MANY : NULL;
    if (g->a_dtype != g->b_dtype) return "a and b are of different types: cast one of them (amp_device_cast)";
    place_operands(g, plan);
    const bool stores = g->d_dtype == AMP_FLOAT32 || g->d_dtype == g->a_dtype;
    plan->fused = fused_parts(g, e, parts, g->d_dtype, fuses);
    if (!stores || (g->d_dtype != AMP_FLOAT32 && !is_exact_after(g, parts & ~plan->fused))) {
        plan->fused = fused_parts(g, e, parts & BLAS_C, AMP_FLOAT32, false);
        use_scratch(g, plan);
    }
    plan->unsplit = plan->d.type != AMP_FLOAT32 && !is_exact_after(g, plan->fused & ~(uint32_t)BLAS_C);
    plan->left = (parts & ~plan->fused) | (plan->scratch ? BLAS_CONVERT : 0u);
    if (has_finish(plan) && groups_of(g) > UINT32_MAX) return TOO_MANY;
    plan->c = plan->d;
    if (plan->fused & BLAS_C) {
        plan->c = matrix_of(g->c, g->c_dtype, g->m, g->n, g->ld_c, g->stride_c);
        plan->beta = g->beta;
    }
    return NULL;
}

/* ---- remaining work ---- */

union writable { /* a finish only reads const arguments */
    const void *given;
    unsigned char *taken;
};

/* Span k's part of the shape: wide where each row of each product begins on a 16-byte boundary. */
static uint32_t shape_of(int k, const void *data, amp_dtype type, int64_t ld, int64_t stride) {
    const uint64_t width = width_of(type), rows = (uint64_t)ld * width, items = (uint64_t)stride * width;
    const uint64_t all = (uint64_t)(uintptr_t)data | rows | items;
    return (uint32_t)type << (4 * k) | (uint32_t)(all % 16 == 0) << (4 * k + 3);
}

/* In elements; one row for all: 0 and 0. */
static void set_side(struct cuda_finish *f, int k, const void *data, amp_dtype type, int64_t ld, int64_t stride) {
    const int64_t width = (int64_t)width_of(type);
    const union writable pointer = { data };
    f->sides[k] = (struct cuda_side){ pointer.taken, ld * width, stride * width };
    f->shape |= shape_of(k, data, type, ld, stride);
}

bool cuda_blas_finish(const amp_matmul_args *g, const amp_device_epilogue *e, const struct blas_plan *plan,
                      void *scratch, struct cuda_finish *finish) {
    if (!has_finish(plan)) return false;
    struct cuda_finish f = { .rows = (uint64_t)g->m, .cols = (uint64_t)g->n, .batch = (uint64_t)g->batch,
                             .groups_of_row = cuda_divisor_of((uint32_t)((g->n + CUDA_GROUP - 1) / CUDA_GROUP)),
                             .rows_of_item = cuda_divisor_of((uint32_t)g->m),
                             .beta = g->beta, .backward = e->backward };
    set_side(&f, CUDA_D, g->d, g->d_dtype, g->ld_d, g->stride_d);
    if (plan->multiplies)
        set_side(&f, CUDA_SUMS, plan->scratch ? scratch : g->d, plan->d.type, plan->d.ld, plan->d.stride);
    if (plan->left & BLAS_C) set_side(&f, CUDA_C, g->c, g->c_dtype, g->ld_c, g->batch > 1 ? g->stride_c : 0);
    if (plan->left & BLAS_BIAS) set_side(&f, CUDA_ROW_BIAS, g->bias, g->bias_dtype, 0, 0);
    if (plan->left & BLAS_ACTIVATION) {
        f.activation = g->activation;
        if (g->activation != AMP_ACTIVATION_RELU && e->aux)
            set_side(&f, CUDA_AUX, e->aux, g->d_dtype, e->ld_aux, e->stride_aux);
        if (g->activation == AMP_ACTIVATION_RELU)
            f.mask = (struct cuda_side){ e->aux, e->ld_aux / 8, e->stride_aux / 8 };
    }
    *finish = f;
    return true;
}

bool cuda_blas_sums(const amp_matmul_args *g, const amp_device_epilogue *e, const struct blas_plan *plan,
                    struct cuda_sums *sums) {
    if (!(plan->left & BLAS_BIAS_GRAD)) return false;
    struct cuda_sums s = { .out = e->bias_grad, .out_type = (uint32_t)e->bias_grad_dtype, .batch = (uint64_t)g->batch,
                           .stride_out = e->stride_bias_grad };
    amp_dtype type = g->d_dtype;
    if (e->bias_grad_of == AMP_BIAS_GRAD_A) {
        s.x = g->a, type = g->a_dtype, s.n_p = (uint64_t)g->m, s.n_q = (uint64_t)g->k, s.stride_x = g->stride_a;
        s.step_p = g->transpose_a ? 1 : g->ld_a, s.step_q = g->transpose_a ? g->ld_a : 1;
    } else if (e->bias_grad_of == AMP_BIAS_GRAD_B) {
        s.x = g->b, type = g->b_dtype, s.n_p = (uint64_t)g->n, s.n_q = (uint64_t)g->k, s.stride_x = g->stride_b;
        s.step_p = g->transpose_b ? g->ld_b : 1, s.step_q = g->transpose_b ? 1 : g->ld_b;
    } else {
        s.x = g->d, s.n_p = (uint64_t)g->n, s.n_q = (uint64_t)g->m, s.stride_x = g->stride_d;
        s.step_p = 1, s.step_q = g->ld_d;
    }
    s.shape = shape_of(0, s.x, type, s.step_q == 1 ? s.step_p : s.step_q, s.stride_x);
    *sums = s;
    return true;
}
