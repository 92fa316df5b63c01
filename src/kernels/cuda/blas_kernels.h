/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the kernels that complete a cuBLASLt product, for C: as in kernels.h. */
#ifndef AMP_KERNELS_CUDA_BLAS_KERNELS_H
#define AMP_KERNELS_CUDA_BLAS_KERNELS_H

#include "kernels/cuda/finish.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_launch_finish(const struct cuda_finish *finish, cudaStream_t stream);
cudaError_t cuda_launch_sums(const struct cuda_sums *sums, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
