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

/* Counts src, multiplied by each of the factors in turn and rounded to FP32 by each (fp64 stays fp64). Nothing waits
 * but for room for the list. Any thread whose stream it is. */
amp_status amp__counts_add(struct amp__counts *counts, const amp_span *src, const amp_factor *factors,
                           size_t n_factors, size_t *slot);
/* What was added to `before` (FP32) until it became `now`; and in slots[1] (fp16) and slots[2] (bf16) the difference
 * that rounded weights would show: its zeros beyond those of slots[0] are updates that are lost. */
amp_status amp__counts_add_update(struct amp__counts *counts, const amp_span *now, const amp_span *before,
                                  size_t slots[3]);

/* dst = src, in the order of what is counted. */
amp_status amp__counts_copy(struct amp__counts *counts, const amp_span *dst, const amp_span *src);

/* All slots are on their way; nothing waits. */
amp_status amp__counts_send(struct amp__counts *counts);
/* They have come; waits for it. */
amp_status amp__counts_receive(struct amp__counts *counts);
/* A slot as it came. */
const amp_statistics *amp__counts_at(const struct amp__counts *counts, size_t slot);
/* All slots are free again. */
void amp__counts_clear(struct amp__counts *counts);

#endif
