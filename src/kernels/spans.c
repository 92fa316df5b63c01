/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of thousands of short tensors are checked in a fraction of the time that they take otherwise: a first pass
 * without a branch finds out whether all entries look like the first one, and only if not, or if that is wrong, each is
 * looked at.
 */
#include "kernels/spans.h"

#include <string.h>

/* ---- each ---- */

static amp_status explain_span(const amp_span *span, const char *list, size_t i) {
    AMP_RETURN_IF(!amp__width(span->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "%s[%zu].dtype is %s (%d): use fp32, fp16, bf16 or fp64", list, i, amp__dtype_name(span->dtype),
                  (int)span->dtype);
    AMP_RETURN_IF(span->reserved, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].reserved is not 0", list, i);
    AMP_RETURN_IF(span->size && !span->data, AMP_ERR_INVALID_ARGUMENT, "%s[%zu] has %llu element%s and data NULL", list,
                  i, (unsigned long long)span->size, AMP__S(span->size));
    AMP_RETURN_IF(span->size > PTRDIFF_MAX / amp__width(span->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "%s[%zu].size is %llu element%s, more than there can be", list, i, (unsigned long long)span->size,
                  AMP__S(span->size));
    return AMP_OK;
}

static amp_status check_each(const amp_span *spans, size_t n, const char *list) {
    for (size_t i = 0; i < n; i++) {
        const amp_span *s = &spans[i];
        const bool fine = amp__width(s->dtype) && !s->reserved && (s->data || !s->size) && s->size <= PTRDIFF_MAX / 8;
        if (!fine) AMP_TRY(explain_span(s, list, i));
    }
    return AMP_OK;
}

static amp_status explain_sizes(const amp_span *dst, const amp_span *src, size_t n, const char *list) {
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(dst[i].size != src[i].size, AMP_ERR_INVALID_ARGUMENT,
                      "dst[%zu] has %llu element%s and %s[%zu] has %llu: they must be equal", i,
                      (unsigned long long)dst[i].size, AMP__S(dst[i].size), list, i, (unsigned long long)src[i].size);
    return AMP_OK;
}

/* ---- all ---- */

/* dtype and reserved. */
static inline uint64_t kind_of(const amp_span *span) {
    uint64_t kind;
    _Static_assert(offsetof(amp_span, dtype) + sizeof kind == sizeof *span, "dtype and reserved are the last 8 bytes");
    memcpy(&kind, (const char *)span + offsetof(amp_span, dtype), sizeof kind);
    return kind;
}

amp_status amp__spans_check(const amp_span *spans, size_t n, const char *list, struct amp__facts *facts) {
    AMP_RETURN_IF(n && !spans, AMP_ERR_INVALID_ARGUMENT, "%s is NULL and n is %zu", list, n);
    uint64_t differ = 0, sizes = 0, elements = 0;
    uintptr_t before = 0; /* the top bit: one byte before data is before all memory, or beyond all programs' */
    for (size_t i = 0; i < n; i++) {
        differ |= kind_of(&spans[i]) ^ kind_of(spans);
        before |= (uintptr_t)spans[i].data - 1;
        sizes |= spans[i].size;
        elements += spans[i].size;
    }
    facts->elements = elements;
    facts->mixed |= differ != 0;
    const bool plain = !differ && before <= UINTPTR_MAX / 2 && sizes <= PTRDIFF_MAX / 8;
    return check_each(spans, plain && n ? 1 : n, list);
}

amp_status amp__spans_check_pair(const amp_span *dst, const amp_span *src, size_t n, const char *list,
                                 struct amp__facts *facts) {
    AMP_TRY(amp__spans_check(dst, n, "dst", facts));
    if (src == dst) return AMP_OK;
    AMP_TRY(amp__spans_check(src, n, list, facts));
    uint64_t differ = 0;
    for (size_t i = 0; i < n; i++) differ |= dst[i].size ^ src[i].size;
    return differ ? explain_sizes(dst, src, n, list) : AMP_OK;
}
