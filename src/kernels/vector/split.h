/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A vector of split masters. The difference of a float and its upper half is its lower half with a sign, but for ties,
 * one in 65,536: these are looked at one by one.
 */
#ifndef AMP_KERNELS_VECTOR_SPLIT_H
#define AMP_KERNELS_VECTOR_SPLIT_H

#include "kernels/vector/vector.h"

/* n elements: LANES, or less at an end. */
static __attribute__((noinline)) vf join_ties(vf x, uint32_t places, const uint16_t *low, const uint32_t *ties,
                                              size_t at, size_t n) {
    float joined[LANES];
    vf_store_f32(joined, x);
    for (size_t i = 0; i < n; i++)
        if (places >> i & 1)
            joined[i] = amp__join(low[at + i], 0x8000, ties[(at + i) / 32] >> (at + i) % 32 & 1);
    return vf_load_f32(joined);
}

static inline vf read_split(const uint16_t *low, const uint16_t *rest, const uint32_t *ties, size_t at, size_t n) {
    const vf upper = n < LANES ? vf_load_part_bf16(low + at, n) : vf_load_bf16(low + at);
    const vf lower = n < LANES ? vf_load_part_bf16(rest + at, n) : vf_load_bf16(rest + at);
    const vf x = vf_join(upper, lower);
    const uint32_t places = vf_ties(lower);
    return __builtin_expect(places != 0, 0) ? join_ties(x, places, low, ties, at, n) : x;
}

static __attribute__((noinline)) void write_ties(uint32_t *ties, vf x, uint32_t places, size_t at, size_t n) {
    float values[LANES];
    vf_store_f32(values, x);
    for (size_t i = 0; i < n; i++) {
        const uint32_t tie = UINT32_C(1) << (at + i) % 32;
        if (!(places >> i & 1)) continue;
        if (amp__f32_bits(values[i]) >> 16 & 1) ties[(at + i) / 32] &= ~tie;
        else ties[(at + i) / 32] |= tie;
    }
}

static inline void write_split(uint16_t *low, uint16_t *rest, uint32_t *ties, vf x, size_t at, size_t n) {
    const vf lower = vf_lower(x);
    const uint32_t places = vf_ties(lower);
    if (n < LANES) {
        uint16_t words[LANES];
        vf_store_upper(words, lower);
        vf_store_part_bf16(low + at, x, n);
        memcpy(rest + at, words, n * sizeof *rest);
    } else {
        vf_store_bf16(low + at, x);
        vf_store_upper(rest + at, lower);
    }
    if (__builtin_expect(places != 0, 0)) write_ties(ties, x, places, at, n);
}

#endif
