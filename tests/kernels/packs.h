/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the packing kernels for test_table.c, against what amp_pack.h and docs/reference/numerics.md say, written
 * again. */
#ifndef AMP_TESTS_PACKS_H
#define AMP_TESTS_PACKS_H

#include "kernels/kernels.h"

void check_pack(amp_fn kernel, const amp_dtype *types, const char *isa);
void check_unpack(amp_fn kernel, const amp_dtype *types, const char *isa);

#endif
