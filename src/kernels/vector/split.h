/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LANES elements of a split master in and out. One float in 65,536 lies halfway between two of bf16, and only where one
 * does are ties read or written. Few-digit masters, as those that were fp16 are, have many: that is not to be slow.
 */
#ifndef AMP_KERNELS_VECTOR_SPLIT_H
#define AMP_KERNELS_VECTOR_SPLIT_H

#include "kernels/ref/split.h"
#include "kernels/vector/vector.h"

/* Out of line, so that loops are laid out for the common case. */
#define RARE static __attribute__((noinline))

/* A vector may lie across two words. */
static inline bool in_two_words(size_t at) { return at % 32 > 32 - LANES; }

RARE vf join_ties(const amp__bf16 *low, const uint16_t *rest, const uint32_t *ties, size_t at) {
    amp__f32 x[LANES];
    uint32_t bits = ties[at / 32] >> at % 32;
    if (in_two_words(at)) bits |= ties[at / 32 + 1] << (32 - at % 32);
    for (uint32_t i = 0; i < LANES; i++) x[i] = amp__join(low[at + i], rest[at + i], bits >> i & 1);
    return vf_load_f32(x);
}

static inline void set_bits(uint32_t *word, uint32_t which, uint32_t bits) { *word = (*word & ~which) | bits; }

RARE void split_ties(amp__bf16 *low, uint32_t *ties, vf values, size_t at) {
    amp__f32 x[LANES];
    uint32_t which = 0, down = 0;
    vf_store_f32(x, values);
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t tie = amp__rest(x[i]) == AMP__REST_TIE;
        which |= tie << i;
        down |= (tie & amp__tie(x[i])) << i;
    }
    vf_store_bf16(low + at, values);
    set_bits(&ties[at / 32], which << at % 32, down << at % 32);
    if (in_two_words(at)) set_bits(&ties[at / 32 + 1], which >> (32 - at % 32), down >> (32 - at % 32));
}

RARE vf join_part(const amp__bf16 *low, const uint16_t *rest, const uint32_t *ties, size_t at, size_t n) {
    amp__f32 x[LANES] = { 0 };
    for (size_t i = 0; i < n; i++) x[i] = amp__split_get(low, rest, ties, at + i);
    return vf_load_f32(x);
}

RARE void split_part(amp__bf16 *low, uint16_t *rest, uint32_t *ties, vf values, size_t at, size_t n) {
    amp__f32 x[LANES];
    vf_store_f32(x, values);
    for (size_t i = 0; i < n; i++) amp__split_set(low, rest, ties, at + i, x[i]);
}

/* Elements from `at` on; n is LANES, or less at an end. Behind the end lies 0. */
static inline __attribute__((always_inline)) vf read_split(const amp__bf16 *low, const uint16_t *rest,
                                                           const uint32_t *ties, size_t at, size_t n) {
    bool rare;
    if (n < LANES) return join_part(low, rest, ties, at, n);
    const vf x = vf_load_split(low + at, rest + at, &rare);
    return __builtin_expect(rare, 0) ? join_ties(low, rest, ties, at) : x;
}

static inline __attribute__((always_inline)) void write_split(amp__bf16 *low, uint16_t *rest, uint32_t *ties, vf x,
                                                              size_t at, size_t n) {
    if (n < LANES) {
        split_part(low, rest, ties, x, at, n);
        return;
    }
    if (__builtin_expect(vf_store_split(low + at, rest + at, x), 0)) split_ties(low, ties, x, at);
}

#endif
