/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the packing kernels for test_table.c, against what amp_pack.h and docs/reference/numerics.md say, written
 * again. */
#ifndef AMP_TESTS_PACKS_H
#define AMP_TESTS_PACKS_H

#include "kernels/kernels.h"

void check_pack(amp_fn kernel, const amp_dtype *types, const char *isa);
void check_unpack(amp_fn kernel, const amp_dtype *types, const char *isa);

/* The format, written again: of n elements, packed; and element e of what is packed, in `type`. What a pack returns. */
size_t words_of(size_t n, int bits);
uint32_t expect_packed(const float *x, size_t n, int bits, uint64_t seed, uint32_t *packed);
uint64_t expect_value(const uint32_t *packed, size_t n, size_t e, int bits, amp_dtype type);

#endif
