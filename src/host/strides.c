/* SPDX-License-Identifier: Apache-2.0 */
#include "host/host.h"

#include <string.h>

enum { MOST_DIMS = 64 }; /* amp__view_size allows no more */

struct dimension {
    uint64_t step, reach; /* |stride|, and how far the last element is from the first */
};

/* By rising step, without dimensions of one element; how many, or -1 where one reaches beyond all memory. */
static int32_t sort_dimensions(int32_t ndim, const int64_t *shape, const int64_t *strides, struct dimension *sorted) {
    int32_t n = 0;
    for (int32_t d = 0; d < ndim; d++) {
        struct dimension dimension = { strides[d] < 0 ? 0 - (uint64_t)strides[d] : (uint64_t)strides[d], 0 };
        if (shape[d] == 1) continue;
        if (__builtin_mul_overflow((uint64_t)shape[d] - 1, dimension.step, &dimension.reach)) return -1;
        int32_t at = n++;
        for (; at && sorted[at - 1].step > dimension.step; at--) sorted[at] = sorted[at - 1];
        sorted[at] = dimension;
    }
    return n;
}

/* Each dimension must step over all that the smaller steps reach. */
bool amp__strides_apart(int32_t ndim, const int64_t *shape, const int64_t *strides) {
    struct dimension sorted[MOST_DIMS];
    const int32_t n = sort_dimensions(ndim, shape, strides, sorted);
    uint64_t below = 0;
    for (int32_t i = 0; i < n; i++) {
        if (sorted[i].step <= below) return false;
        if (__builtin_add_overflow(below, sorted[i].reach, &below) || below > (uint64_t)INT64_MAX / 16) return false;
    }
    return n >= 0;
}

bool amp__strides_negative(const struct amp__elements *at) {
    for (int32_t d = 0; d < at->ndim; d++)
        if (at->shape[d] > 1 && at->strides[d] < 0) return true;
    return false;
}

uint64_t amp__strides_reach(const struct amp__elements *at) {
    uint64_t reach = 1;
    for (int32_t d = 0; d < at->ndim; d++) reach += (uint64_t)(at->shape[d] - 1) * (uint64_t)at->strides[d];
    return reach;
}

/* ---- copying ---- */

static void copy_row(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t n, size_t width) {
    for (int64_t i = 0; i < n; i++, dst += dst_step, src += src_step) {
        if (width == 4) memcpy(dst, src, 4); /* constants: one move each */
        else if (width == 2) memcpy(dst, src, 2);
        else memcpy(dst, src, 8);
    }
}

/* In bytes. The stride of a dimension of one element is never taken, and may be any number. */
static int64_t step_of(const struct amp__elements *at, int32_t d) {
    return at->shape[d] > 1 ? at->strides[d] * (int64_t)amp__dtype_size(at->dtype) : 0;
}

/* Row by row of the last dimension; the others count like an odometer. */
static void copy_all(const struct amp__elements *at, char *compact, bool gather) {
    const size_t width = amp__dtype_size(at->dtype);
    const int32_t last = at->ndim - 1;
    const int64_t n = at->shape[last], step = step_of(at, last), rows = (int64_t)at->size / n;
    int64_t index[MOST_DIMS] = { 0 };
    char *row = at->data;
    for (int64_t r = 0; r < rows; r++, compact += n * (int64_t)width) {
        if (gather) copy_row(compact, (int64_t)width, row, step, n, width);
        else copy_row(row, step, compact, (int64_t)width, n, width);
        for (int32_t d = last - 1; d >= 0; d--) {
            const int64_t stride = step_of(at, d);
            if (++index[d] < at->shape[d]) {
                row += stride;
                break;
            }
            row -= (at->shape[d] - 1) * stride;
            index[d] = 0;
        }
    }
}

void amp__strides_gather(void *dst, const struct amp__elements *src) { copy_all(src, dst, true); }
void amp__strides_scatter(const struct amp__elements *dst, const void *src) {
    copy_all(dst, (char *)(uintptr_t)src, false);
}
