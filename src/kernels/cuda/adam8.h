/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adam with moments in 8 bits (amp_optim.h): kernels/ref/update.c's adam8 to the bit, with the part of one thread as
 * functions for nvcc and for C. 32 threads have a block of 256 elements, each of them four and four half a block
 * further. Between the two passes the threads of a block exchange its extremes.
 *
 * Two tables. The one of update.h has gradient, parameter and copy, without chunks of these tensors. The other has
 * codes and scales, and in place of further addresses the keys of random numbers and the elements before the tensor.
 * Its chunks divide the work: a chunk has the blocks that begin in it.
 */
#ifndef AMP_KERNELS_CUDA_ADAM8_H
#define AMP_KERNELS_CUDA_ADAM8_H

#include "kernels/bytes.h"
#include "kernels/cuda/update.h"

enum { CUDA_CODES, CUDA_SCALES = CUDA_CODES + 2, CUDA_KEYS = CUDA_SCALES + 2, CUDA_BEFORE, CUDA_CODED_SPANS };
enum { CUDA_LANES = AMP__BYTES_BLOCK / CUDA_GROUP, CUDA_BLOCKS = CUDA_THREADS / CUDA_LANES /* under way at a time */ };

/* ---- which blocks ---- */

struct cuda_blocks {
    uint64_t begin, end;
};

CUDA_BOTH struct cuda_blocks cuda_blocks_of(const struct cuda_chunk *chunk) {
    const struct cuda_blocks blocks = { (chunk->begin + AMP__BYTES_BLOCK - 1) / AMP__BYTES_BLOCK,
                                        (chunk->begin + chunk->count + AMP__BYTES_BLOCK - 1) / AMP__BYTES_BLOCK };
    return blocks;
}

/* A tensor with codes: `all` without a head, so that its groups begin where those of the blocks do. */
struct cuda_coded {
    struct cuda_tensor all;
    uint8_t *codes[2];
    float *scales[2];
    uint32_t is_even; /* four codes are one load */
};

CUDA_BOTH struct cuda_coded cuda_coded_of(const struct cuda_table *all, const struct cuda_table *codes,
                                          uint32_t tensor) {
    const struct cuda_tensor own = cuda_tensor_of(codes, tensor, CUDA_KEYS);
    struct cuda_coded c;
    c.all = cuda_tensor_of(all, tensor, CUDA_MOMENTS);
    c.all.size = own.size;
    CUDA_UNROLL
    for (int k = 0; k < 2; k++) {
        c.codes[k] = own.data[CUDA_CODES + k];
        c.scales[k] = (float *)(void *)own.data[CUDA_SCALES + k];
    }
    c.is_even = (((uintptr_t)c.codes[0] | (uintptr_t)c.codes[1]) & 3) == 0;
    return c;
}

/* Half `half` of this lane's elements of a block. */
CUDA_BOTH struct cuda_half cuda_half_of_block(const struct cuda_coded *c, uint64_t block, uint32_t lane, int half) {
    struct cuda_half at;
    at.first = block * AMP__BYTES_BLOCK + (uint32_t)half * (AMP__BYTES_BLOCK / 2) + lane * CUDA_HALF;
    const uint64_t left = at.first < c->all.size ? c->all.size - at.first : 0;
    at.count = left < CUDA_HALF ? (uint32_t)left : CUDA_HALF;
    at.is_whole = at.count == CUDA_HALF;
    return at;
}

/* ---- codes in memory: four to a word, the first in its lowest byte ---- */

CUDA_BOTH uint32_t cuda_load_codes(const struct cuda_coded *c, int k, const struct cuda_half *at) {
    uint32_t word = 0;
    if (c->is_even && at->is_whole) return *(const uint32_t *)(const void *)(c->codes[k] + at->first);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++)
        if (i < at->count) word |= (uint32_t)c->codes[k][at->first + i] << 8 * i;
    return word;
}

CUDA_BOTH void cuda_store_codes(uint32_t word, const struct cuda_coded *c, int k, const struct cuda_half *at) {
    if (c->is_even && at->is_whole) {
        *(uint32_t *)(void *)(c->codes[k] + at->first) = word;
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++)
        if (i < at->count) c->codes[k][at->first + i] = (uint8_t)(word >> 8 * i);
}

/* ---- the first pass: parameter, moments and their extremes ---- */

struct cuda_extremes {
    float m, z; /* m infinite: the block is lost */
} __attribute__((aligned(8))); /* one access to shared memory */

CUDA_BOTH void cuda_see_moments(struct cuda_extremes *all, const struct cuda_extremes *more) {
    all->m = fmaxf(all->m, more->m), all->z = fmaxf(all->z, more->z);
}

