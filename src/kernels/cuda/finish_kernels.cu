// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt leaves of a product: a thread a group of elements; sums over a dimension, each by one block.
#include "kernels/cuda/blas_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sum.cuh"

#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS) name

enum { COLUMNS = 32, LINES = CUDA_THREADS / COLUMNS, MOST_BLOCKS = 1 << 16 };

KERNEL(kernel_finish)(const struct cuda_finish f) {
    const uint64_t groups = cuda_finish_groups(&f), step = (uint64_t)gridDim.x * CUDA_THREADS;
    for (uint64_t g = (uint64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; g < groups; g += step)
        cuda_finish_group(&f, g);
}

// Neighbours in q lie side by side: a block a sum.
KERNEL(kernel_sum_rows)(const struct cuda_sums s) {
    __shared__ double values[CUDA_THREADS];
    for (uint64_t p = blockIdx.x; p < s.n_p * s.batch; p += gridDim.x) {
        const uint64_t item = p / s.n_p, line = p % s.n_p;
        const int64_t at = (int64_t)item * s.stride_x + (int64_t)line * s.step_p;
        double sum = 0.0;
        for (uint64_t q = threadIdx.x; q < s.n_q; q += CUDA_THREADS)
            sum = sum + (double)cuda_load_one_f32(s.x, s.type, (uint64_t)(at + (int64_t)q * s.step_q));
        sum_block(values, sum);
        if (threadIdx.x == 0)
            (void)cuda_store_one_f32(s.out, s.out_type, (uint64_t)((int64_t)item * s.stride_out) + line,
                                     (float)values[0]);
        __syncthreads();
    }
}

// Neighbours in p do: a block for 32 sums, eight threads for each.
KERNEL(kernel_sum_columns)(const struct cuda_sums s) {
    __shared__ double values[LINES][COLUMNS];
    const uint32_t column = threadIdx.x % COLUMNS, line = threadIdx.x / COLUMNS;
    const uint64_t in_item = (s.n_p + COLUMNS - 1) / COLUMNS;
    for (uint64_t block = blockIdx.x; block < in_item * s.batch; block += gridDim.x) {
        const uint64_t item = block / in_item, p = block % in_item * COLUMNS + column;
        const int64_t at = (int64_t)item * s.stride_x + (int64_t)p * s.step_p;
        double sum = 0.0;
        for (uint64_t q = line; q < s.n_q && p < s.n_p; q += LINES)
            sum = sum + (double)cuda_load_one_f32(s.x, s.type, (uint64_t)(at + (int64_t)q * s.step_q));
        values[line][column] = sum;
        __syncthreads();
        if (line == 0 && p < s.n_p) {
            for (int i = 1; i < LINES; i++) sum = sum + values[i][column];
            (void)cuda_store_one_f32(s.out, s.out_type, (uint64_t)((int64_t)item * s.stride_out) + p, (float)sum);
        }
        __syncthreads();
    }
}

static uint32_t blocks_for(uint64_t wanted) { return wanted < MOST_BLOCKS ? (uint32_t)wanted : (uint32_t)MOST_BLOCKS; }

cudaError_t cuda_launch_finish(const struct cuda_finish *finish, cudaStream_t stream) {
    const uint64_t groups = cuda_finish_groups(finish);
    return launch(kernel_finish, blocks_for((groups + CUDA_THREADS - 1) / CUDA_THREADS), stream, *finish);
}

cudaError_t cuda_launch_sums(const struct cuda_sums *sums, cudaStream_t stream) {
    if (sums->step_p != 1 || sums->step_q == 1)
        return launch(kernel_sum_rows, blocks_for(sums->n_p * sums->batch), stream, *sums);
    return launch(kernel_sum_columns, blocks_for((sums->n_p + COLUMNS - 1) / COLUMNS * sums->batch), stream, *sums);
}
