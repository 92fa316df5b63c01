// SPDX-License-Identifier: Apache-2.0
// Packed tensors. To pack, 8 threads a group, two lanes each, so that a code's word is one thread's. The extremes of
// the threads, which are of one warp, meet in shared memory. To unpack, 16 threads a group, one a lane.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.h"

#define KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS) name
// Three eighths of a multiprocessor's threads, at least, find registers.
#define LARGE_KERNEL(name) static __global__ void __launch_bounds__(CUDA_THREADS, 3) name
// Before compute capability 9.0 that bound would put registers into memory.
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define MASK_KERNEL KERNEL
#else
#define MASK_KERNEL LARGE_KERNEL
#endif

template <int lanes = AMP__PACK_LANES> static __device__ __forceinline__ uint64_t my_group() {
    return (uint64_t)blockIdx.x * (CUDA_THREADS / lanes) + threadIdx.x / lanes;
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

// The extremes of each pair of lanes of this thread's group. Every thread of the warp comes here.
struct seen_pairs {
    float min[CUDA_THREADS], max[CUDA_THREADS];
};
static __device__ __forceinline__ struct cuda_pack_seen of_group(struct seen_pairs &pairs,
                                                                 const struct cuda_pack_seen &mine) {
    struct cuda_pack_seen all = mine;
    pairs.min[threadIdx.x] = mine.min, pairs.max[threadIdx.x] = mine.max;
    __syncwarp();
    CUDA_UNROLL
    for (uint32_t pair = 0; pair < CUDA_PACK_PAIRS; pair++) {
        const uint32_t i = threadIdx.x / CUDA_PACK_PAIRS * CUDA_PACK_PAIRS + pair;
        cuda_pack_see(&all, pairs.min[i], pairs.max[i]);
    }
    return all;
}

// This thread's items.
struct loaded {
    uint64_t group;
    uint32_t lane, left, spoilt; // spoilt: by these items
    float x[CUDA_PACK_ITEMS];
    struct cuda_pack_seen mine;
};
static __device__ __forceinline__ void load_pair(struct loaded &l, const struct cuda_pack &p) {
    l.group = my_group<CUDA_PACK_PAIRS>(), l.lane = 2 * (threadIdx.x % CUDA_PACK_PAIRS);
    l.left = cuda_pack_left(&p, l.group);
    by_type(p.type, [&](auto type) {
        if (l.left == AMP__PACK_GROUP && cuda_pack_aligned(&p))
            l.mine = cuda_pack_load(l.x, &p, type, l.group, l.lane, AMP__PACK_GROUP, true);
        else l.mine = cuda_pack_load(l.x, &p, type, l.group, l.lane, l.left, false);
    });
    l.spoilt = cuda_pack_nonfinite(&l.mine) && l.left;
    if (p.found_inf && l.spoilt) *p.found_inf = 1.0f; // all that find something write the same
}

template <int bits> LARGE_KERNEL(kernel_pack)(const struct cuda_pack p) {
    __shared__ struct seen_pairs pairs;
    struct loaded l;
    load_pair(l, p);
    const struct cuda_pack_seen all = of_group(pairs, l.mine);
    if (l.left == AMP__PACK_GROUP) cuda_pack_pair(&p, bits, AMP__PACK_GROUP, l.group, l.lane, l.x, &all);
    else if (l.left) cuda_pack_pair(&p, bits, l.left, l.group, l.lane, l.x, &all);
}

MASK_KERNEL(kernel_pack_mask)(const struct cuda_pack p) {
    __shared__ struct seen_pairs pairs;
    __shared__ uint32_t masks[CUDA_THREADS];
    struct loaded l;
    float least;
    load_pair(l, p);
    const struct cuda_pack_seen all = of_group(pairs, l.mine); // before the masks: fewer registers
    const uint32_t mask = cuda_pack_mask(l.x, &least);
    masks[threadIdx.x] = mask;
    __syncwarp();
    if (p.inexact && (l.spoilt || (mask && least != all.max))) *p.inexact = 1.0f;
    if (!l.left) return;
    cuda_pack_codes(&p, 1, l.group)[l.lane / 2] = cuda_pack_gather(&masks[threadIdx.x - l.lane / 2], l.lane / 2);
    if (l.lane == 0) *cuda_pack_header(&p, 1, l.group) = cuda_pack_mask_header(&all);
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

static uint32_t blocks_of(const struct cuda_pack *p, uint64_t groups) {
    return (uint32_t)((cuda_pack_groups(p) + groups - 1) / groups);
}

cudaError_t cuda_launch_pack(const struct cuda_pack *p, cudaStream_t stream) {
    return launch(p->bits == 8   ? kernel_pack<8>
                  : p->bits == 4 ? kernel_pack<4>
                  : p->bits == 2 ? kernel_pack<2>
                                 : kernel_pack_mask,
                  blocks_of(p, CUDA_THREADS / CUDA_PACK_PAIRS), stream, *p);
}

cudaError_t cuda_launch_unpack(const struct cuda_pack *p, cudaStream_t stream) {
    return launch(p->bits == 8   ? kernel_unpack<8>
                  : p->bits == 4 ? kernel_unpack<4>
                  : p->bits == 2 ? kernel_unpack<2>
                                 : kernel_unpack<1>,
                  blocks_of(p, CUDA_PACK_GROUPS), stream, *p);
}
