/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASLt on a device: its handle, and which algorithm a shape is computed with. For the life of the process; any
 * thread.
 */
#ifndef AMP_KERNELS_CUDA_BLAS_DEVICE_H
#define AMP_KERNELS_CUDA_BLAS_DEVICE_H

#include "kernels/cuda/blas_cache.h"
#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/blas_plan.h"
#include "kernels/cuda/device.h"

#include <pthread.h>

struct blas_device {
    struct blas_device *next;
    const struct blas_library *lt;
    cublasLtHandle_t handle;
    int device, capability; /* 10 * major + minor */
    cudaMemPool_t pool;     /* of products without a list (NULL: it does not allocate in a stream's order) */
    struct blas_cache cache; /* under cuda_blas_lock */
};

/* A plan as cuBLASLt's descriptors. All zeros: none. */
struct blas_call {
    const struct blas_device *device;
    const struct blas_plan *plan;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c, d;
    struct blas_key key;
};

/* Stores `host`, which sets the message of the last error. */
void cuda_blas_device_init(const struct amp__backend_host *host);
/* cuBLASLt's status in words, or AMP_OK. */
amp_status cuda_blas_explain(const struct blas_device *device, cublasStatus_t status, const char *what);

/* The current device's. */
amp_status cuda_blas_device(int id, struct blas_device **device);

/* On an error nothing is held. limit: of the workspace's bytes. scratch: where d will be, if in scratch; of explain
 * NULL. */
amp_status cuda_blas_describe(struct blas_device *device, const amp_matmul_args *g, const amp_device_epilogue *e,
                              const struct blas_plan *plan, uint64_t limit, struct blas_call *call);
void cuda_blas_forget(struct blas_call *call);

/* Asks cuBLASLt for algorithms, best first: *n, at most `most`. Returns its status if it has none. */
cublasStatus_t cuda_blas_propose(const struct blas_call *call, int most, cublasLtMatmulHeuristicResult_t *results,
                                 int *n);

/* Returns the remembered algorithm for this shape, or remembers the first proposal. choice->status: AMP_OK if there is
 * one. */
void cuda_blas_choose(struct blas_device *device, const struct blas_call *call, struct blas_choice *choice);
void cuda_blas_remember(struct blas_device *device, const struct blas_call *call, const struct blas_choice *choice);

#endif
