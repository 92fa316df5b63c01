/* SPDX-License-Identifier: Apache-2.0 */
/* dst = src within limits, in blocks as in scale.c; and zeros. Source: torch.nn.utils.clip_grad_value_. */
#include "kernels/ref/ref.h"

#include <string.h>

/* A NaN compares false and stays. */
#define CLAMP_IN(type, number)                                                                                         \
    static void clamp_in_##type(const amp_span *dst, const amp_span *src, type limit) {                                \
        type work[AMP__REF_BLOCK];                                                                                     \
        const size_t n = (size_t)dst->size, to = amp__dtype_size(dst->dtype), from = amp__dtype_size(src->dtype);      \
        for (size_t at = 0, length; at < n; at += length) {                                                            \
            length = n - at < AMP__REF_BLOCK ? n - at : AMP__REF_BLOCK;                                                \
            amp__ref_cast[number][src->dtype](work, (const char *)src->data + at * from, length);                      \
            for (size_t i = 0; i < length; i++) {                                                                      \
                if (work[i] > limit) work[i] = limit;                                                                  \
                if (work[i] < -limit) work[i] = -limit;                                                                \
            }                                                                                                          \
            amp__ref_cast[dst->dtype][number]((char *)dst->data + at * to, work, length);                              \
        }                                                                                                              \
    }

CLAMP_IN(float, AMP_FLOAT32)
CLAMP_IN(double, AMP_FLOAT64)

static AMP__CLAMP_LIST(clamp_list) {
    for (size_t i = 0; i < n; i++)
        if (src[i].dtype == AMP_FLOAT64) clamp_in_double(&dst[i], &src[i], (double)limit);
        else clamp_in_float(&dst[i], &src[i], limit);
}

#define LIST_ROW { NULL, clamp_list, clamp_list, clamp_list, clamp_list }
amp__clamp_list_fn *const amp__ref_clamp_list[AMP__TYPES][AMP__TYPES] = {
    { NULL }, LIST_ROW, LIST_ROW, LIST_ROW, LIST_ROW,
};

static AMP__ZERO(zero) {
    if (bytes) memset(dst, 0, bytes);
}

amp__zero_fn *const amp__ref_zero_stream = zero;
