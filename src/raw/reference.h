/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of reference.c, which runs the FP32 function of an op, and judge.c, which compares. */
#ifndef AMP_REFERENCE_H
#define AMP_REFERENCE_H

#include "context/op.h"
#include "raw/raw.h"

#include <math.h>

enum { AMP__KINDS = 64 };

/* Of one op, under the context's lock. */
struct amp__comparisons {
    size_t n; /* kinds of calls that were met */
    struct {
        uint64_t key;
        uint32_t tried, compared;
    } kinds[AMP__KINDS];
    uint64_t further; /* calls of kinds for which there was no room */
    const char *why;  /* none is compared any more (NULL: they are) */
};

/* The FP32 result for one buffer. */
struct amp__outcome {
    const char *name;
    const float *host, *made;
    const float *before; /* of an updated one (NULL: zeros) */
    struct amp__extents extents;
    double changed, norm, largest; /* norms of made - before, and of made */
    double magnitude;              /* allowed difference from |A||B| (0: no product) */
};

/* Why no call of the op is compared, whatever comes. NULL: that depends. */
const char *amp__reference_never(const struct amp__op *op);

/* Returns the position of an element in rows. Gaps between rows are not accessed. */
static inline int64_t amp__element_at(const struct amp__extents *extents, int64_t i) {
    const int64_t length = extents->shape[extents->ndim - 1];
    return extents->row_stride == length ? i : i / length * extents->row_stride + i % length;
}

/* The L2 norm of a - b; b NULL: zeros. */
double amp__l2_distance(const struct amp__extents *extents, const float *a, const float *b);
/* NaN where one is not finite. */
double amp__largest(const struct amp__extents *extents, const float *a);

/* u: half a unit in the last place of 1. */
static inline double amp__roundoff(amp_dtype low) { return low == AMP_FLOAT16 ? 0x1p-11 : 0x1p-8; }

#endif
