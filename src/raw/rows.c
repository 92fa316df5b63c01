/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of raw buffers on their way into a call and back, by rows. Gaps between rows are not touched. */
#include "amp_kernels.h"
#include "raw/raw.h"

#include <string.h>

static int64_t row_length(const struct amp__extents *extents) {
    return extents->ndim && extents->row_stride != extents->shape[extents->ndim - 1] ? extents->shape[extents->ndim - 1]
                                                                                     : extents->count;
}

typedef void row_function(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t offset, int64_t n,
                          struct amp__counts *counts);

static void each_row(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, row_function *function,
                     struct amp__counts *counts) {
    const int64_t length = row_length(&buffer->extents);
    const int64_t rows = length ? buffer->extents.count / length : 0;
    for (int64_t row = 0; row < rows; row++)
        function(raw, buffer, rows > 1 ? row * buffer->extents.row_stride : 0, length, counts);
}

static void round_in(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                     struct amp__counts *counts) {
    amp__round((float *)buffer->temporary + at, buffer->host + at, (uint64_t)n, raw->low, counts);
}

static void narrow_in(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                      struct amp__counts *counts) {
    const amp_span dst = { (uint16_t *)buffer->temporary + at, (uint64_t)n, raw->low, 0 };
    const amp_span src = { buffer->host + at, (uint64_t)n, AMP_FLOAT32, 0 };
    if (amp_cast_list(&dst, &src, 1) == AMP_OK && counts)
        amp__count_rounded(counts, buffer->host + at, (const uint16_t *)buffer->temporary + at, (uint64_t)n, raw->low);
}

static void scale_in(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                     struct amp__counts *counts) {
    float *scaled = (float *)buffer->temporary + at;
    (void)counts;
    for (int64_t i = 0; i < n; i++) scaled[i] = buffer->host[at + i] * raw->seed;
}

static void copy_in(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                    struct amp__counts *counts) {
    (void)raw, (void)counts;
    memcpy((float *)buffer->temporary + at, buffer->host + at, (size_t)n * sizeof(float));
}

void amp__raw_fill(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, enum amp__into how,
                   struct amp__counts *counts) {
    static row_function *const ins[] = { [AMP__INTO_ROUNDED] = round_in, [AMP__INTO_NARROWED] = narrow_in,
                                         [AMP__INTO_SCALED] = scale_in, [AMP__INTO_COPIED] = copy_in };
    each_row(raw, buffer, ins[how], counts);
}

/* ---- after the op ---- */

static void round_out(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                      struct amp__counts *counts) {
    const float *written = buffer->temporary ? buffer->temporary : buffer->host;
    amp__round(buffer->host + at, written + at, (uint64_t)n, raw->low, counts);
}

static void widen_out(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                      struct amp__counts *counts) {
    const amp_span src = { (uint16_t *)buffer->temporary + at, (uint64_t)n, raw->low, 0 };
    const amp_span dst = { buffer->host + at, (uint64_t)n, AMP_FLOAT32, 0 };
    const amp_status status = amp_cast_list(&dst, &src, 1);
    (void)status, (void)counts;
}

static void add_out(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, int64_t at, int64_t n,
                    struct amp__counts *counts) {
    float *scratch = (float *)buffer->temporary + at;
    const amp_span sum = { buffer->host + at, (uint64_t)n, AMP_FLOAT32, 0 },
                   addend = { scratch, (uint64_t)n, AMP_FLOAT32, 0 };
    amp__round(scratch, scratch, (uint64_t)n, raw->low, counts);
    const amp_status status = amp_axpby_list(&sum, 1.0f, &sum, 1.0f, &addend, 1, NULL);
    (void)status;
    if (raw->low_sums) amp__round(sum.data, sum.data, sum.size, raw->low, counts);
}

void amp__raw_leave(const struct amp__raw *raw, struct amp__op *op, const struct amp__bound *bound) {
    static row_function *const outs[] = { [AMP__RAW_ROUND] = round_out, [AMP__RAW_WIDEN] = widen_out,
                                               [AMP__RAW_ADD] = add_out };
    struct amp__counts counts = raw->counts;
    for (size_t i = 0; i < raw->n; i++)
        if (raw->buffers[i].after != AMP__RAW_NOTHING)
            each_row(raw, &raw->buffers[i], outs[raw->buffers[i].after], &counts);
    amp__op_add_counts(op, &counts);
    amp__raw_put_addresses(raw, bound);
}
