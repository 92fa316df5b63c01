/* SPDX-License-Identifier: Apache-2.0 */
/* Checked lists of the caller, with facts for the plan of the call. */
#ifndef AMP_KERNELS_SPANS_H
#define AMP_KERNELS_SPANS_H

#include "amp_kernels.h"
#include "common/common.h"

/* Filled by the checks; begins as zeros. */
struct amp__facts {
    uint64_t elements; /* of one of the lists */
    bool mixed;        /* types differ between entries */
};

/* `list` is the argument's name. AMP_ERR_INVALID_ARGUMENT. */
amp_status amp__spans_check(const amp_span *spans, size_t n, const char *list, struct amp__facts *facts);
/* dst too, and dst[i] and src[i] have equal sizes. dst == src: in place. */
amp_status amp__spans_check_pair(const amp_span *dst, const amp_span *src, size_t n, const char *list,
                                 struct amp__facts *facts);

/* Bytes of an element of a floating type, 0 of other types. */
static inline size_t amp__width(amp_dtype dtype) {
    static const uint8_t widths[AMP_FLOAT64 + 1] = { [AMP_FLOAT32] = 4, [AMP_FLOAT16] = 2, [AMP_BFLOAT16] = 2,
                                                     [AMP_FLOAT64] = 8 };
    return (uint32_t)dtype <= AMP_FLOAT64 ? widths[dtype] : 0;
}

/* Returns elements [begin, end) of a span. data may be NULL for an empty one. */
static inline amp_span amp__span_cut(const amp_span *span, size_t begin, size_t end) {
    void *data = begin ? (char *)span->data + begin * amp__width(span->dtype) : span->data;
    return (amp_span){ data, end - begin, span->dtype, 0 };
}

#endif
