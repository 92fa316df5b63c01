/* SPDX-License-Identifier: Apache-2.0 */
/* dst = src in dst's type. Different types are never in place, so that pointers to them are restrict. */
#include "amp_kernels.h"
#include "kernels/random.h"
#include "kernels/ref/ref.h"

#define CAST(to, from)                                                                                                 \
    static AMP__CAST(from##_to_##to) {                                                                                 \
        amp__##to *restrict d = dst;                                                                                   \
        const amp__##from *restrict s = src;                                                                           \
        for (; n >= AMP__REF_BLOCK; n -= AMP__REF_BLOCK, d += AMP__REF_BLOCK, s += AMP__REF_BLOCK)                     \
            for (size_t i = 0; i < AMP__REF_BLOCK; i++) d[i] = amp__##from##_to_##to(s[i]);                            \
        for (size_t i = 0; i < n; i++) d[i] = amp__##from##_to_##to(s[i]);                                             \
    }

#define COPY(name, bytes)                                                                                              \
    static AMP__CAST(name) {                                                                                           \
        if (n && dst != src) memcpy(dst, src, n * (bytes));                                                            \
    }

CAST(f32, f16)
CAST(f32, bf16)
CAST(f32, f64)
CAST(f16, f32)
CAST(f16, bf16)
CAST(f16, f64)
CAST(bf16, f32)
CAST(bf16, f16)
CAST(bf16, f64)
CAST(f64, f32)
CAST(f64, f16)
CAST(f64, bf16)
COPY(copy16, 2)
COPY(copy32, 4)
COPY(copy64, 8)

#define CASTS                                                                                                          \
    {                                                                                                                  \
        [AMP_FLOAT32] = { NULL, copy32, f16_to_f32, bf16_to_f32, f64_to_f32 },                                         \
        [AMP_FLOAT16] = { NULL, f32_to_f16, copy16, bf16_to_f16, f64_to_f16 },                                         \
        [AMP_BFLOAT16] = { NULL, f32_to_bf16, f16_to_bf16, copy16, f64_to_bf16 },                                      \
        [AMP_FLOAT64] = { NULL, f32_to_f64, f16_to_f64, bf16_to_f64, copy64 },                                         \
    }
amp__cast_fn *const amp__ref_cast[AMP__TYPES][AMP__TYPES] = CASTS;
amp__cast_fn *const amp__ref_cast_stream[AMP__TYPES][AMP__TYPES] = CASTS;

/* Lists: the entries know their types. */
static AMP__CAST_LIST(cast_list) {
    for (size_t i = 0; i < n; i++)
        amp__ref_cast[dst[i].dtype][src[i].dtype](dst[i].data, src[i].data, (size_t)dst[i].size);
}

#define LIST_ROW { NULL, cast_list, cast_list, cast_list, cast_list }
amp__cast_list_fn *const amp__ref_cast_list[AMP__TYPES][AMP__TYPES] = {
    { NULL }, LIST_ROW, LIST_ROW, LIST_ROW, LIST_ROW
};

static AMP__CAST_RANDOM(cast_random) {
    for (size_t i = 0; i < n; i++)
        dst[i] = amp__f32_to_bf16(amp__round_bf16(src[i], amp__random_bits(key, first + i)));
}
amp__cast_random_fn *const amp__ref_cast_random = cast_random;

/* ---- single values ---- */

AMP_API uint16_t amp_float_to_half(float value) { return amp__f32_to_f16(value); }
AMP_API float amp_half_to_float(uint16_t bits) { return amp__f16_to_f32(bits); }
AMP_API uint16_t amp_float_to_bfloat16(float value) { return amp__f32_to_bf16(value); }
AMP_API float amp_bfloat16_to_float(uint16_t bits) { return amp__bf16_to_f32(bits); }
