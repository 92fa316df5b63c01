// SPDX-License-Identifier: Apache-2.0
// Sums over a block of threads, in an order that nothing changes. The bound of norms:
//
// On a GPU (`amp_device.h`) squares are summed in double as well, in another order. Each of 256 threads sums its
// elements of a chunk (at most 65,536 and a head of 7): eight at a time, and then these sums (fp64: one after the
// other). A tree adds the threads, then the same way the chunks of a tensor, then the tensors. The order depends on the
// lists alone: the bits are the same in every run and on every GPU. All terms are positive, so that a sum whose deepest
// term passes m additions is within m * 2^-53, relatively, of the exact one. Here m is at most 264 + 8 + ceil(chunks /
// 256) + 8 for a tensor, on the CPU 4,096 + 4 + blocks. Below 2^27 additions on both sides the two norms, rounded to
// float, are equal or neighbours. (A square is taken from the bits, not converted. That of an FP32 subnormal may count
// as up to 2^-252 if its eight sum to more than 2^-174, which is negligible.)
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
