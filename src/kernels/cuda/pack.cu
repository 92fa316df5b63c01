// SPDX-License-Identifier: Apache-2.0
// Packed tensors: 16 threads a group, one a lane, so that a code's word is one thread's; what a group's lanes have seen
// meets in shared memory.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.h"

#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS) name

static __device__ __forceinline__ uint64_t my_group() {
    return (uint64_t)blockIdx.x * CUDA_PACK_GROUPS + threadIdx.x / AMP__PACK_LANES;
}
static __device__ __forceinline__ uint32_t my_lane() { return threadIdx.x % AMP__PACK_LANES; }

// run(type) with the type as a constant.
template <uint32_t T> struct constant {
    __device__ constexpr operator uint32_t() const { return T; }
};
template <typename Run> static __device__ __forceinline__ void by_type(uint32_t type, Run run) {
    if (type == AMP_FLOAT32) run(constant<AMP_FLOAT32>());
    else if (type == AMP_FLOAT16) run(constant<AMP_FLOAT16>());
    else run(constant<AMP_BFLOAT16>());
}
// And with the rows, where they are all there.
template <typename Run> static __device__ __forceinline__ void by_rows(uint32_t rows, Run run) {
    if (rows == AMP__PACK_ROWS) run(constant<AMP__PACK_ROWS>());
    else run(rows);
}

// What each lane of this thread's group has seen. Every thread of the block comes here.
struct seen_lanes {
    float min[CUDA_THREADS], max[CUDA_THREADS];
    uint32_t nan[CUDA_THREADS];
};
static __device__ __forceinline__ struct cuda_pack_seen of_group(struct seen_lanes &lanes,
                                                                 const struct cuda_pack_seen &mine) {
    struct cuda_pack_seen all = mine;
    lanes.min[threadIdx.x] = mine.min, lanes.max[threadIdx.x] = mine.max, lanes.nan[threadIdx.x] = mine.nan;
    __syncthreads();
    CUDA_UNROLL
    for (uint32_t lane = 0; lane < AMP__PACK_LANES; lane++) {
        const uint32_t i = threadIdx.x / AMP__PACK_LANES * AMP__PACK_LANES + lane;
        const struct cuda_pack_seen one = { lanes.min[i], lanes.max[i], lanes.nan[i] };
        cuda_pack_see(&all, &one);
    }
    return all;
}

// This thread's rows, and what its group has seen.
struct loaded {
    uint64_t group;
    uint32_t lane, there, rows, spoilt; // spoilt: by this thread's rows
    float x[AMP__PACK_ROWS];
    struct cuda_pack_seen all;
};
static __device__ __forceinline__ void load_row(struct loaded &l, const struct cuda_pack &p, struct seen_lanes &lanes) {
    struct cuda_pack_seen mine;
    l.group = my_group(), l.lane = my_lane();
    l.there = l.group < cuda_pack_groups(&p);
    l.rows = l.there ? cuda_pack_rows(&p, l.group, l.lane) : 0;
    by_type(p.type, [&](auto type) {
        by_rows(l.rows, [&](auto rows) {
            mine = cuda_pack_load(l.x, &p, type, l.group * AMP__PACK_GROUP + l.lane, rows);
        });
    });
    l.spoilt = cuda_pack_nonfinite(&mine);
    l.all = of_group(lanes, mine);
    if (p.found_inf && l.spoilt) *p.found_inf = 1.0f; // all that find something write the same
}

template <int bits> KERNEL(kernel_pack)(const struct cuda_pack p) {
    __shared__ struct seen_lanes lanes;
    struct loaded l;
    load_row(l, p, lanes);
    if (l.there) by_rows(l.rows, [&](auto rows) { cuda_pack_lane(&p, bits, rows, l.group, l.lane, l.x, &l.all); });
}

KERNEL(kernel_pack_mask)(const struct cuda_pack p) {
    __shared__ struct seen_lanes lanes;
    __shared__ uint32_t masks[CUDA_THREADS];
    struct loaded l;
    load_row(l, p, lanes);
    uint32_t inexact = l.spoilt;
    masks[threadIdx.x] = cuda_pack_mask(l.x, l.all.max, &inexact);
    __syncthreads();
    if (p.inexact && inexact) *p.inexact = 1.0f;
    if (!l.there) return;
    if (l.lane < 8) cuda_pack_codes(&p, 1, l.group)[l.lane] = cuda_pack_gather(&masks[threadIdx.x - l.lane], l.lane);
    if (l.lane == 0) *cuda_pack_header(&p, 1, l.group) = cuda_pack_mask_header(&l.all);
}

template <int bits> KERNEL(kernel_unpack)(const struct cuda_pack p) {
    const uint64_t group = my_group();
    if (group >= cuda_pack_groups(&p)) return;
    by_type(p.type, [&](auto type) {
        float x[AMP__PACK_ROWS];
        if (bits == 1) cuda_unpack_mask(x, &p, type, group, my_lane());
        else cuda_unpack_lane(x, &p, type, bits, group, my_lane());
        by_rows(cuda_pack_rows(&p, group, my_lane()),
                [&](auto rows) { cuda_unpack_store(x, &p, type, group * AMP__PACK_GROUP + my_lane(), rows); });
    });
}

static uint32_t blocks_of(const struct cuda_pack *p) {
    return (uint32_t)((cuda_pack_groups(p) + CUDA_PACK_GROUPS - 1) / CUDA_PACK_GROUPS);
}

cudaError_t cuda_launch_pack(const struct cuda_pack *p, cudaStream_t stream) {
    return launch(p->bits == 8   ? kernel_pack<8>
                  : p->bits == 4 ? kernel_pack<4>
                  : p->bits == 2 ? kernel_pack<2>
                                 : kernel_pack_mask,
                  blocks_of(p), stream, *p);
}

cudaError_t cuda_launch_unpack(const struct cuda_pack *p, cudaStream_t stream) {
    return launch(p->bits == 8   ? kernel_unpack<8>
                  : p->bits == 4 ? kernel_unpack<4>
                  : p->bits == 2 ? kernel_unpack<2>
                                 : kernel_unpack<1>,
                  blocks_of(p), stream, *p);
}
