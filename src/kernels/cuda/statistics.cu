// SPDX-License-Identifier: Apache-2.0
// Statistics: counts by atomic operations, which any order leaves the same; sums as those of norms.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/statistics.h"
#include "kernels/cuda/sum.cuh"

#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS) name

struct room {
    double values[CUDA_THREADS];
    unsigned long long largest, least;
};

static __device__ __forceinline__ struct cuda_seen nothing() {
    struct cuda_seen seen = {0.0, 0.0, 0, UINT64_MAX};
    return seen;
}

// Of every thread's `mine`, for thread 0. All threads of the block.
static __device__ __forceinline__ struct cuda_seen of_block(struct room &room, const struct cuda_seen &mine) {
    struct cuda_seen all;
    if (threadIdx.x == 0) room.largest = 0, room.least = UINT64_MAX;
    sum_block(room.values, mine.sum);
    all.sum = room.values[0];
    atomicMax(&room.largest, (unsigned long long)mine.largest);
    atomicMin(&room.least, (unsigned long long)mine.least);
    __syncthreads();
    sum_block(room.values, mine.squares);
    all.squares = room.values[0];
    all.largest = room.largest, all.least = room.least;
    return all;
}

// seen[chunk], and counts of the chunk.
KERNEL(kernel_statistics)(const struct cuda_table table, struct cuda_seen *seen, amp_statistics *statistics) {
    __shared__ struct room room;
    __shared__ uint32_t rows[CUDA_ROWS];
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, 1);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    struct cuda_seen mine = nothing();
    for (uint32_t row = threadIdx.x; row < CUDA_ROWS; row += CUDA_THREADS) rows[row] = 0;
    __syncthreads();
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_statistics_group(&t, &at, &mine, rows);
    }
    const struct cuda_seen all = of_block(room, mine); // and every thread has counted
    if (threadIdx.x == 0) seen[blockIdx.x] = all;
    for (uint32_t row = threadIdx.x; row < CUDA_ROWS; row += CUDA_THREADS)
        cuda_add_row(&statistics[chunk.tensor], row, rows[row]);
}

// A block a tensor.
KERNEL(kernel_statistics_sums)(const struct cuda_table table, const struct cuda_seen *seen,
                               amp_statistics *statistics) {
    __shared__ struct room room;
    const uint32_t i = blockIdx.x;
    struct cuda_seen mine = nothing();
    for (uint32_t c = table.first_chunks[i] + threadIdx.x; c < table.first_chunks[i + 1]; c += CUDA_THREADS) {
        mine.sum = mine.sum + seen[c].sum;
        mine.squares = mine.squares + seen[c].squares;
        if (seen[c].largest > mine.largest) mine.largest = seen[c].largest;
        if (seen[c].least < mine.least) mine.least = seen[c].least;
    }
    const struct cuda_seen all = of_block(room, mine);
    if (threadIdx.x == 0) cuda_add_seen(&statistics[i], &all, cuda_elements_of(&table, i));
}

cudaError_t cuda_launch_statistics(const struct cuda_table *table, struct cuda_seen *seen, amp_statistics *statistics,
                                   cudaStream_t stream) {
    const cudaError_t error = launch(kernel_statistics, table->n_chunks, stream, *table, seen, statistics);
    if (error != cudaSuccess) return error;
    return launch(kernel_statistics_sums, table->n_tensors, stream, *table, (const struct cuda_seen *)seen,
                  statistics);
}
