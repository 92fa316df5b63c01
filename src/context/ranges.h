/* SPDX-License-Identifier: Apache-2.0 */
/* Address -> parameter or gradient: weights are often slices of one allocation, so matching is by range. */
#ifndef AMP_RANGES_H
#define AMP_RANGES_H

#include "context/addresses.h"

/* The sorted address ranges of FP32 parameters, and the gradients that there are. */
amp_status amp__ranges_build(amp_context *context);
amp_status amp__ranges_sort(struct amp__range *ranges, size_t n);
struct amp__param *amp__range_find(const struct amp__range *ranges, size_t n, const void *address, uint64_t *offset);
/* The parameter whose FP32 block this address lies in; NULL: none. */
static inline struct amp__param *amp__param_at(const struct amp__addresses *addresses, const void *address,
                                               uint64_t *offset) {
    return amp__range_find(addresses->ranges, addresses->n_ranges, address, offset);
}
/* Do parameters of both lie in the same memory? */
bool amp__ranges_meet(const amp_context *a, const amp_context *b);
/* Elements from there to the end of the parameter or gradient that it points into; 0: of none. */
amp_status amp__range_rest(amp_context *context, const void *address, int64_t *rest);

/* ---- gradients.c: gradients, as the hook grad tells of them ---- */

/* Asks the hook for all gradients: in the first brackets, and in every one of a context whose ops take raw buffers.
 * AMP_ERR_CONFLICT: a gradient overlaps another, or its own parameter; it names them. */
amp_status amp__gradients_follow(amp_context *context);
/* The parameter whose gradient this address lies in, and the elements from there to its end; NULL: none. The hook is
 * asked about what is known, and with `asks` about all others where backward may be running. */
amp_status amp__gradient_at(amp_context *context, const void *address, bool asks, struct amp__param **out,
                            uint64_t *rest);
/* Asked once: did an op find this gradient in the bracket that is open, where there was none at its begin? */
bool amp__gradient_came(amp_context *context, struct amp__param *param);
/* The same by the last answer of the hook, without asking. */
struct amp__param *amp__gradient_known(amp_context *context, const void *address, uint64_t *rest);

#endif
