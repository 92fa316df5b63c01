/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the fused optimizers' kernels, of split masters and of the check before a step, for test_table.c. */
#ifndef AMP_TESTS_UPDATES_H
#define AMP_TESTS_UPDATES_H

#include "kernels/kernels.h"

typedef void update_check(amp_fn kernel, const amp_dtype *types, const char *isa);
update_check check_sgd, check_adam, check_adagrad, check_novograd, check_lamb_apply, check_lamb_moments, check_check;
update_check check_split, check_join, check_join_squares;

#endif
