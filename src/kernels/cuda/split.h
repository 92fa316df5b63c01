/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split masters (amp_optim.h), one group at a time. They are two adjacent spans: the parameter in bf16, and its
 * remainder with a 16-bit type. FP32 masters beside 16-bit parameters never are two 16-bit spans.
 */
#ifndef AMP_KERNELS_CUDA_SPLIT_H
#define AMP_KERNELS_CUDA_SPLIT_H

#include "kernels/cuda/lists.h"

CUDA_BOTH int cuda_has(const struct cuda_tensor *t, int k) { return CUDA_TYPE(t->shape, k) != 0; }

CUDA_BOTH int cuda_is_split(const struct cuda_tensor *t, int k) {
    return CUDA_TYPE(t->shape, k) == AMP_BFLOAT16 && cuda_has(t, k + 1);
}

/* The lower halves of bits. */
CUDA_BOTH void cuda_store_bits(const uint32_t bits[CUDA_HALF], const struct cuda_tensor *t, int k,
                               const struct cuda_half *at) {
    uint16_t *data = (uint16_t *)t->data[k] + at->first;
    if (CUDA_WIDE(t->shape, k) && at->is_whole) {
        uint32_t w[CUDA_HALF / 2];
        CUDA_UNROLL
        for (int i = 0; i < CUDA_HALF / 2; i++) w[i] = (bits[2 * i] & 0xffffu) | bits[2 * i + 1] << 16;
        cuda_store8(data, w);
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++)
        if (i < at->count) data[i] = (uint16_t)bits[i];
}

/* ---- ties ---- */

CUDA_BOTH uint32_t *cuda_ties(const struct cuda_tensor *t, int k) {
    return (uint32_t *)(void *)t->data[k + 1] + (t->size + 1) / 2;
}

/* Bit i: element i's. They are in one word or in two. */
CUDA_BOTH uint32_t cuda_load_ties(const struct cuda_tensor *t, int k, const struct cuda_half *at) {
    const uint32_t *ties = cuda_ties(t, k) + at->first / 32;
    const uint32_t shift = (uint32_t)at->first % 32, next = (shift + at->count - 1) / 32;
    return (uint32_t)(((uint64_t)ties[next] << 32 | ties[0]) >> shift);
}

/* Other threads write other bits of the word at the same time. */
CUDA_BOTH void cuda_set_tie(uint32_t *word, uint32_t bit, int down) {
#ifdef __CUDA_ARCH__
    if (down) (void)atomicOr(word, bit);
    else (void)atomicAnd(word, ~bit);
#else
    *word = down ? *word | bit : *word & ~bit;
#endif
}

/* One element in 65,536 is one. */
CUDA_BOTH uint32_t cuda_any_tie(const uint32_t rest[CUDA_HALF]) {
    uint32_t any = 0;
    CUDA_UNROLL
    for (int i = 0; i < CUDA_HALF; i++) any |= (rest[i] & 0xffffu) == 0x8000u;
    return any;
}

/* ---- half a group ---- */

/* The words of a split master's half: two of the parameter, two of the remainder. */
CUDA_BOTH void cuda_fetch_split(uint32_t w[CUDA_HALF], const struct cuda_tensor *t, int k, const struct cuda_half *at) {
    cuda_fetch_half16(w, t, k, at);
    cuda_fetch_half16(w + CUDA_HALF / 2, t, k + 1, at);
}

CUDA_BOTH void cuda_join_words(float v[CUDA_HALF], const uint32_t w[CUDA_HALF], const struct cuda_tensor *t, int k,
                               const struct cuda_half *at) {
    uint32_t upper[CUDA_HALF], rest[CUDA_HALF];
    CUDA_UNROLL
    for (int i = 0; i < CUDA_HALF; i++) {
        upper[i] = w[i / 2] >> i % 2 * 16 & 0xffffu;
        rest[i] = w[CUDA_HALF / 2 + i / 2] >> i % 2 * 16 & 0xffffu;
    }
    const uint32_t down = cuda_any_tie(rest) ? cuda_load_ties(t, k, at) : 0;
    CUDA_UNROLL
    for (int i = 0; i < CUDA_HALF; i++) v[i] = amp__join((uint16_t)upper[i], (uint16_t)rest[i], down >> i & 1);
}

CUDA_BOTH void cuda_join_half(float v[CUDA_HALF], const struct cuda_tensor *t, int k, const struct cuda_half *at) {
    uint32_t w[CUDA_HALF];
    cuda_fetch_split(w, t, k, at);
    cuda_join_words(v, w, t, k, at);
}

CUDA_BOTH void cuda_split_half(const float v[CUDA_HALF], const struct cuda_tensor *t, int k,
                               const struct cuda_half *at) {
    uint32_t bits[CUDA_HALF];
    CUDA_UNROLL
    for (int i = 0; i < CUDA_HALF; i++) bits[i] = amp__f32_bits(v[i]);
    cuda_store_half(v, t, k, AMP_BFLOAT16, at);
    cuda_store_bits(bits, t, k + 1, at);
    if (!cuda_any_tie(bits)) return;
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++) {
        const uint64_t e = at->first + i;
        if (i < at->count && (bits[i] & 0xffffu) == 0x8000u)
            cuda_set_tie(&cuda_ties(t, k)[e / 32], UINT32_C(1) << e % 32, !(bits[i] >> 16 & 1));
    }
}

/* ---- a group ---- */

/* Spans 0 and 1: a split master, FP32 = span 2; or back. */
CUDA_BOTH void cuda_split_group(const struct cuda_tensor *t, const struct cuda_range *at, int join) {
    CUDA_ROLLED
    for (uint32_t done = 0; done < at->count; done += CUDA_HALF) {
        const struct cuda_half half = cuda_half_of(at, done);
        float v[CUDA_HALF];
        if (join) {
            cuda_join_half(v, t, 0, &half);
            cuda_store_half(v, t, 2, AMP_FLOAT32, &half);
        } else {
            cuda_load_half(v, t, 2, AMP_FLOAT32, &half);
            cuda_split_half(v, t, 0, &half);
        }
    }
}

/* Returns a tensor with the grouping of an FP32 one at the same place, groups of two distant halves, for equal sums of
 * squares. */
CUDA_BOTH struct cuda_tensor cuda_as_fp32(struct cuda_tensor t) {
    if (cuda_is_split(&t, 0)) t.shape |= UINT32_C(1) << 27;
    return t;
}

/* As cuda_check_group, of spans 0 and 1, which may be a split master. */
CUDA_BOTH void cuda_squares_group(const struct cuda_tensor *t, const struct cuda_range *at, double *sum) {
    float v[CUDA_GROUP] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
    if (!cuda_is_split(t, 0)) {
        (void)cuda_check_group(t, at, 1.0f, 1.0f, sum);
        return;
    }
    const struct cuda_half first = cuda_half_of(at, 0);
    cuda_join_half(v, t, 0, &first);
    if (at->count > CUDA_HALF) {
        const struct cuda_half second = cuda_half_of(at, CUDA_HALF);
        cuda_join_half(v + CUDA_HALF, t, 0, &second);
    }
    cuda_check_values(at, v, 1.0f, 1.0f, sum);
}

#endif
