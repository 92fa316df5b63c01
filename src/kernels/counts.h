/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of tensors in a device's memory: counted there in the order of one stream, sent to the host together, and
 * waited for when they are wanted. A slot is one tensor's.
 */
#ifndef AMP_KERNELS_COUNTS_H
#define AMP_KERNELS_COUNTS_H

#include "kernels/place.h"

struct amp__counts;

amp_status amp__counts_open(struct amp__place *place, void *stream, struct amp__counts **out);
/* NULL is a no-op. */
void amp__counts_close(struct amp__counts *counts);

/* Counts src after multiplication by each factor in turn, each time rounded to FP32 (fp64 stays fp64). Waits only for
 * room in the list. Any thread that owns the stream. */
amp_status amp__counts_add(struct amp__counts *counts, const amp_span *src, const amp_factor *factors,
                           size_t n_factors, size_t *slot);
/* Counts the difference of `now` and `before` (FP32). In slots[1] (fp16) and slots[2] (bf16): the difference of rounded
 * weights, where zeros beyond those of slots[0] are lost updates. */
amp_status amp__counts_add_update(struct amp__counts *counts, const amp_span *now, const amp_span *before,
                                  size_t slots[3]);

/* Copies src to dst, in the order of the counting. */
amp_status amp__counts_copy(struct amp__counts *counts, const amp_span *dst, const amp_span *src);

/* Starts the copies of all slots to the host. Does not wait. */
amp_status amp__counts_send(struct amp__counts *counts);
/* Waits for these copies. */
amp_status amp__counts_receive(struct amp__counts *counts);
/* A slot as it came. */
const amp_statistics *amp__counts_at(const struct amp__counts *counts, size_t slot);
/* All slots are free again. */
void amp__counts_clear(struct amp__counts *counts);

#endif
