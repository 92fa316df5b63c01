/* SPDX-License-Identifier: Apache-2.0 */
/* Address -> parameter or gradient: weights are often slices of one allocation, so matching is by range. */
#ifndef AMP_RANGES_H
#define AMP_RANGES_H

#include "context/addresses.h"

/* The sorted address ranges of FP32 parameters, and the gradients that there are. */
amp_status amp__ranges_build(amp_context *context);
amp_status amp__ranges_sort(struct amp__range *ranges, size_t n);
struct amp__param *amp__range_find(const struct amp__range *ranges, size_t n, const void *address, uint64_t *offset);
/* Returns the parameter with this address in its FP32 block, or NULL. */
static inline struct amp__param *amp__param_at(const struct amp__addresses *addresses, const void *address,
                                               uint64_t *offset) {
    return amp__range_find(addresses->ranges, addresses->n_ranges, address, offset);
}
/* Do parameters of both lie in the same memory? */
bool amp__ranges_meet(const amp_context *a, const amp_context *b);
/* Elements from there to the end of the parameter or gradient that it points into. 0: of none. */
amp_status amp__range_rest(amp_context *context, const void *address, int64_t *rest);

/* ---- gradients.c: gradients from the hook grad ---- */

/* Reads all gradients from the hook: in the first brackets, and in every one of a context with raw buffers in its ops.
 * AMP_ERR_CONFLICT: a named gradient overlaps another, or its own parameter. */
amp_status amp__gradients_follow(amp_context *context);
/* Finds the parameter with this address in its gradient, and the elements from there to its end, or NULL. The hook
 * confirms known gradients, and with `asks` reads all others while backward may be running. */
amp_status amp__gradient_at(amp_context *context, const void *address, bool asks, struct amp__param **out,
                            uint64_t *rest);
/* Returns true once if an op found this gradient in the open bracket, and there was none at begin. */
bool amp__gradient_came(amp_context *context, struct amp__param *param);
/* The same by the last answer of the hook, without asking. */
struct amp__param *amp__gradient_known(amp_context *context, const void *address, uint64_t *rest);

#endif
