/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers for stochastic rounding in a step. They are a pure function of a tensor's key (of a seed and the
 * parameter), the step and the element, so no set, thread or shard changes them, and a checkpoint needs no generator.
 */
#ifndef AMP_KERNELS_RANDOM_H
#define AMP_KERNELS_RANDOM_H

#include "kernels/pack.h"

/* Streams of a step. */
enum amp__random_stream { AMP__RANDOM_MOMENTS, AMP__RANDOM_PARAM };

/* Returns the key of a step, which is the number of steps before it. */
AMP__CONVERT uint64_t amp__random_key(uint64_t tensor, uint64_t step, enum amp__random_stream stream) {
    return amp__pack_key(amp__pack_key(tensor, step), (uint64_t)stream);
}

/* Returns x rounded up or down in magnitude to a number of bf16, with probabilities that keep its mean: 16 random bits
 * are added below it. What is beyond the largest one may become infinite. */
AMP__CONVERT float amp__round_bf16(float x, uint32_t random) {
    const uint32_t bits = amp__f32_bits(x), sum = (bits + (random & 0xffff)) & UINT32_C(0xffff0000);
    return amp__pack_finite(x) ? amp__f32_from_bits(sum) : x;
}

/* Returns the 32 random bits of an element. 2^32 elements in a row have different ones. */
AMP__CONVERT uint32_t amp__random_bits(uint64_t key, uint64_t element) {
    return amp__pack_hash(key, (uint32_t)element);
}

#endif
