/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 values that are what a 16-bit type would hold: emulation on hosts that know FP32 only. */
#ifndef AMP_ROUND_H
#define AMP_ROUND_H

#include "common/common.h"

/* What the 16-bit type did to finite values. */
struct amp__counts {
    uint64_t overflowed, zeroed, subnormal;
};

/* dst[i] = src[i] rounded through `low` and widened again; dst may be src. counts is added to; may be NULL. */
void amp__round(float *dst, const float *src, uint64_t n, amp_dtype low, struct amp__counts *counts);
/* The counting alone, where the rounded values exist already. */
void amp__count_rounded(struct amp__counts *counts, const float *exact, const uint16_t *rounded, uint64_t n,
                        amp_dtype low);
/* The same where they were widened again already. */
void amp__count_widened(struct amp__counts *counts, const float *exact, const float *rounded, uint64_t n,
                        amp_dtype low);

#endif
