// SPDX-License-Identifier: Apache-2.0
// One thread: the state is a few words, and what it decides is read by launches that come after.
#include "kernels/cuda/scaler.h"

static __global__ void __launch_bounds__(1) kernel_scaler(const struct cuda_scaler s) { cuda_scaler_run(&s); }

cudaError_t cuda_launch_scaler(const struct cuda_scaler *scaler, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(1);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel_scaler, *scaler);
}
