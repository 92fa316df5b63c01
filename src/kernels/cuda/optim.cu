// SPDX-License-Identifier: Apache-2.0
// The fused optimizers: a launch that prepares each tensor's numbers, then one that steps all tensors; where the host
// knows the numbers, which are the same for all, that one alone. LAMB takes two more, since its learning rates follow
// from norms of what it computed. And split masters.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/optim.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sum.cuh"

#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS) name
// Three eighths of a multiprocessor's threads, at least, find registers.
#define LARGE_KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS, 3) name
// Before compute capability 9.0 that bound would put registers into memory.
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define LAMB_KERNEL KERNEL
#else
#define LAMB_KERNEL LARGE_KERNEL
#endif

static __device__ void prepare_tensor(const struct cuda_step &step, uint32_t i, uint64_t steps) {
    const bool absent = step.shapes && CUDA_TYPE(step.shapes[i], CUDA_GRAD) == 0;
    if (absent || (step.found_inf && *step.found_inf != 0.0f)) {
        struct cuda_update skipped = {}; // all of it: blocks load all of it
        skipped.flags = CUDA_SKIPPED;
        step.updates[i] = skipped;
        return;
    }
    const struct cuda_norms norms = {
        step.norm ? *step.norm : 0.0f,
        step.grad_norms ? step.grad_norms[i] : 0.0f,
        step.param_norms ? step.param_norms[i] : 0.0f,
    };
    float *second = step.second ? (float *)(uintptr_t)step.second[i] : NULL;
    struct cuda_update u = cuda_prepare(&step.rule, steps, cuda_factor_of(&step.inv_scale),
                                        cuda_factor_of(&step.factor), &norms, second);
    cuda_prepare_random(&u, &step.random, i, steps);
    step.updates[i] = u;
    if (step.steps && !step.shares) step.steps[i]++;
}

// A count that tensors share is advanced by the last block to have read it. *ticket is 0, and 0 again afterwards.
KERNEL(kernel_prepare)(const struct cuda_step step) {
    const uint32_t i = blockIdx.x * CUDA_THREADS + threadIdx.x;
    const uint64_t shared = step.shares ? *step.steps : step.known;
    __syncthreads();
    if (step.shares && threadIdx.x == 0) {
        __threadfence();
        const bool is_last = atomicInc(step.ticket, gridDim.x - 1) == gridDim.x - 1;
        if (is_last && !(step.found_inf && *step.found_inf != 0.0f)) *step.steps = shared + 1;
    }
    if (i < step.n_tensors) prepare_tensor(step, i, step.steps && !step.shares ? step.steps[i] : shared);
}

template <enum cuda_rule rule, bool stochastic>
LARGE_KERNEL(kernel_update)(const struct cuda_table table, const struct cuda_update *updates) {
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_update u = updates[chunk.tensor];
    if (u.flags & CUDA_SKIPPED) return;
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, CUDA_UPDATE_SPANS);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_update_group(rule, stochastic, &t, &u, &at, NULL);
    }
}

// A warp a block of moments in 8 bits. Every thread comes to the barriers.
LARGE_KERNEL(kernel_adam8)(const struct cuda_table all, const struct cuda_table codes,
                           const struct cuda_update *updates) {
    __shared__ struct cuda_extremes lanes[CUDA_THREADS];
    const struct cuda_chunk chunk = codes.chunks[blockIdx.x];
    const struct cuda_update u = updates[chunk.tensor];
    if (u.flags & CUDA_SKIPPED) return;
    const struct cuda_coded c = cuda_coded_of(&all, &codes, chunk.tensor);
    const struct cuda_blocks blocks = cuda_blocks_of(&chunk);
    const uint32_t lane = threadIdx.x % CUDA_LANES;
    for (uint64_t first = blocks.begin; first < blocks.end; first += CUDA_BLOCKS) {
        const uint64_t block = first + threadIdx.x / CUDA_LANES;
        struct cuda_extremes seen = { 0.0f, 0.0f };
        struct cuda_lane mine;
        if (block < blocks.end) seen = cuda_step_lane(&mine, &c, &u, block, lane);
        lanes[threadIdx.x] = seen;
        __syncthreads();
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_LANES; i++) cuda_see_moments(&seen, &lanes[threadIdx.x - lane + i]);
        if (block < blocks.end) cuda_code_lane(&mine, &c, &u, block, lane, &seen);
        __syncthreads();
    }
}

template <enum cuda_rule rule>
LARGE_KERNEL(kernel_step)(const struct cuda_table table, const struct cuda_update given,
                          const struct cuda_factor inv_scale, const float *found_inf) {
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, CUDA_UPDATE_SPANS);
    if ((found_inf && *found_inf != 0.0f) || !cuda_has(&t, CUDA_GRAD)) return;
    struct cuda_update u = given;
    u.inv_scale = cuda_factor_of(&inv_scale);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_update_group(rule, false, &t, &u, &at, NULL);
    }
}

