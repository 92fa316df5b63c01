/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dst = src * scale, by blocks: converted to the type of the computation, multiplied, converted to dst and checked
 * there, since an element counts as non-finite in dst. Source: Apex multi_tensor_scale, which checks the source instead
 * and so misses overflows of the product or of dst.
 */
#include "kernels/ref/ref.h"

/* The last block is computed whole. Results beyond its end, from zeros or the block before, are dropped. */
#define SCALE_IN(type, dtype)                                                                                          \
    static void scale_in_##type(char *dst, amp_dtype to, const char *src, amp_dtype from, size_t n, type scale,        \
                                uint32_t *nonfinite) {                                                                 \
        type work[AMP__REF_BLOCK] = { 0 };                                                                             \
        const size_t to_size = amp__dtype_size(to), from_size = amp__dtype_size(from);                                 \
        for (size_t at = 0, length; at < n; at += length) {                                                            \
            length = n - at < AMP__REF_BLOCK ? n - at : AMP__REF_BLOCK;                                                \
            amp__ref_cast[dtype][from](work, src + at * from_size, length);                                            \
            for (size_t i = 0; i < AMP__REF_BLOCK; i++) work[i] *= scale;                                              \
            amp__ref_cast[to][dtype](dst + at * to_size, work, length);                                                \
            *nonfinite |= amp__ref_nonfinite[to](dst + at * to_size, length);                                          \
        }                                                                                                              \
    }

SCALE_IN(float, AMP_FLOAT32)
SCALE_IN(double, AMP_FLOAT64)

#define SCALE(to, from)                                                                                                \
    static AMP__SCALE(scale_##to##_##from) {                                                                           \
        if (from == AMP_FLOAT64)                                                                                       \
            scale_in_double(dst, to, src, from, n, (double)scale, nonfinite);                                          \
        else                                                                                                           \
            scale_in_float(dst, to, src, from, n, scale, nonfinite);                                                   \
    }
#define SCALE_TO(to)                                                                                                   \
    SCALE(to, AMP_FLOAT32)                                                                                             \
    SCALE(to, AMP_FLOAT16)                                                                                             \
    SCALE(to, AMP_BFLOAT16)                                                                                            \
    SCALE(to, AMP_FLOAT64)

SCALE_TO(AMP_FLOAT32)
SCALE_TO(AMP_FLOAT16)
SCALE_TO(AMP_BFLOAT16)
SCALE_TO(AMP_FLOAT64)

#define ROW(to)                                                                                                        \
    [to] = { NULL, scale_##to##_AMP_FLOAT32, scale_##to##_AMP_FLOAT16, scale_##to##_AMP_BFLOAT16,                      \
             scale_##to##_AMP_FLOAT64 }

amp__scale_fn *const amp__ref_scale_stream[AMP__TYPES][AMP__TYPES] = {
    ROW(AMP_FLOAT32),
    ROW(AMP_FLOAT16),
    ROW(AMP_BFLOAT16),
    ROW(AMP_FLOAT64),
};

/* Lists: the entries know their types. */
static AMP__SCALE_LIST(scale_list) {
    for (size_t i = 0; i < n; i++)
        amp__ref_scale_stream[dst[i].dtype][src[i].dtype](dst[i].data, src[i].data, (size_t)dst[i].size, scale,
                                                          nonfinite);
}

#define LIST_ROW { NULL, scale_list, scale_list, scale_list, scale_list }
amp__scale_list_fn *const amp__ref_scale_list[AMP__TYPES][AMP__TYPES] = {
    { NULL }, LIST_ROW, LIST_ROW, LIST_ROW, LIST_ROW,
};
