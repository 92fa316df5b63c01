/* SPDX-License-Identifier: Apache-2.0 */
/* dst = src clamped to [-limit, limit]. v: vector of the computation, vd for f64 sources, else vf. */
#include "kernels/vector/vector.h"

#define MAKE_vf(x) vf_min(high, vf_max(low, x))
#define MAKE_vd(x) vd_min(high, vd_max(low, x))
#define LOOK_AT_NOTHING(x)

#define CLAMP(v, to, from)                                                                                             \
    static inline void sweep_##from##_to_##to(void *dst, const void *src, size_t n, v low, v high) {                   \
        amp__##to *const d = dst;                                                                                      \
        const amp__##from *const s = src;                                                                              \
        SWEEP(v, to, from, d, s, n, MAKE_##v, LOOK_AT_NOTHING)                                                         \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__CLAMP_LIST(list_##from##_to_##to) {                                                                    \
        const v low = v##_set1(-limit), high = v##_set1(limit);                                                        \
        for (size_t i = 0; i < n; i++)                                                                                 \
            sweep_##from##_to_##to(dst[i].data, src[i].data, (size_t)dst[i].size, low, high);                          \
    }

#define CLAMP_TO(to) CLAMP(vf, to, f32) CLAMP(vf, to, f16) CLAMP(vf, to, bf16) CLAMP(vd, to, f64)
CLAMP_TO(f32)
CLAMP_TO(f16)
CLAMP_TO(bf16)
CLAMP_TO(f64)

#define ROW(to) { NULL, list_f32_to_##to, list_f16_to_##to, list_bf16_to_##to, list_f64_to_##to }
amp__clamp_list_fn *const AMP__TABLE(clamp_list)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = ROW(f32), [AMP_FLOAT16] = ROW(f16), [AMP_BFLOAT16] = ROW(bf16), [AMP_FLOAT64] = ROW(f64),
};
#undef ROW
