/* SPDX-License-Identifier: Apache-2.0 */
/* dst = a * x + b * y in float, and whether that left dst's type. Those with doubles are the reference's. */
#include "kernels/vector/vector.h"

#define AXPBY_OF(l, r) vf_add(vf_mul(left, l), vf_mul(right, r))

/* All of a round is read before any of it is written: dst may be x or y. */
#define AXPBY(to, x_type, y_type)                                                                                      \
    static AMP__AXPBY(axpby_##x_type##_##y_type##_to_##to) {                                                           \
        amp__##to *d = dst;                                                                                            \
        const amp__##x_type *xs = x;                                                                                   \
        const amp__##y_type *ys = y;                                                                                   \
        const vf left = vf_set1(a), right = vf_set1(b);                                                                \
        seen_f seen = vf_unseen();                                                                                     \
        for (; n >= 2 * LANES; n -= 2 * LANES, d += 2 * LANES, xs += 2 * LANES, ys += 2 * LANES) {                     \
            const vf z0 = AXPBY_OF(vf_load_##x_type(xs), vf_load_##y_type(ys));                                        \
            const vf z1 = AXPBY_OF(vf_load_##x_type(xs + LANES), vf_load_##y_type(ys + LANES));                        \
            vf_store_##to(d, z0), vf_store_##to(d + LANES, z1);                                                        \
            seen = vf_see(vf_see(seen, z0, LIMIT_vf_##to), z1, LIMIT_vf_##to);                                         \
        }                                                                                                              \
        while (n) {                                                                                                    \
            const size_t length = n < LANES - 1 ? n : LANES - 1;                                                       \
            const vf z = AXPBY_OF(vf_load_part_##x_type(xs, length), vf_load_part_##y_type(ys, length));               \
            vf_store_part_##to(d, z, length);                                                                          \
            seen = vf_see(seen, vf_first(z, length), LIMIT_vf_##to);                                                   \
            n -= length, d += length, xs += length, ys += length;                                                      \
        }                                                                                                              \
        *nonfinite |= vf_seen(seen, LIMIT_vf_##to);                                                                    \
    }

#define AXPBY_X(to, x_type) AXPBY(to, x_type, f32) AXPBY(to, x_type, f16) AXPBY(to, x_type, bf16)
#define AXPBY_TO(to) AXPBY_X(to, f32) AXPBY_X(to, f16) AXPBY_X(to, bf16)
AXPBY_TO(f32)
AXPBY_TO(f16)
AXPBY_TO(bf16)
AXPBY_TO(f64)

#define ROW(to, x_type) \
    { NULL, axpby_##x_type##_f32_to_##to, axpby_##x_type##_f16_to_##to, axpby_##x_type##_bf16_to_##to }
#define ROWS(to) { [AMP_FLOAT32] = ROW(to, f32), [AMP_FLOAT16] = ROW(to, f16), [AMP_BFLOAT16] = ROW(to, bf16) }
amp__axpby_fn *const AMP__TABLE(axpby)[AMP__TYPES][AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = ROWS(f32),
    [AMP_FLOAT16] = ROWS(f16),
    [AMP_BFLOAT16] = ROWS(bf16),
    [AMP_FLOAT64] = ROWS(f64),
};
#undef ROW
#undef ROWS