/* The moments of a lane between the passes. */
struct cuda_lane {
    float m[2][CUDA_HALF], z[2][CUDA_HALF];
};

CUDA_BOTH void cuda_adam8(struct cuda_values *x, const struct cuda_update *u) {
    if (!(u->flags & CUDA_DECOUPLED)) x->g = cuda_decayed(x->g, x, u);
    x->m[0] = cuda_averaged(x->m[0], x->g, u);
    const float v = u->beta2 * (x->m[1] * x->m[1]) + u->rest2 * x->g * x->g;
    x->m[1] = sqrtf(v > AMP__BYTES_MOST_V ? AMP__BYTES_MOST_V : v);
    x->u = x->m[0] * (1.0f / u->correction1) / (x->m[1] * (1.0f / sqrtf(u->correction2)) + u->eps);
    if (u->flags & CUDA_DECOUPLED) x->u = cuda_decayed(x->u, x, u);
}

CUDA_BOTH void cuda_step_half(float m[CUDA_HALF], float z[CUDA_HALF], const struct cuda_coded *c,
                              const struct cuda_update *u, uint64_t block, const struct cuda_half *at,
                              struct cuda_extremes *seen) {
    const uint32_t codes[2] = { cuda_load_codes(c, 0, at), cuda_load_codes(c, 1, at) };
    const float scales[2] = { c->scales[0][block], c->scales[1][block] };
    float g[CUDA_HALF], p[CUDA_HALF];
    cuda_load_values(p, g, true, &c->all, at);
    cuda_unscale(g, u);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++) {
        struct cuda_values x = { g[i], p[i], 0.0f, { 0.0f, 0.0f, 0.0f } };
        x.m[0] = amp__bytes_m((uint8_t)(codes[0] >> 8 * i), scales[0]);
        x.m[1] = amp__bytes_z((uint8_t)(codes[1] >> 8 * i), scales[1]);
        cuda_adam8(&x, u);
        const uint32_t there = i < at->count;
        m[i] = there ? x.m[0] : 0.0f, z[i] = there ? x.m[1] : 0.0f;
        const uint32_t lost = cuda_nonfinite_f32(m[i]) | cuda_nonfinite_f32(z[i]);
        const struct cuda_extremes one = { lost ? INFINITY : fabsf(m[i]), z[i] };
        cuda_see_moments(seen, &one);
        p[i] = x.p - u->lr * x.u;
    }
    cuda_round_param(p, &c->all, u, at);
    cuda_store_param(p, &c->all, at);
}

/* Blocks behind the last one have no element. */
CUDA_BOTH struct cuda_extremes cuda_step_lane(struct cuda_lane *l, const struct cuda_coded *c,
                                              const struct cuda_update *u, uint64_t block, uint32_t lane) {
    struct cuda_extremes seen = { 0.0f, 0.0f };
    CUDA_UNROLL
    for (int half = 0; half < 2; half++) {
        const struct cuda_half at = cuda_half_of_block(c, block, lane, half);
        if (at.count) cuda_step_half(l->m[half], l->z[half], c, u, block, &at, &seen);
    }
    return seen;
}

/* ---- the second pass: codes by the scales of the block, and by its first lane the scales ---- */

CUDA_BOTH void cuda_code_lane(const struct cuda_lane *l, const struct cuda_coded *c, const struct cuda_update *u,
                              uint64_t block, uint32_t lane, const struct cuda_extremes *of_block) {
    const uint32_t lost = cuda_nonfinite_f32(of_block->m);
    const float scales[2] = { lost ? AMP__BYTES_LOST : amp__bytes_scale_m(of_block->m),
                              lost ? AMP__BYTES_LOST : amp__bytes_scale_v(of_block->z) };
    const float inverse[2] = { amp__bytes_inverse(scales[0]), amp__bytes_inverse(scales[1]) };
    CUDA_UNROLL
    for (int half = 0; half < 2; half++) {
        const struct cuda_half at = cuda_half_of_block(c, block, lane, half);
        uint32_t words[2] = { 0, 0 };
        if (!at.count) continue;
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_HALF && !lost; i++) {
            const uint32_t random = amp__random_bits(u->key, u->before + at.first + i);
            words[0] |= (uint32_t)amp__bytes_code_m(l->m[half][i], inverse[0], random) << 8 * i;
            words[1] |= (uint32_t)amp__bytes_code_v(l->z[half][i], inverse[1], random) << 8 * i;
        }
        for (int k = 0; k < 2; k++) cuda_store_codes(words[k], c, k, &at);
    }
    if (lane == 0) c->scales[0][block] = amp__bytes_stored_m(scales[0]), c->scales[1][block] = scales[1];
}

#endif
