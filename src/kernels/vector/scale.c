/* SPDX-License-Identifier: Apache-2.0 */
/* dst = src * scale, with a check of dst. v: vector of the computation, vd for f64 sources, else vf. */
#include "kernels/vector/vector.h"

#define MAKE_vf(x) vf_mul(x, factor)
#define MAKE_vd(x) vd_mul(x, factor)
#define LOOK_vf_f32(x) seen = vf_see(seen, x, LIMIT_vf_f32);
#define LOOK_vf_f16(x) seen = vf_see(seen, x, LIMIT_vf_f16);
#define LOOK_vf_bf16(x) seen = vf_see(seen, x, LIMIT_vf_bf16);
#define LOOK_vf_f64(x) seen = vf_see(seen, x, LIMIT_vf_f64);
#define LOOK_vd_f32(x) seen = vd_see(seen, x, LIMIT_vd_f32);
#define LOOK_vd_f16(x) seen = vd_see(seen, x, LIMIT_vd_f16);
#define LOOK_vd_bf16(x) seen = vd_see(seen, x, LIMIT_vd_bf16);
#define LOOK_vd_f64(x) seen = vd_see(seen, x, LIMIT_vd_f64);

#define SCALE(v, to, from)                                                                                             \
    static inline SEEN_##v sweep_##from##_to_##to(void *dst, const void *src, size_t n, v factor, SEEN_##v seen) {     \
        amp__##to *const d = dst;                                                                                      \
        const amp__##from *const s = src;                                                                              \
        SWEEP(v, to, from, d, s, n, MAKE_##v, LOOK_##v##_##to)                                                         \
        return seen;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__SCALE_LIST(scale_list_##from##_to_##to) {                                                              \
        const v factor = v##_set1(scale);                                                                              \
        SEEN_##v seen = v##_unseen();                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            seen = sweep_##from##_to_##to(dst[i].data, src[i].data, (size_t)dst[i].size, factor, seen);                \
        *nonfinite |= v##_seen(seen, LIMIT_##v##_##to);                                                                \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__SCALE(stream_scale_##from##_to_##to) {                                                                 \
        const size_t line = up_to_line(dst, sizeof(amp__##to)), head = n < line ? n : line;                            \
        const v factor = v##_set1(scale);                                                                              \
        SEEN_##v seen = sweep_##from##_to_##to(dst, src, head, factor, v##_unseen());                                  \
        amp__##to *d = (amp__##to *)dst + head;                                                                        \
        const amp__##from *s = (const amp__##from *)src + head;                                                        \
        for (n -= head; n >= PAIR; n -= PAIR, d += PAIR, s += PAIR) {                                                  \
            read_ahead(s, PAIR * sizeof *s);                                                                           \
            const v x0 = v##_mul(v##_load_##from(s), factor), x1 = v##_mul(v##_load_##from(s + LANES), factor);        \
            v##_stream_##to(d, x0), v##_stream_##to(d + LANES, x1);                                                    \
            seen = v##_see(v##_see(seen, x0, LIMIT_##v##_##to), x1, LIMIT_##v##_##to);                                 \
        }                                                                                                              \
        fence();                                                                                                       \
        seen = sweep_##from##_to_##to(d, s, n, factor, seen);                                                          \
        *nonfinite |= v##_seen(seen, LIMIT_##v##_##to);                                                                \
    }

#define SCALE_TO(to) SCALE(vf, to, f32) SCALE(vf, to, f16) SCALE(vf, to, bf16) SCALE(vd, to, f64)
SCALE_TO(f32)
SCALE_TO(f16)
SCALE_TO(bf16)
SCALE_TO(f64)

#define ROW(prefix, to)                                                                                                \
    { NULL, prefix##f32_to_##to, prefix##f16_to_##to, prefix##bf16_to_##to, prefix##f64_to_##to }
amp__scale_list_fn *const AMP__TABLE(scale_list)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = ROW(scale_list_, f32),
    [AMP_FLOAT16] = ROW(scale_list_, f16),
    [AMP_BFLOAT16] = ROW(scale_list_, bf16),
    [AMP_FLOAT64] = ROW(scale_list_, f64),
};
amp__scale_fn *const AMP__TABLE(scale_stream)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = ROW(stream_scale_, f32),
    [AMP_FLOAT16] = ROW(stream_scale_, f16),
    [AMP_BFLOAT16] = ROW(stream_scale_, bf16),
    [AMP_FLOAT64] = ROW(stream_scale_, f64),
};
#undef ROW
