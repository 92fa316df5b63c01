/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements that are no compact block: transposed, sliced, in padded rows, backwards. They are gathered into a compact
 * block in row-major order, worked on there, and scattered back.
 */
#ifndef AMP_STRIDES_H
#define AMP_STRIDES_H

#include "host/host.h"

/* Can no two elements be one? Exact for what views make of a tensor; refuses some other layouts that interleave. */
bool amp__strides_apart(int32_t ndim, const int64_t *shape, const int64_t *strides);
/* Do some strides run backwards? */
bool amp__strides_negative(const struct amp__elements *at);
/* Elements from the first in memory to the last, both counted; strides are not negative. */
uint64_t amp__strides_reach(const struct amp__elements *at);
void amp__strides_gather(void *dst, const struct amp__elements *src);
void amp__strides_scatter(const struct amp__elements *dst, const void *src);

#endif
