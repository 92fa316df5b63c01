/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the fused optimizers' kernels, of split masters and of the check before a step, for test_table.c. */
#ifndef AMP_TESTS_UPDATES_H
#define AMP_TESTS_UPDATES_H

#include "kernels/kernels.h"

typedef void update_check(amp_fn kernel, const amp_dtype *types, const char *isa);
#define CHECK_OF_UPDATE(set, type, group, n_types) update_check check_##group;
AMP__UPDATE_MAP(CHECK_OF_UPDATE, )
#undef CHECK_OF_UPDATE
update_check check_check, check_split, check_join, check_join_squares;

#endif
