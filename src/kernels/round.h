/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 values rounded to a 16-bit type: emulation on hosts with FP32 only. */
#ifndef AMP_ROUND_H
#define AMP_ROUND_H

#include "common/common.h"

/* Changes of finite values by the 16-bit type. */
struct amp__counts {
    uint64_t overflowed, zeroed, subnormal;
};

/* Rounds src[i] to `low` and back to FP32 in dst[i]. dst may be src. Adds to counts, which may be NULL. */
void amp__round(float *dst, const float *src, uint64_t n, amp_dtype low, struct amp__counts *counts);
/* The counting alone, where the rounded values exist already. */
void amp__count_rounded(struct amp__counts *counts, const float *exact, const uint16_t *rounded, uint64_t n,
                        amp_dtype low);
/* The same where they were widened again already. */
void amp__count_widened(struct amp__counts *counts, const float *exact, const float *rounded, uint64_t n,
                        amp_dtype low);

#endif
