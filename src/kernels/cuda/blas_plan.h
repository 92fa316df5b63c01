/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a product: its form for cuBLASLt, and the division of work. Matrices of cuBLASLt are column-major: a
 * row-major [m, n] is [n, m] there, so it computes the transpose of d, the product of the transposes of op(b) and
 * op(a). Its a is the b of the caller, its rows are the columns of the caller, and a bias as long as a row of d is as
 * long as its columns.
 *
 * cuBLASLt does as much as possible in one launch. The kernel of finish.h does the work that would be rounded to 16
 * bits on the way, on fp32 sums in d, if that is fp32, or in scratch memory. Plain C, tested without CUDA.
 */
#ifndef AMP_KERNELS_CUDA_BLAS_PLAN_H
#define AMP_KERNELS_CUDA_BLAS_PLAN_H

#include "kernels/cuda/finish.h"

#include "amp_device.h"

#include <stdbool.h>

/* Parts of a product beyond alpha * op(a) * op(b). */
enum { BLAS_C = 1, BLAS_BIAS = 2, BLAS_ACTIVATION = 4, BLAS_AUX = 8, BLAS_BIAS_GRAD = 16, BLAS_CONVERT = 32 };

struct blas_matrix {
    amp_dtype type;
    uint64_t rows, cols;
    int64_t ld, stride; /* elements */
    const void *data;   /* NULL: in scratch */
};

struct blas_plan {
    bool multiplies; /* false: alpha or k is 0, and cuBLASLt is not called */
    bool transpose_a, transpose_b, tf32;
    /* The epilogue must begin from the sum itself, and algorithms that add it in parts have rounded it to d's 16 bits
     * (seen of 13.1 on an H200). */
    bool unsplit;
    struct blas_matrix a, b, c, d; /* cuBLASLt's; where c is not its own it is d, with beta 0 */
    int32_t batch;
    float alpha, beta;
    uint32_t fused, left; /* parts: cuBLASLt's, and those for afterwards */
    uint64_t scratch;     /* bytes that d needs (0: it is the caller's) */
};

/* NULL, or why cuBLASLt cannot do it. `fuses`: cuBLASLt may do parts in its epilogue; where it has no algorithm for
 * that, the plan without. */
const char *cuda_blas_plan(const amp_matmul_args *g, const amp_device_epilogue *e, bool fuses, struct blas_plan *plan);

/* Describes the remaining work for cuda_launch_finish. false: none. scratch: address of the sums, if in scratch
 * memory. */
bool cuda_blas_finish(const amp_matmul_args *g, const amp_device_epilogue *e, const struct blas_plan *plan,
                      void *scratch, struct cuda_finish *finish);

/* Describes the remaining work for cuda_launch_sums. false: none. */
bool cuda_blas_sums(const amp_matmul_args *g, const amp_device_epilogue *e, const struct blas_plan *plan,
                    struct cuda_sums *sums);

#endif