// sums[2 * chunk] and the next: squares of p and of u.
LAMB_KERNEL(kernel_lamb_moments)(const struct cuda_table table, const struct cuda_update *updates, double *sums) {
    __shared__ double values[CUDA_THREADS];
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_update u = updates[chunk.tensor];
    double squares[2] = { 0.0, 0.0 };
    if (u.flags & CUDA_SKIPPED) return;
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, CUDA_UPDATE_SPANS);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_update_group(CUDA_LAMB_MOMENTS, false, &t, &u, &at, squares);
    }
    for (int k = 0; k < 2; k++) {
        sum_block(values, squares[k]);
        if (threadIdx.x == 0) sums[2 * (uint64_t)blockIdx.x + k] = values[0];
        __syncthreads();
    }
}

// A block a tensor.
KERNEL(kernel_lamb_lr)(const struct cuda_table table, const amp_optim rule, const double *sums,
                       struct cuda_update *updates) {
    __shared__ double values[CUDA_THREADS];
    const uint32_t i = blockIdx.x, begin = table.first_chunks[i], end = table.first_chunks[i + 1];
    double squares[2];
    if (updates[i].flags & CUDA_SKIPPED) return; // and nobody wrote its sums
    for (int k = 0; k < 2; k++) {
        double mine = 0.0;
        for (uint32_t c = begin + threadIdx.x; c < end; c += CUDA_THREADS) mine = mine + sums[2 * (uint64_t)c + k];
        sum_block(values, mine);
        squares[k] = values[0];
        __syncthreads();
    }
    if (threadIdx.x == 0) updates[i].lr = cuda_lamb_lr(&rule, squares[0], squares[1]);
}

// ---- split masters

KERNEL(kernel_split)(const struct cuda_table table, int join) {
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_tensor t = cuda_tensor_of(&table, chunk.tensor, 3);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_split_group(&t, &at, join);
    }
}

KERNEL(kernel_squares)(const struct cuda_table table, double *sums) {
    __shared__ double values[CUDA_THREADS];
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];
    const struct cuda_tensor t = cuda_as_fp32(cuda_tensor_of(&table, chunk.tensor, 2));
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    double sum = 0.0;
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const struct cuda_range at = cuda_range_of(&chunk, t.shape, g);
        cuda_squares_group(&t, &at, &sum);
    }
    sum_block(values, sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = values[0];
}

// ---- launches

cudaError_t cuda_launch_split(const struct cuda_table *table, int join, cudaStream_t stream) {
    return launch(kernel_split, table->n_chunks, stream, *table, join);
}

cudaError_t cuda_launch_squares(const struct cuda_table *table, double *sums, cudaStream_t stream) {
    return launch(kernel_squares, table->n_chunks, stream, *table, sums);
}

cudaError_t cuda_launch_prepare(const struct cuda_step *step, cudaStream_t stream) {
    return launch(kernel_prepare, (step->n_tensors + CUDA_THREADS - 1) / CUDA_THREADS, stream, *step);
}

cudaError_t cuda_launch_step(enum cuda_rule rule, const struct cuda_table *table, const struct cuda_update *u,
                             const struct cuda_factor *inv_scale, const float *found_inf, cudaStream_t stream) {
    typedef void kernel_fn(struct cuda_table, struct cuda_update, struct cuda_factor, const float *);
    static kernel_fn *const kernels[CUDA_KNOWN_RULES] = {
#define KERNEL_OF(kernel, constant, moments) kernel_step<CUDA_##constant>,
        CUDA_KNOWN_RULE_MAP(KERNEL_OF)
#undef KERNEL_OF
    };
    return launch(kernels[rule], table->n_chunks, stream, *table, *u, *inv_scale, found_inf);
}

cudaError_t cuda_launch_update(enum cuda_rule rule, bool stochastic, const struct cuda_table *table,
                               const struct cuda_update *updates, cudaStream_t stream) {
    typedef void kernel_fn(struct cuda_table, const struct cuda_update *);
    static kernel_fn *const kernels[CUDA_RULES][2] = {
#define KERNEL_OF(kernel, constant, moments) \
    { kernel_update<CUDA_##constant, false>, kernel_update<CUDA_##constant, true> },
        CUDA_RULE_MAP(KERNEL_OF)
#undef KERNEL_OF
    };
    return launch(kernels[rule][stochastic], table->n_chunks, stream, *table, updates);
}

cudaError_t cuda_launch_adam8(const struct cuda_table *all, const struct cuda_table *codes,
                              const struct cuda_update *updates, cudaStream_t stream) {
    return launch(kernel_adam8, codes->n_chunks, stream, *all, *codes, updates);
}

cudaError_t cuda_launch_lamb(const struct cuda_table *table, const amp_optim *rule, struct cuda_update *updates,
                             double *sums, cudaStream_t stream) {
    const struct cuda_update *read = updates;
    const double *squares = sums;
    const cudaError_t error = launch(kernel_lamb_moments, table->n_chunks, stream, *table, read, sums);
    if (error != cudaSuccess) return error;
    return launch(kernel_lamb_lr, table->n_tensors, stream, *table, *rule, squares, updates);
}
