/* SPDX-License-Identifier: Apache-2.0 */
/* dst = src in dst's type; v: vf, or vd if either type is f64. Copies of the same type are the
 * reference's memcpy, but past the caches. And zeros. */
#include "kernels/vector/random.h"

/* The value to round. From bf16 to f32 NaNs become quiet, if no other step does it. */
#define AS_IT_IS(x) (x)

#define LOOK_AT_NOTHING(x)

#define CAST(v, to, from, made)                                                                                        \
    static inline void sweep_##from##_to_##to(void *dst, const void *src, size_t n) {                                  \
        amp__##to *const d = dst;                                                                                      \
        const amp__##from *const s = src;                                                                              \
        SWEEP(v, to, from, d, s, n, made, LOOK_AT_NOTHING)                                                             \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__CAST(from##_to_##to) {                                                                                 \
        const amp__fpenv saved = env_enter(RAISES_##from || RAISES_##to);                                              \
        sweep_##from##_to_##to(dst, src, n);                                                                           \
        env_leave(RAISES_##from || RAISES_##to, saved);                                                                \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__CAST_LIST(list_##from##_to_##to) {                                                                     \
        const amp__fpenv saved = env_enter(RAISES_##from || RAISES_##to);                                              \
        for (size_t i = 0; i < n; i++) sweep_##from##_to_##to(dst[i].data, src[i].data, (size_t)dst[i].size);          \
        env_leave(RAISES_##from || RAISES_##to, saved);                                                                \
    }                                                                                                                  \
                                                                                                                       \
    static AMP__CAST(stream_##from##_to_##to) {                                                                        \
        const size_t line = up_to_line(dst, sizeof(amp__##to)), head = n < line ? n : line;                            \
        amp__##to *d = (amp__##to *)dst + head;                                                                        \
        const amp__##from *s = (const amp__##from *)src + head;                                                        \
        const amp__fpenv saved = env_enter(RAISES_##from || RAISES_##to);                                              \
        sweep_##from##_to_##to(dst, src, head);                                                                        \
        for (n -= head; n >= PAIR; n -= PAIR, d += PAIR, s += PAIR) {                                                  \
            read_ahead(s, PAIR * sizeof *s);                                                                           \
            const v x0 = v##_load_##from(s), x1 = v##_load_##from(s + LANES);                                          \
            v##_stream_##to(d, made(x0)), v##_stream_##to(d + LANES, made(x1));                                        \
        }                                                                                                              \
        fence();                                                                                                       \
        sweep_##from##_to_##to(d, s, n);                                                                               \
        env_leave(RAISES_##from || RAISES_##to, saved);                                                                \
    }

CAST(vf, f32, f16, AS_IT_IS)
CAST(vf, f32, bf16, vf_quiet)
CAST(vd, f32, f64, AS_IT_IS)
CAST(vf, f16, f32, AS_IT_IS)
CAST(vf, f16, bf16, AS_IT_IS)
CAST(vd, f16, f64, AS_IT_IS)
CAST(vf, bf16, f32, AS_IT_IS)
CAST(vf, bf16, f16, AS_IT_IS)
CAST(vd, bf16, f64, AS_IT_IS)
CAST(vd, f64, f32, AS_IT_IS)
CAST(vd, f64, f16, AS_IT_IS)
CAST(vd, f64, bf16, AS_IT_IS)

/* ---- past the caches without a conversion: floats, whatever they mean ---- */

enum { VECTOR_BYTES = LANES * sizeof(amp__f32) };

static void stream_copy(char *dst, const char *src, size_t bytes) {
    const size_t line = up_to_line(dst, 1), head = bytes < line ? bytes : line;
    memcpy(dst, src, head);
    dst += head, src += head, bytes -= head;
    for (; bytes >= 2 * VECTOR_BYTES; bytes -= 2 * VECTOR_BYTES, dst += 2 * VECTOR_BYTES, src += 2 * VECTOR_BYTES) {
        read_ahead(src, 2 * VECTOR_BYTES);
        const vf x0 = vf_load_f32((const void *)src), x1 = vf_load_f32((const void *)(src + VECTOR_BYTES));
        vf_stream_f32((void *)dst, x0), vf_stream_f32((void *)(dst + VECTOR_BYTES), x1);
    }
    fence();
    memcpy(dst, src, bytes);
}

#define STREAM_COPY(type)                                                                                              \
    static AMP__CAST(stream_copy_##type) {                                                                             \
        if (n && dst != src) stream_copy(dst, src, n * sizeof(amp__##type));                                           \
    }
STREAM_COPY(f16)
STREAM_COPY(f32)
STREAM_COPY(f64)

static AMP__ZERO(zero) {
    char *to = dst;
    const size_t line = up_to_line(dst, 1), head = bytes < line ? bytes : line;
    const vf zeros = vf_set1(0.0f);
    if (head) memset(to, 0, head);
    for (to += head, bytes -= head; bytes >= VECTOR_BYTES; bytes -= VECTOR_BYTES, to += VECTOR_BYTES)
        vf_stream_f32((void *)to, zeros);
    fence();
    if (bytes) memset(to, 0, bytes);
}

/* ---- tables ---- */

amp__cast_fn *const AMP__TABLE(cast)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = { NULL, NULL, f16_to_f32, bf16_to_f32, f64_to_f32 },
    [AMP_FLOAT16] = { NULL, f32_to_f16, NULL, bf16_to_f16, f64_to_f16 },
    [AMP_BFLOAT16] = { NULL, f32_to_bf16, f16_to_bf16, NULL, f64_to_bf16 },
    [AMP_FLOAT64] = { NULL, f32_to_f64, f16_to_f64, bf16_to_f64, NULL },
};

amp__cast_list_fn *const AMP__TABLE(cast_list)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = { NULL, NULL, list_f16_to_f32, list_bf16_to_f32, list_f64_to_f32 },
    [AMP_FLOAT16] = { NULL, list_f32_to_f16, NULL, list_bf16_to_f16, list_f64_to_f16 },
    [AMP_BFLOAT16] = { NULL, list_f32_to_bf16, list_f16_to_bf16, NULL, list_f64_to_bf16 },
    [AMP_FLOAT64] = { NULL, list_f32_to_f64, list_f16_to_f64, list_bf16_to_f64, NULL },
};

amp__cast_fn *const AMP__TABLE(cast_stream)[AMP__TYPES][AMP__TYPES] = {
    [AMP_FLOAT32] = { NULL, stream_copy_f32, stream_f16_to_f32, stream_bf16_to_f32, stream_f64_to_f32 },
    [AMP_FLOAT16] = { NULL, stream_f32_to_f16, stream_copy_f16, stream_bf16_to_f16, stream_f64_to_f16 },
    [AMP_BFLOAT16] = { NULL, stream_f32_to_bf16, stream_f16_to_bf16, stream_copy_f16, stream_f64_to_bf16 },
    [AMP_FLOAT64] = { NULL, stream_f32_to_f64, stream_f16_to_f64, stream_bf16_to_f64, stream_copy_f64 },
};

amp__zero_fn *const AMP__TABLE(zero_stream) = zero;

/* ---- to bf16, rounded at random ---- */

/* The lower half of a NaN may be all of it. */
static inline vf rounded_or_nan(vf x, uint64_t key, size_t element) {
    const vi lower = vi_and(vi_bits(x), vi_set1(0xffff));
    const vi of_finite = vi_where_positive(lower, vf_add(vf_mul(x, vf_set1(0.0f)), vf_set1(1.0f)));
    return vf_of_bits(vi_xor(vi_bits(rounded_at_random(x, key, element)), vi_xor(lower, of_finite)));
}

static AMP__CAST_RANDOM(cast_random) {
    size_t at = 0;
    for (; n - at >= LANES; at += LANES)
        vf_store_bf16(dst + at, rounded_or_nan(vf_load_f32(src + at), key, (size_t)first + at));
    if (at == n) return;
    const vf rest = rounded_or_nan(vf_load_part_f32(src + at, n - at), key, (size_t)first + at);
    vf_store_part_bf16(dst + at, rest, n - at);
}

amp__cast_random_fn *const AMP__TABLE(cast_random) = cast_random;
