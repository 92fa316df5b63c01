/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/round.h"

#include <amp_kernels.h>
#include <string.h>

enum { BLOCK = 1024 };

/*
 * Counts for every cast of a buffer. Element by element they took longer than the cast. So: no branches, blocks of a
 * fixed length that compilers vectorize, and counters as wide as the elements.
 */
struct block {
    uint32_t overflowed, zeroed, subnormal;
};

static uint32_t magnitude_of(const float *value) {
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits & 0x7fffffffu;
}

static inline void count_rounded(struct block *counts, uint32_t from, uint32_t to, uint32_t infinity, uint32_t least) {
    counts->overflowed += (to == infinity) & (from < 0x7f800000u);
    counts->zeroed += (to == 0) & (from != 0);
    counts->subnormal += (to != 0) & (to < least);
}

static void add_block_counts(struct amp__counts *counts, const struct block *block) {
    counts->overflowed += block->overflowed;
    counts->zeroed += block->zeroed;
    counts->subnormal += block->subnormal;
}

void amp__count_rounded(struct amp__counts *counts, const float *exact, const uint16_t *rounded, uint64_t n,
                        amp_dtype low) {
    const uint32_t infinity = low == AMP_FLOAT16 ? 0x7c00 : 0x7f80, least = low == AMP_FLOAT16 ? 0x0400 : 0x0080;
    uint64_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK) {
        struct block block = { 0, 0, 0 };
        for (uint32_t i = 0; i < BLOCK; i++)
            count_rounded(&block, magnitude_of(&exact[at + i]), rounded[at + i] & 0x7fffu, infinity, least);
        add_block_counts(counts, &block);
    }
    struct block rest = { 0, 0, 0 };
    for (; at < n; at++) count_rounded(&rest, magnitude_of(&exact[at]), rounded[at] & 0x7fffu, infinity, least);
    add_block_counts(counts, &rest);
}

void amp__count_widened(struct amp__counts *counts, const float *exact, const float *rounded, uint64_t n,
                        amp_dtype low) {
    const uint32_t infinity = 0x7f800000u, least = low == AMP_FLOAT16 ? (127u - 14u) << 23 : 1u << 23;
    uint64_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK) {
        struct block block = { 0, 0, 0 };
        for (uint32_t i = 0; i < BLOCK; i++)
            count_rounded(&block, magnitude_of(&exact[at + i]), magnitude_of(&rounded[at + i]), infinity, least);
        add_block_counts(counts, &block);
    }
    struct block rest = { 0, 0, 0 };
    for (; at < n; at++) count_rounded(&rest, magnitude_of(&exact[at]), magnitude_of(&rounded[at]), infinity, least);
    add_block_counts(counts, &rest);
}

void amp__round(float *dst, const float *src, uint64_t n, amp_dtype low, struct amp__counts *counts) {
    uint16_t rounded[BLOCK];
    float exact[BLOCK];
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t length = n - at < BLOCK ? n - at : BLOCK;
        memcpy(exact, src + at, (size_t)length * sizeof *exact);
        const amp_span narrow = { rounded, length, low, 0 }, from = { exact, length, AMP_FLOAT32, 0 };
        const amp_span to = { dst + at, length, AMP_FLOAT32, 0 };
        if (amp_cast_list(&narrow, &from, 1) != AMP_OK || amp_cast_list(&to, &narrow, 1) != AMP_OK) continue;
        if (counts) amp__count_rounded(counts, exact, rounded, length, low);
    }
}
