// SPDX-License-Identifier: Apache-2.0
// Kernels over lists: a block a chunk, threads take its groups in turn.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sum.cuh"
#include "kernels/cuda/walk.cuh"

// So many blocks, at least, find registers on a multiprocessor: half of its threads, or three eighths.
#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS, 4) name
#define LARGE_KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS, 3) name

typedef struct cuda_tensor tensor;
typedef struct cuda_range place;

#define CHUNK(n_spans)                                                                                                 \
    const struct cuda_chunk chunk = table.chunks[blockIdx.x];                                                          \
    const tensor t = cuda_tensor_of(&table, chunk.tensor, n_spans)

// All blocks that find something write the same.
static __device__ __forceinline__ void report_bad(const struct cuda_found &found, uint32_t tensor, uint32_t nonfinite) {
    if (!__syncthreads_or((int)nonfinite) || threadIdx.x != 0) return;
    if (found.found_inf) *found.found_inf = 1.0f;
    if (found.first) atomicMin(found.first, found.base + tensor);
}

KERNEL(kernel_cast)(const struct cuda_table table, const float *only_if) {
    if (only_if && *only_if == 0.0f) return;
    CHUNK(2);
    walk<1, 1, types(F16, F32), types(BF16, F32), types(F32, F16), types(F32, BF16), types(F32, F32), types(F16, F16),
         types(BF16, BF16)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<1, 1> &x) {
            float v[CUDA_GROUP];
            if (CUDA_TYPE(t.shape, 0) == CUDA_TYPE(t.shape, 1)) {
                cuda_put(x.words[0], &t, 0, &at);
                return;
            }
            x.widen(v, t, 0);
            (void)cuda_store_f32(v, &t, 0, &at);
        },
        [&](const tensor &t, const place &at) { cuda_cast_group(&t, &at); });
}

KERNEL(kernel_reconcile)(const struct cuda_table table, const float *norms, uint32_t low) {
    CHUNK(2);
    const bool all = norms && norms[chunk.tensor] == 0.0f;
    walk<0, 2, types(F32, F32), types(F32, F16), types(F32, BF16)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<0, 2> &x) {
            float exact[CUDA_GROUP], shown[CUDA_GROUP];
            x.widen(exact, t, 0);
            x.widen(shown, t, 1);
            cuda_reconcile_values(&t, &at, exact, shown, all, low);
        },
        [&](const tensor &t, const place &at) { cuda_reconcile_group(&t, &at, all, low); });
}

KERNEL(kernel_round)(const struct cuda_table table, uint32_t low, const struct cuda_found found) {
    uint32_t nonfinite = 0;
    CHUNK(2);
    walk<1, 1, types(F32, F32)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<1, 1> &x) {
            float v[CUDA_GROUP];
            x.widen(v, t, 0);
            nonfinite |= cuda_round_values(&t, &at, v, low);
        },
        [&](const tensor &t, const place &at) { nonfinite |= cuda_round_group(&t, &at, low); });
    report_bad(found, chunk.tensor, nonfinite);
}

KERNEL(kernel_clamp)(const struct cuda_table table, float limit) {
    CHUNK(2);
    walk<1, 1, types(F32, F32), types(F16, F16), types(BF16, BF16)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<1, 1> &x) {
            float v[CUDA_GROUP];
            x.widen(v, t, 0);
            cuda_clamp_values(&t, &at, v, limit);
        },
        [&](const tensor &t, const place &at) { cuda_clamp_group(&t, &at, limit); });
}

KERNEL(kernel_zero)(const struct cuda_table table) {
    CHUNK(1);
    const uint32_t groups = cuda_groups(&chunk, t.shape);
    for (uint32_t g = threadIdx.x; g < groups; g += CUDA_THREADS) {
        const place at = cuda_range_of(&chunk, t.shape, g);
        cuda_zero_group(&t, &at);
    }
}

KERNEL(kernel_scale)(const struct cuda_table table, const struct cuda_factor scale, const struct cuda_found found) {
    const float by = cuda_factor_of(&scale);
    if (scale.how == CUDA_CLIP && by == 1.0f) return; // in place: most of the time there is nothing to clip
    uint32_t nonfinite = 0;
    CHUNK(2);
    walk<1, 1, types(F32, F32), types(F16, F16), types(BF16, BF16), types(F32, F16), types(F32, BF16)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<1, 1> &x) {
            float v[CUDA_GROUP];
            x.widen(v, t, 0);
            nonfinite |= cuda_scale_values(&t, &at, v, by);
        },
        [&](const tensor &t, const place &at) { nonfinite |= cuda_scale_group(&t, &at, by); });
    report_bad(found, chunk.tensor, nonfinite);
}

// Of two sources: `values` takes them as floats, `group` whatever their types are.
template <decltype(cuda_axpby_values) values, decltype(cuda_axpby_group) group>
static __device__ __forceinline__ void walk_two(const struct cuda_table &table, const struct cuda_factor &a,
                                                const struct cuda_factor &b, const struct cuda_found &found) {
    const float by_a = cuda_factor_of(&a), by_b = cuda_factor_of(&b);
    uint32_t nonfinite = 0;
    CHUNK(3);
    walk<1, 2, types(F32, F32, F32), types(F16, F16, F16), types(BF16, BF16, BF16), types(F32, F16, F32),
         types(F32, BF16, F32)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<1, 2> &given) {
            float x[CUDA_GROUP], y[CUDA_GROUP];
            given.widen(x, t, 0);
            given.widen(y, t, 1);
            nonfinite |= values(&t, &at, x, y, by_a, by_b);
        },
        [&](const tensor &t, const place &at) { nonfinite |= group(&t, &at, by_a, by_b); });
    report_bad(found, chunk.tensor, nonfinite);
}

