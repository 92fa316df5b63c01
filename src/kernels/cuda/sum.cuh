// SPDX-License-Identifier: Apache-2.0
// Sums over a block of threads, in an order that nothing changes.
#pragma once

#include "kernels/cuda/table.h"

// values[0] = the sum of every thread's `mine`. All threads of the block; values may be read until the next barrier.
static __device__ __forceinline__ void sum_block(double values[CUDA_THREADS], double mine) {
    values[threadIdx.x] = mine;
    for (uint32_t width = CUDA_THREADS / 2; width; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) values[threadIdx.x] = values[threadIdx.x] + values[threadIdx.x + width];
    }
    __syncthreads();
}
