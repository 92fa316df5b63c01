/* SPDX-License-Identifier: Apache-2.0 */
/* A product under way, for product.c and measure.c. */
#ifndef AMP_KERNELS_CUDA_PRODUCT_H
#define AMP_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/blas_device.h"
#include "kernels/cuda/device.h"

/* All that cuBLASLt needs of a product but its memory. */
struct planned {
    struct blas_plan plan;
    struct blas_call call;
    struct blas_choice choice;
    uint32_t changes; /* of the device's choices, before this one was looked up */
};

/* One product under way. */
struct product {
    const amp_matmul_args *g;
    const amp_device_epilogue *e;
    struct cuda_list *list; /* NULL: memory in the stream's order */
    int device;
    cudaStream_t stream;
    bool capturing;

    struct blas_device *blas; /* NULL: nothing to multiply */
    struct planned *at;
    unsigned char *memory; /* scratch, then the workspace */
    bool owned;            /* memory is this product's alone */
};

/* Calls cuBLASLt with an algorithm that needs `workspace` bytes behind the scratch memory. */
cublasStatus_t cuda_multiply(const struct product *p, const cublasLtMatmulAlgo_t *algorithm, uint64_t workspace);

/* Makes the fastest of n algorithms the product's choice. Waits. */
amp_status cuda_measure(struct product *p, const cublasLtMatmulHeuristicResult_t *found, int n);

#endif