LARGE_KERNEL(kernel_axpby)(const struct cuda_table table, const struct cuda_factor a, const struct cuda_factor b,
                           const struct cuda_found found) {
    walk_two<cuda_axpby_values, cuda_axpby_group>(table, a, b, found);
}

LARGE_KERNEL(kernel_add)(const struct cuda_table table, const struct cuda_factor a, const struct cuda_factor b,
                         const struct cuda_found found) {
    walk_two<cuda_add_values, cuda_add_group>(table, a, b, found);
}

// ---- sums of squares

static __device__ __forceinline__ double sum_strided(const double *values, uint32_t begin, uint32_t end) {
    double sum = 0.0;
    for (uint32_t i = begin + threadIdx.x; i < end; i += CUDA_THREADS) sum = sum + values[i];
    return sum;
}

// sums[chunk] = sum of squares of the chunk.
KERNEL(kernel_check)(const struct cuda_table table, const struct cuda_factor scale, const struct cuda_factor factor,
                          double *sums, const struct cuda_found found) {
    __shared__ double values[CUDA_THREADS];
    const float by = cuda_factor_of(&scale), and_by = cuda_factor_of(&factor);
    uint32_t nonfinite = 0;
    double sum = 0.0;
    CHUNK(1);
    walk<0, 1, types(F32), types(F16), types(BF16)>(
        t, chunk,
        [&](const tensor &t, const place &at, const fetched<0, 1> &x) {
            float v[CUDA_GROUP];
            x.widen(v, t, 0);
            cuda_check_values(&at, v, by, and_by, &sum);
        },
        [&](const tensor &t, const place &at) { nonfinite |= cuda_check_group(&t, &at, by, and_by, &sum); });
    report_bad(found, chunk.tensor, nonfinite | cuda_nonfinite_f64(sum));
    sum_block(values, sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = values[0];
}

// A block a tensor; the last one to finish, whichever that is, adds the tensors' sums in their order. *ticket is 0
// before and after.
KERNEL(kernel_norms)(const struct cuda_table table, const double *sums, double *tensor_sums, float *norms, float *norm,
                          uint32_t *ticket) {
    __shared__ double values[CUDA_THREADS];
    __shared__ uint32_t is_last;
    const uint32_t i = blockIdx.x;
    sum_block(values, sum_strided(sums, table.first_chunks[i], table.first_chunks[i + 1]));
    if (threadIdx.x == 0) {
        tensor_sums[i] = values[0];
        if (norms) norms[i] = (float)sqrt(values[0]);
        __threadfence();
        is_last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence(); // by the thread that took the ticket; the barrier hands it to the others
    }
    __syncthreads();
    if (!is_last || !norm) return;
    sum_block(values, sum_strided((const double *)tensor_sums, 0, table.n_tensors));
    if (threadIdx.x == 0) *norm = (float)sqrt(values[0]);
}

// ---- launches

cudaError_t cuda_launch_cast(const struct cuda_table *table, const float *only_if, cudaStream_t stream) {
    return launch(kernel_cast, table->n_chunks, stream, *table, only_if);
}

cudaError_t cuda_launch_reconcile(const struct cuda_table *table, const float *norms, uint32_t low,
                                  cudaStream_t stream) {
    return launch(kernel_reconcile, table->n_chunks, stream, *table, norms, low);
}

cudaError_t cuda_launch_round(const struct cuda_table *table, uint32_t low, const struct cuda_found *found,
                              cudaStream_t stream) {
    return launch(kernel_round, table->n_chunks, stream, *table, low, *found);
}

cudaError_t cuda_launch_clamp(const struct cuda_table *table, float limit, cudaStream_t stream) {
    return launch(kernel_clamp, table->n_chunks, stream, *table, limit);
}

cudaError_t cuda_launch_zero(const struct cuda_table *table, cudaStream_t stream) {
    return launch(kernel_zero, table->n_chunks, stream, *table);
}

cudaError_t cuda_launch_scale(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_found *found, cudaStream_t stream) {
    return launch(kernel_scale, table->n_chunks, stream, *table, *scale, *found);
}

cudaError_t cuda_launch_axpby(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                              const struct cuda_found *found, cudaStream_t stream) {
    return launch(kernel_axpby, table->n_chunks, stream, *table, *a, *b, *found);
}

cudaError_t cuda_launch_add(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                            const struct cuda_found *found, cudaStream_t stream) {
    return launch(kernel_add, table->n_chunks, stream, *table, *a, *b, *found);
}

cudaError_t cuda_launch_check(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_factor *factor, double *sums, const struct cuda_found *found,
                              cudaStream_t stream) {
    return launch(kernel_check, table->n_chunks, stream, *table, *scale, *factor, sums, *found);
}

cudaError_t cuda_launch_norms(const struct cuda_table *table, const double *sums, double *tensor_sums, float *norms,
                              float *norm, uint32_t *ticket, cudaStream_t stream) {
    return launch(kernel_norms, table->n_tensors, stream, *table, sums, tensor_sums, norms, norm, ticket);
}
