// SPDX-License-Identifier: Apache-2.0
// Statistics: counts by atomic operations, which any order leaves the same; sums by the tree of sum.cuh.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/statistics.h"
#include "kernels/cuda/walk.cuh"

// As in list_kernels.cu: half of a multiprocessor's threads, at least, find registers.
#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS, 4) name

static __device__ __forceinline__ struct cuda_seen nothing() {
    struct cuda_seen seen = {0.0, 0.0, 0, UINT64_MAX};
    return seen;
}

// Merges every thread's `mine` into seen[0], for thread 0. All threads of the block.
static __device__ __forceinline__ void merge_block(struct cuda_seen seen[CUDA_THREADS], const struct cuda_seen &mine) {
    seen[threadIdx.x] = mine;
    for (uint32_t width = CUDA_THREADS / 2; width; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) cuda_merge_seen(&seen[threadIdx.x], &seen[threadIdx.x + width]);
    }
}

// Copies of the rows, so that fewer neighbours count in the same one. As many as leave room for four blocks.
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
constexpr uint32_t COPIES = 2;
#else
constexpr uint32_t COPIES = 4;
#endif

// seen[chunk], and counts of the chunk.
KERNEL(kernel_statistics)(const struct cuda_table table, struct cuda_seen *seen, amp_statistics *statistics) {
    __shared__ union {
        uint32_t rows[COPIES * CUDA_ROWS_APART];
        struct cuda_seen seen[CUDA_THREADS];
    } room;
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, 1);
    uint32_t *const rows = room.rows + threadIdx.x % COPIES * CUDA_ROWS_APART;
    struct cuda_seen mine = nothing();
    struct cuda_seen_bits extremes = {-1, UINT32_MAX};
    for (uint32_t row = threadIdx.x; row < COPIES * CUDA_ROWS_APART; row += CUDA_THREADS) room.rows[row] = 0;
    __syncthreads();
    walk<0, 1, types(F32), types(F16), types(BF16)>(
        t, chunk,
        [&](const struct cuda_tensor &t, const struct cuda_range &at, const fetched<0, 1> &x) {
            float v[CUDA_GROUP];
            x.widen(v, t, 0);
            cuda_count_values(v, &t, &at, &mine, &extremes, rows);
        },
        [&](const struct cuda_tensor &t, const struct cuda_range &at) {
            cuda_statistics_group(&t, &at, &mine, &extremes, rows);
        });
    cuda_see_extremes(&mine, &extremes);
    __syncthreads();
    for (uint32_t row = threadIdx.x; row < CUDA_ROWS; row += CUDA_THREADS) {
        uint32_t count = 0;
        CUDA_UNROLL
        for (uint32_t copy = 0; copy < COPIES; copy++) count += room.rows[copy * CUDA_ROWS_APART + row];
        cuda_add_row(&statistics[chunk.tensor], row, count);
    }
    __syncthreads();
    merge_block(room.seen, mine);
    if (threadIdx.x == 0) seen[blockIdx.x] = room.seen[0];
}

// A block a tensor.
KERNEL(kernel_statistics_sums)(const struct cuda_table table, const struct cuda_seen *seen,
                               amp_statistics *statistics) {
    __shared__ struct cuda_seen room[CUDA_THREADS];
    const uint32_t i = blockIdx.x;
    struct cuda_seen mine = nothing();
    for (uint32_t c = table.first_chunks[i] + threadIdx.x; c < table.first_chunks[i + 1]; c += CUDA_THREADS)
        cuda_merge_seen(&mine, &seen[c]);
    merge_block(room, mine);
    if (threadIdx.x == 0) cuda_add_seen(&statistics[i], &room[0], cuda_elements_of(&table, i));
}

cudaError_t cuda_launch_statistics(const struct cuda_table *table, struct cuda_seen *seen, amp_statistics *statistics,
                                   cudaStream_t stream) {
    const cudaError_t error = launch(kernel_statistics, table->n_chunks, stream, *table, seen, statistics);
    if (error != cudaSuccess) return error;
    return launch(kernel_statistics_sums, table->n_tensors, stream, *table, (const struct cuda_seen *)seen,
                  statistics);
}
