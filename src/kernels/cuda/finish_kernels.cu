// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt leaves of a product: a thread a group of elements; sums over a dimension, each by one block.
#include "kernels/cuda/blas_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sum.cuh"

enum { MOST_BLOCKS = 1 << 16 };

static __global__ void __launch_bounds__(CUDA_THREADS) kernel_finish(const struct cuda_finish f) {
    const uint64_t groups = cuda_finish_groups(&f), step = (uint64_t)gridDim.x * CUDA_THREADS;
    for (uint64_t g = (uint64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; g < groups; g += step)
        cuda_finish_group(&f, (uint32_t)g);
}

static __device__ __forceinline__ struct cuda_tensor summed(const struct cuda_sums *s) {
    struct cuda_tensor x = {};
    x.data[0] = const_cast<unsigned char *>(s->x);
    x.shape = s->shape;
    __builtin_assume(__isGlobal(x.data[0]));
    return x;
}

static __device__ __forceinline__ void store_sum(const struct cuda_sums *s, uint64_t item, uint64_t p, double sum) {
    (void)cuda_store_one_f32(s->out, s->out_type, (uint64_t)((int64_t)item * s->stride_out) + p, (float)sum);
}

// Neighbours in q lie side by side: a block a sum.
static __global__ void __launch_bounds__(CUDA_THREADS) kernel_sum_rows(const struct cuda_sums s) {
    __shared__ double values[CUDA_THREADS];
    const struct cuda_tensor x = summed(&s);
    for (uint64_t line = blockIdx.x; line < s.n_p * s.batch; line += gridDim.x) {
        const uint64_t item = line / s.n_p, p = line % s.n_p;
        const int64_t begin = (int64_t)item * s.stride_x + (int64_t)p * s.step_p;
        double sum = 0.0;
        for (uint64_t q = threadIdx.x * CUDA_GROUP; q < s.n_q; q += CUDA_TILE) {
            float v[CUDA_GROUP];
            const struct cuda_range at = cuda_sums_range(begin + (int64_t)q, s.n_q - q);
            cuda_load_f32(v, &x, 0, &at);
            CUDA_UNROLL
            for (int i = 0; i < CUDA_GROUP; i++) sum = sum + (double)v[i];
        }
        sum_block(values, sum);
        if (threadIdx.x == 0) store_sum(&s, item, p, values[0]);
        __syncthreads();
    }
}

// Neighbours in p do: a block for 16 sums, a thread for eight of them in every 512th line of x, of which it has two
// under way. Of 16 bits that is a sector of the memory's, 32 bytes of a line.
enum { SUMMING = 1024, SIDES = 2, COLUMNS = SIDES * CUDA_GROUP, LINES = SUMMING / SIDES };

static __global__ void __launch_bounds__(SUMMING) kernel_sum_columns(const struct cuda_sums s) {
    __shared__ double values[LINES / 2][COLUMNS];
    const struct cuda_tensor x = summed(&s);
    const uint32_t line = threadIdx.x / SIDES, column = threadIdx.x % SIDES * CUDA_GROUP;
    const uint64_t in_item = (s.n_p + COLUMNS - 1) / COLUMNS;
    for (uint64_t block = blockIdx.x; block < in_item * s.batch; block += gridDim.x) {
        const uint64_t item = block / in_item, p = block % in_item * COLUMNS + column, left = p < s.n_p ? s.n_p - p : 0;
        const int64_t begin = (int64_t)item * s.stride_x + (int64_t)p;
        double sums[CUDA_GROUP] = {};
        for (uint64_t q = line; q < s.n_q; q += 2 * LINES) {
            float v[2][CUDA_GROUP];
            for (int k = 0; k < 2; k++) {
                const uint64_t at_q = q + k * LINES;
                const struct cuda_range at =
                    cuda_sums_range(begin + (int64_t)at_q * s.step_q, at_q < s.n_q ? left : 0);
                cuda_load_f32(v[k], &x, 0, &at);
            }
            CUDA_UNROLL
            for (int i = 0; i < CUDA_GROUP; i++) sums[i] = sums[i] + (double)v[0][i] + (double)v[1][i];
        }
        for (uint32_t lines = LINES / 2; lines; lines /= 2) {
            if (line >= lines && line < 2 * lines)
                for (int i = 0; i < CUDA_GROUP; i++) values[line - lines][column + i] = sums[i];
            __syncthreads();
            if (line < lines)
                for (int i = 0; i < CUDA_GROUP; i++) sums[i] = sums[i] + values[line][column + i];
            __syncthreads();
        }
        if (line == 0)
            for (uint32_t i = 0; i < CUDA_GROUP && i < left; i++) store_sum(&s, item, p + i, sums[i]);
    }
}

static uint32_t blocks_for(uint64_t wanted) { return wanted < MOST_BLOCKS ? (uint32_t)wanted : (uint32_t)MOST_BLOCKS; }

cudaError_t cuda_launch_finish(const struct cuda_finish *finish, cudaStream_t stream) {
    const uint64_t groups = cuda_finish_groups(finish);
    return launch(kernel_finish, blocks_for((groups + CUDA_THREADS - 1) / CUDA_THREADS), stream, *finish);
}

cudaError_t cuda_launch_sums(const struct cuda_sums *sums, cudaStream_t stream) {
    if (sums->step_q == 1) return launch(kernel_sum_rows, blocks_for(sums->n_p * sums->batch), stream, *sums);
    const uint64_t blocks = (sums->n_p + COLUMNS - 1) / COLUMNS * sums->batch;
    return launch_of(SUMMING, kernel_sum_columns, blocks_for(blocks), stream, *sums);
}
