// SPDX-License-Identifier: Apache-2.0
// How a block goes through its chunk: threads take its groups in turn.
#pragma once

#include "kernels/cuda/lists.h"

// The types of a tensor's spans as a constant: span k's in bits 4k to 4k + 2, as in its shape.
enum { F32 = AMP_FLOAT32, F16 = AMP_FLOAT16, BF16 = AMP_BFLOAT16 };
__host__ __device__ constexpr uint32_t types(uint32_t a, uint32_t b = 0, uint32_t c = 0) { return a | b << 4 | c << 8; }

// The shape of an even tensor of such types.
__host__ __device__ constexpr uint32_t even_shape(uint32_t types) {
    bool spread = false;
    for (uint32_t rest = types; rest; rest >>= 4) spread = spread || (rest & 7) == AMP_FLOAT32;
    return types | CUDA_ALL_WIDE | (uint32_t)spread << 27 | 1u << 28;
}

// What a thread fetched of SOURCES spans from FIRST on.
template <int FIRST, int SOURCES> struct fetched {
    uint32_t words[SOURCES][CUDA_GROUP];

    __device__ __forceinline__ void fetch(const struct cuda_tensor &t, const struct cuda_range &at) {
        CUDA_UNROLL
        for (int k = 0; k < SOURCES; k++) cuda_fetch(words[k], &t, FIRST + k, &at);
    }
    __device__ __forceinline__ void widen(float v[CUDA_GROUP], const struct cuda_tensor &t, int k) const {
        cuda_widen(v, words[k], CUDA_TYPE(t.shape, FIRST + k), CUDA_GROUP);
    }
};

// Element 0 becomes what is element `n`. No tensor has 64 bits here.
static __device__ __forceinline__ void move_on(struct cuda_tensor *t, uint64_t n) {
    CUDA_UNROLL
    for (int k = 0; k < CUDA_SPANS; k++)
        if (CUDA_TYPE(t->shape, k)) t->data[k] += n * (CUDA_TYPE(t->shape, k) == AMP_FLOAT32 ? 4 : 2);
}

// How many groups a thread has under way: of a single source of 16 bits twice as many, for as many bytes.
template <uint32_t TYPES, int FIRST, int SOURCES>
constexpr uint32_t AHEAD = SOURCES == 1 && (TYPES >> 4 * FIRST & 7) != F32 ? 4 : 2;

// This thread's groups of `tiles` whole tiles from element `begin` on, fetched ahead: the next ones' loads are under
// way when `even` stores this one. The shape, and where groups lie from here, are known when this is compiled.
template <uint32_t TYPES, int FIRST, int SOURCES, typename Even>
static __device__ __forceinline__ void walk_tiles(struct cuda_tensor t, uint64_t begin, uint32_t tiles, Even even) {
    constexpr uint32_t N = AHEAD<TYPES, FIRST, SOURCES>;
    fetched<FIRST, SOURCES> x[N];
    const auto tile = [&](uint32_t i) { return cuda_range_in_tile(i * CUDA_TILE, even_shape(TYPES), 0); };
    t.shape = even_shape(TYPES);
    move_on(&t, cuda_range_in_tile(begin, t.shape, threadIdx.x).first);
    CUDA_UNROLL
    for (uint32_t i = 0; i + 1 < N; i++)
        if (i < tiles) x[i].fetch(t, tile(i));
    for (uint32_t left = tiles;; left -= N, move_on(&t, N * CUDA_TILE)) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < N; i++) {
            if (left >= i + N) x[(i + N - 1) % N].fetch(t, tile(i + N - 1));
            even(t, tile(i), x[i]);
            if (left == i + 1) return;
        }
    }
}

// The groups of this block's chunk that are this thread's. Whole tiles of even tensors, whose types are one of TYPES,
// go to `even`; the rest to `other`, which loads and stores for itself.
template <int FIRST, int SOURCES, uint32_t... TYPES, typename Even, typename Other>
static __device__ __forceinline__ void walk(const struct cuda_tensor &t, const struct cuda_chunk &chunk, Even even,
                                            Other other) {
    const uint32_t whole = cuda_tiles(&chunk, t.shape), groups = cuda_groups(&chunk, t.shape);
    const uint32_t has = t.shape & 0x00777777u;
    const uint64_t begin = chunk.begin + cuda_head(&chunk, t.shape);
    uint32_t tiles = 0;
    if (whole) ((has == TYPES ? walk_tiles<TYPES, FIRST, SOURCES>(t, begin, tiles = whole, even) : (void)0), ...);
    for (uint32_t g = tiles * CUDA_THREADS + threadIdx.x; g < groups; g += CUDA_THREADS)
        other(t, cuda_range_of(&chunk, t.shape, g));
}
