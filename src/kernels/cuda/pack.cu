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

// Every thread of the block.
static __device__ __forceinline__ struct cuda_pack_seen of_group(struct cuda_pack_seen *seen,
                                                                 const struct cuda_pack_seen &mine) {
    struct cuda_pack_seen all = mine;
    seen[threadIdx.x] = mine;
    __syncthreads();
    for (uint32_t lane = 0; lane < AMP__PACK_LANES; lane++)
        cuda_pack_see(&all, &seen[threadIdx.x / AMP__PACK_LANES * AMP__PACK_LANES + lane]);
    return all;
}

template <int bits> KERNEL(kernel_pack)(const struct cuda_pack p) {
    __shared__ struct cuda_pack_seen seen[CUDA_THREADS];
    const uint64_t group = my_group();
    const uint32_t lane = my_lane(), there = group < cuda_pack_groups(&p);
    float x[AMP__PACK_ROWS];
    const uint32_t rows = there ? cuda_pack_rows(&p, group, lane) : 0;
    const struct cuda_pack_seen mine = cuda_pack_load(x, &p, group * AMP__PACK_GROUP + lane, rows);
    const struct cuda_pack_seen all = of_group(seen, mine);
    if (p.found_inf && mine.nonfinite) *p.found_inf = 1.0f; // all that find something write the same
    if (there) cuda_pack_lane(&p, bits, group, lane, x, &all);
}

KERNEL(kernel_pack_mask)(const struct cuda_pack p) {
    __shared__ struct cuda_pack_seen seen[CUDA_THREADS];
    __shared__ uint32_t masks[CUDA_THREADS];
    const uint64_t group = my_group();
    const uint32_t lane = my_lane(), there = group < cuda_pack_groups(&p);
    float x[AMP__PACK_ROWS];
    const uint32_t rows = there ? cuda_pack_rows(&p, group, lane) : 0;
    const struct cuda_pack_seen mine = cuda_pack_load(x, &p, group * AMP__PACK_GROUP + lane, rows);
    const struct cuda_pack_seen all = of_group(seen, mine);
    uint32_t inexact = mine.nonfinite;
    masks[threadIdx.x] = cuda_pack_mask(x, all.max, &inexact);
    __syncthreads();
    if (p.found_inf && mine.nonfinite) *p.found_inf = 1.0f;
    if (p.inexact && inexact) *p.inexact = 1.0f;
    if (!there) return;
    if (lane < 8) cuda_pack_codes(&p, 1, group)[lane] = cuda_pack_gather(&masks[threadIdx.x - lane], lane);
    if (lane == 0) *cuda_pack_header(&p, 1, group) = cuda_pack_mask_header(&all);
}

template <int bits> KERNEL(kernel_unpack)(const struct cuda_pack p) {
    const uint64_t group = my_group();
    float x[AMP__PACK_ROWS];
    if (group >= cuda_pack_groups(&p)) return;
    if (bits == 1) cuda_unpack_mask(x, &p, group, my_lane());
    else cuda_unpack_lane(x, &p, bits, group, my_lane());
    cuda_unpack_store(x, &p, group, my_lane());
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
