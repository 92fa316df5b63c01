/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels: a table for each group, with no slot empty. */
#ifndef AMP_KERNELS_REF_REF_H
#define AMP_KERNELS_REF_REF_H

#include "kernels/kernels.h"
#include "kernels/ref/convert.h"

AMP__KERNEL_MAP(AMP__DECLARE_TABLE, ref)

/* Element i of a split master. */
static inline void amp__ref_split_one(uint16_t *low, uint16_t *rest, uint32_t *ties, size_t i, float value) {
    const uint32_t bits = amp__f32_bits(value), tie = UINT32_C(1) << i % 32;
    low[i] = amp__f32_to_bf16(value);
    rest[i] = (uint16_t)bits;
    if (rest[i] != 0x8000u) return;
    if (bits >> 16 & 1) ties[i / 32] &= ~tie;
    else ties[i / 32] |= tie;
}
static inline float amp__ref_join_one(const uint16_t *low, const uint16_t *rest, const uint32_t *ties, size_t i) {
    return amp__join(low[i], rest[i], ties[i / 32] >> i % 32 & 1);
}

/* AMP__SUM_SQUARES in parts: n is a multiple of AMP__SUM_LANES but for the last part. norm.c */
void amp__ref_add_squares(double lane[AMP__SUM_LANES], const float *src, size_t n);
double amp__ref_sum_lanes(double lane[AMP__SUM_LANES]);

/* Elements that a kernel converts, computes and stores at a time: they stay in the first-level cache, and loops over a
 * constant number of elements are those that gcc vectorises at -O2. A multiple of AMP__SUM_LANES. */
#define AMP__REF_BLOCK 256

#endif
