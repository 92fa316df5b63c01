/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of memory that are needed again and again, in every call of an op: large ones are kept when they are given
 * back. Allocators hand those to the system and take new ones, so that each page is faulted in and zeroed anew, which
 * takes longer than the cast that the block is for.
 */
#ifndef AMP_SPARE_H
#define AMP_SPARE_H

#include "common/common.h"

#include <stdatomic.h>

enum { AMP__SPARES = 8, AMP__SPARE_LEAST = 1 << 16 }; /* largest number of blocks, and least bytes of one */

/* All zero at first. Any thread may take and give, also a block taken by another thread. */
struct amp__spares {
    _Atomic(void *) blocks[AMP__SPARES];
    _Atomic(uint32_t) next; /* to make way for another */
};

/* At least `bytes`, aligned to 64, not initialised, NULL if there is no memory. */
void *amp__spare_take(struct amp__spares *spares, size_t bytes);
/* Given back to the spares that it was taken from, or to NULL: freed. memory may be NULL. */
void amp__spare_give(struct amp__spares *spares, void *memory);
/* Frees the blocks. */
void amp__spares_clear(struct amp__spares *spares);

#endif
