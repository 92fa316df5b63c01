/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping gradients by value, in place. */
#include "kernels/fpenv.h"
#include "master/master.h"

enum { BLOCK = 512 };

/* A NaN compares false and stays. */
#define CLAMP(type)                                                                                                    \
    static void clamp_##type(type *values, size_t n, type limit) {                                                     \
        const amp__fpenv saved = amp__fpenv_enter();                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            if (values[i] > limit) values[i] = limit;                                                                  \
            if (values[i] < -limit) values[i] = -limit;                                                                \
        }                                                                                                              \
        amp__fpenv_leave(saved);                                                                                       \
    }
CLAMP(float)
CLAMP(double)

/* 16-bit elements pass through float; a limit that their type does not have is rounded as any value is. */
static amp_status clamp_low(const amp_span *span, float limit) {
    const size_t width = amp__dtype_size(span->dtype);
    float work[BLOCK];
    for (uint64_t at = 0; at < span->size; at += BLOCK) {
        const uint64_t n = span->size - at < BLOCK ? span->size - at : BLOCK;
        const amp_span low = { (char *)span->data + at * width, n, span->dtype, 0 }, wide = { work, n, AMP_FLOAT32, 0 };
        AMP_TRY(amp_cast_list(&wide, &low, 1));
        clamp_float(work, n, limit);
        AMP_TRY(amp_cast_list(&low, &wide, 1));
    }
    return AMP_OK;
}

static amp_status clamp(const amp_span *span, float limit) {
    if (span->dtype == AMP_FLOAT32) clamp_float(span->data, span->size, limit);
    else if (span->dtype == AMP_FLOAT64) clamp_double(span->data, span->size, (double)limit);
    else return clamp_low(span, limit);
    return AMP_OK;
}

amp_status amp__grads_clamp(struct amp__param *const *params, size_t n, float limit) {
    for (size_t i = 0; i < n; i++) {
        amp_span span;
        AMP_TRY(amp__grads_view(params[i], &span));
        if (!span.data) continue;
        AMP_TRY(clamp(&span, limit));
        AMP_TRY(amp__grads_written(params[i], &span));
    }
    return AMP_OK;
}
