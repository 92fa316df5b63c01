/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of each instruction set, one per group, laid out as in struct amp__kernels; NULL where there is nothing
 * better than below. */
#ifndef AMP_KERNELS_ISA_H
#define AMP_KERNELS_ISA_H

#include "kernels/kernels.h"

#define AMP__DECLARE_TABLES(isa, flag)                                                                                 \
    extern amp__cast_fn *const amp__##isa##_cast[AMP__TYPES][AMP__TYPES];                                              \
    extern amp__cast_fn *const amp__##isa##_cast_stream[AMP__TYPES][AMP__TYPES];                                       \
    extern amp__cast_list_fn *const amp__##isa##_cast_list[AMP__TYPES][AMP__TYPES];                                    \
    extern amp__scale_list_fn *const amp__##isa##_scale_list[AMP__TYPES][AMP__TYPES];                                  \
    extern amp__scale_fn *const amp__##isa##_scale_stream[AMP__TYPES][AMP__TYPES];                                     \
    extern amp__clamp_list_fn *const amp__##isa##_clamp_list[AMP__TYPES][AMP__TYPES];                                  \
    extern AMP__ZERO(amp__##isa##_zero_stream);                                                                        \
    extern amp__axpby_fn *const amp__##isa##_axpby[AMP__TYPES][AMP__TYPES][AMP__TYPES];                                \
    extern amp__sum_squares_fn *const amp__##isa##_sum_squares[AMP__TYPES];                                            \
    extern amp__nonfinite_fn *const amp__##isa##_nonfinite[AMP__TYPES];                                                \
    extern const struct amp__tile amp__##isa##_tile;                                                                   \
    extern amp__check_fn *const amp__##isa##_check[AMP__TYPES];                                                        \
    extern amp__update_fn *const amp__##isa##_sgd, *const amp__##isa##_adam, *const amp__##isa##_adagrad,              \
        *const amp__##isa##_novograd, *const amp__##isa##_lamb_apply;                                                  \
    extern amp__update_squares_fn *const amp__##isa##_lamb_moments;
AMP__CPU_MAP(AMP__DECLARE_TABLES)

/* The name of one of them in the files of the instruction set ISA. */
#define AMP__TABLE(group) AMP__TABLE_OF(ISA, group)
#define AMP__TABLE_OF(isa, group) AMP__TABLE_NAME(isa, group)
#define AMP__TABLE_NAME(isa, group) amp__##isa##_##group

#endif
