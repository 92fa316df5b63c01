// SPDX-License-Identifier: Apache-2.0
// How kernels are started: a launch's error is its own, and not one that the host left behind.
#pragma once

#include "kernels/cuda/table.h"

template <typename... Parameters>
static cudaError_t launch_of(uint32_t threads, void (*kernel)(Parameters...), uint32_t blocks, cudaStream_t stream,
                             Parameters... arguments) {
    if (blocks == 0) return cudaSuccess;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters &&>(arguments)...);
}

template <typename... Parameters>
static cudaError_t launch(void (*kernel)(Parameters...), uint32_t blocks, cudaStream_t stream,
                          Parameters... arguments) {
    return launch_of(CUDA_THREADS, kernel, blocks, stream, static_cast<Parameters &&>(arguments)...);
}
