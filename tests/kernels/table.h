/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that test_table.c runs from files of their own. */
#ifndef AMP_TESTS_TABLE_H
#define AMP_TESTS_TABLE_H

#include "kernels/kernels.h"

/* ---- packs.c: packing, against what amp_pack.h and docs/reference/numerics.md say, written again ---- */

void check_pack(amp_fn kernel, const amp_dtype *types, const char *isa);
void check_unpack(amp_fn kernel, const amp_dtype *types, const char *isa);

/* The format, written again: of n elements, packed; and element e of what is packed, in `type`. What a pack returns. */
size_t words_of(size_t n, int bits);
uint32_t expect_packed(const float *x, size_t n, int bits, uint64_t seed, uint32_t *packed);
uint64_t expect_value(const uint32_t *packed, size_t n, size_t e, int bits, amp_dtype type);

/* The generator, written again: the key of a group, and the bits of a place. */
uint64_t random_key(uint64_t seed, uint64_t group);
uint32_t random_word(uint64_t key, uint32_t place);

/* ---- updates.c, moments.c, splits.c: fused optimizers, split masters and the check before a step ---- */

/* Through memory: each product and each sum is a float of its own. */
static inline float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
static inline float plus(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

typedef void update_check(amp_fn kernel, const amp_dtype *types, const char *isa);
#define CHECK_OF_UPDATE(set, type, group, n_types) update_check check_##group;
AMP__UPDATE_MAP(CHECK_OF_UPDATE, )
#undef CHECK_OF_UPDATE
update_check check_check, check_cast_random, check_split, check_join, check_join_squares;

#endif
