/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels, one table per group, laid out as in struct amp__kernels. */
#ifndef AMP_KERNELS_REF_REF_H
#define AMP_KERNELS_REF_REF_H

#include "kernels/kernels.h"

extern amp__cast_fn *const amp__ref_cast[AMP__TYPES][AMP__TYPES];
extern amp__cast_list_fn *const amp__ref_cast_list[AMP__TYPES][AMP__TYPES];
extern amp__scale_fn *const amp__ref_scale[AMP__TYPES][AMP__TYPES];
extern amp__scale_list_fn *const amp__ref_scale_list[AMP__TYPES][AMP__TYPES];
extern amp__clamp_list_fn *const amp__ref_clamp_list[AMP__TYPES][AMP__TYPES];
AMP__ZERO(amp__ref_zero);
extern amp__axpby_fn *const amp__ref_axpby[AMP__TYPES][AMP__TYPES][AMP__TYPES];
extern amp__sum_squares_fn *const amp__ref_sum_squares[AMP__TYPES];
extern amp__nonfinite_fn *const amp__ref_nonfinite[AMP__TYPES];
extern const struct amp__tile amp__ref_tile;
extern amp__check_fn *const amp__ref_check[AMP__TYPES];
AMP__UPDATE(amp__ref_sgd);
AMP__UPDATE(amp__ref_adam);
AMP__UPDATE(amp__ref_adagrad);
AMP__UPDATE(amp__ref_novograd);
AMP__UPDATE_SQUARES(amp__ref_lamb_moments);
AMP__UPDATE(amp__ref_lamb_apply);

/* AMP__SUM_SQUARES in parts: n is a multiple of AMP__SUM_LANES but for the last part. norm.c */
void amp__ref_add_squares(double lane[AMP__SUM_LANES], const float *src, size_t n);
double amp__ref_sum_lanes(double lane[AMP__SUM_LANES]);

/* Elements that a kernel converts, computes and stores at a time: they stay in the first-level cache, and loops over a
 * constant number of elements are those that gcc vectorises at -O2. A multiple of AMP__SUM_LANES. */
#define AMP__REF_BLOCK 256

#endif
