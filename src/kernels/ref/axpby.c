/* SPDX-License-Identifier: Apache-2.0 */
/* dst = a * x + b * y, in blocks as in scale.c. Source: Apex multi_tensor_axpby. */
#include "kernels/ref/ref.h"

/* Both sources of a block are read before dst is written, which may be either of them. */
#define AXPBY_IN(type, dtype)                                                                                          \
    static void axpby_in_##type(char *dst, amp_dtype to, type a, const char *x, amp_dtype x_type, type b,              \
                                const char *y, amp_dtype y_type, size_t n, uint32_t *nonfinite) {                      \
        type left[AMP__REF_BLOCK] = { 0 }, right[AMP__REF_BLOCK] = { 0 };                                              \
        const size_t to_size = amp__dtype_size(to), x_size = amp__dtype_size(x_type), y_size = amp__dtype_size(y_type);\
        for (size_t at = 0, length; at < n; at += length) {                                                            \
            length = n - at < AMP__REF_BLOCK ? n - at : AMP__REF_BLOCK;                                                \
            amp__ref_cast[dtype][x_type](left, x + at * x_size, length);                                               \
            amp__ref_cast[dtype][y_type](right, y + at * y_size, length);                                              \
            for (size_t i = 0; i < AMP__REF_BLOCK; i++) left[i] = a * left[i] + b * right[i];                          \
            amp__ref_cast[to][dtype](dst + at * to_size, left, length);                                                \
            *nonfinite |= amp__ref_nonfinite[to](dst + at * to_size, length);                                          \
        }                                                                                                              \
    }

AXPBY_IN(float, AMP_FLOAT32)
AXPBY_IN(double, AMP_FLOAT64)

#define AXPBY(to, x_type, y_type)                                                                                      \
    static AMP__AXPBY(axpby_##to##_##x_type##_##y_type) {                                                              \
        if (x_type == AMP_FLOAT64 || y_type == AMP_FLOAT64)                                                            \
            axpby_in_double(dst, to, (double)a, x, x_type, (double)b, y, y_type, n, nonfinite);                        \
        else                                                                                                           \
            axpby_in_float(dst, to, a, x, x_type, b, y, y_type, n, nonfinite);                                         \
    }
#define AXPBY_OF(to, x_type)                                                                                           \
    AXPBY(to, x_type, AMP_FLOAT32)                                                                                     \
    AXPBY(to, x_type, AMP_FLOAT16)                                                                                     \
    AXPBY(to, x_type, AMP_BFLOAT16)                                                                                    \
    AXPBY(to, x_type, AMP_FLOAT64)
#define AXPBY_TO(to)                                                                                                   \
    AXPBY_OF(to, AMP_FLOAT32)                                                                                          \
    AXPBY_OF(to, AMP_FLOAT16)                                                                                          \
    AXPBY_OF(to, AMP_BFLOAT16)                                                                                         \
    AXPBY_OF(to, AMP_FLOAT64)

AXPBY_TO(AMP_FLOAT32)
AXPBY_TO(AMP_FLOAT16)
AXPBY_TO(AMP_BFLOAT16)
AXPBY_TO(AMP_FLOAT64)

#define ROW(to, x_type)                                                                                                \
    [x_type] = { NULL, axpby_##to##_##x_type##_AMP_FLOAT32, axpby_##to##_##x_type##_AMP_FLOAT16,                       \
                 axpby_##to##_##x_type##_AMP_BFLOAT16, axpby_##to##_##x_type##_AMP_FLOAT64 }
#define ROWS(to)                                                                                                       \
    [to] = { ROW(to, AMP_FLOAT32), ROW(to, AMP_FLOAT16), ROW(to, AMP_BFLOAT16), ROW(to, AMP_FLOAT64) }

amp__axpby_fn *const amp__ref_axpby[AMP__TYPES][AMP__TYPES][AMP__TYPES] = {
    ROWS(AMP_FLOAT32),
    ROWS(AMP_FLOAT16),
    ROWS(AMP_BFLOAT16),
    ROWS(AMP_FLOAT64),
};
