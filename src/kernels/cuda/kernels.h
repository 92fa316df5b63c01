/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of kernels, for C: asynchronous, on the stream of the caller and the current device, one launch each for any
 * table. Chunks of the table and all other pointers are in device memory. A table without chunks needs no launch.
 */
#ifndef AMP_KERNELS_CUDA_KERNELS_H
#define AMP_KERNELS_CUDA_KERNELS_H

#include "kernels/cuda/lists.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- list_kernels.cu ---- */

/* Spans: dst, src. only_if may be NULL: nothing happens where it shows 0. */
cudaError_t cuda_launch_cast(const struct cuda_table *table, const float *only_if, cudaStream_t stream);
/* dst, src. */
cudaError_t cuda_launch_clamp(const struct cuda_table *table, float limit, cudaStream_t stream);
/* master, parameter. norms may be NULL: where a tensor's is 0, all of it is taken from the parameter. low: where the
 * parameter is FP32, the type that it is rounded to. */
cudaError_t cuda_launch_reconcile(const struct cuda_table *table, const float *norms, uint32_t low,
                                  cudaStream_t stream);
/* dst, src, both FP32. low: fp16 or bf16. */
cudaError_t cuda_launch_round(const struct cuda_table *table, uint32_t low, const struct cuda_found *found,
                              cudaStream_t stream);
/* dst */
cudaError_t cuda_launch_zero(const struct cuda_table *table, cudaStream_t stream);
/* dst, src. */
cudaError_t cuda_launch_scale(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_found *found, cudaStream_t stream);
/* dst, x, y. */
cudaError_t cuda_launch_axpby(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                              const struct cuda_found *found, cudaStream_t stream);
/* Adds without reporting elements that are not finite in y. */
cudaError_t cuda_launch_add(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                            const struct cuda_found *found, cudaStream_t stream);
/* src. sums: a double a chunk. */
cudaError_t cuda_launch_check(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_factor *factor, double *sums, const struct cuda_found *found,
                              cudaStream_t stream);
/* Computes norms from the sums, for at least one tensor. tensor_sums: a double a tensor. norms: a float a tensor, or
 * NULL. norm: one float, or NULL. ticket: 0 before and after the launch. */
cudaError_t cuda_launch_norms(const struct cuda_table *table, const double *sums, double *tensor_sums, float *norms,
                              float *norm, uint32_t *ticket, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
