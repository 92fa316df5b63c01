/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels: a table for each group, with no slot empty. */
#ifndef AMP_KERNELS_REF_REF_H
#define AMP_KERNELS_REF_REF_H

#include "kernels/kernels.h"

AMP__KERNEL_MAP(AMP__DECLARE_TABLE, ref)

/* AMP__SUM_SQUARES in parts: n is a multiple of AMP__SUM_LANES but for the last part. norm.c */
void amp__ref_add_squares(double lane[AMP__SUM_LANES], const float *src, size_t n);
double amp__ref_sum_lanes(double lane[AMP__SUM_LANES]);
/* Adds the terms of a stripe in float, then to the lanes. */
void amp__ref_add_stripe(double lane[AMP__SUM_LANES], const float x[AMP__SUM_STRIPE]);

/* Elements that a kernel converts, computes and stores at a time: they stay in the first-level cache, and loops over a
 * constant number of elements are those that gcc vectorises at -O2. A multiple of AMP__SUM_LANES. */
#define AMP__REF_BLOCK 256

#endif
