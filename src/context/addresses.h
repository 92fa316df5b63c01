/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a context that knows memory by its address: FP32 parameters and gradients, for raw buffers. */
#ifndef AMP_CONTEXT_ADDRESSES_H
#define AMP_CONTEXT_ADDRESSES_H

#include "common/common.h"

#include <stdatomic.h>

/* Addresses [begin, end) that belong to a parameter, or to its gradient. */
struct amp__range {
    uintptr_t begin, end;
    struct amp__param *param;
};

/* Whole pages. */
struct amp__pages {
    uintptr_t begin, end;
};

struct amp__addresses {
    struct amp__range *ranges; /* sorted addresses of FP32 parameters */
    size_t n_ranges;
    bool released;            /* FP32 blocks without memory, since amp_weights_release */
    struct amp__pages *pages; /* released pages */
    size_t n_pages;
    _Atomic(bool) grads_absent; /* a parameter without a gradient at a begin */
    _Atomic(bool) grads_move;   /* a gradient seen at another address */

    struct amp__range *grads;       /* sorted addresses of FP32 gradients (gradients.c), under the context's lock */
    size_t n_grads, grads_capacity; /* under the context's lock */
    struct amp__strays *strays;     /* raw/strays.c, under the context's lock (NULL: none yet) */
};

#endif
