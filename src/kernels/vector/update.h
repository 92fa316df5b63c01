/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of a fused optimizer's step: LANES elements in and out. */
#ifndef AMP_KERNELS_VECTOR_UPDATE_H
#define AMP_KERNELS_VECTOR_UPDATE_H

#include "kernels/vector/random.h"
#include "kernels/vector/split.h"

/* The numbers of an update in all lanes; */
struct numbers {
    vf inv_scale, factor, lr, weight_decay, beta1, rest1, beta2, rest2, eps;
    vf correction1, correction2, ratio, denominator;
};

/* streams to read and write, as constants if a rule is compiled for certain types */
struct streams {
    amp_dtype grad, low; /* low AMP_DTYPE_DEFAULT: none */
    bool param, rest; /* param not: low is the parameter, or with a rest half of it */
    int moments;
    bool applies; /* moments as they are, and no gradient */
};

/* and LANES elements. */
struct elements {
    vf g, p, m[3], u;
};

INLINE struct numbers numbers_of(const struct amp__update *u) {
#define ALL(name) .name = vf_set1(u->name)
    return (struct numbers){ ALL(inv_scale), ALL(factor), ALL(lr), ALL(weight_decay), ALL(beta1), ALL(rest1),
                             ALL(beta2), ALL(rest2), ALL(eps), ALL(correction1), ALL(correction2), ALL(ratio),
                             ALL(denominator) };
#undef ALL
}

INLINE struct streams streams_of(const struct amp__update *u, int moments, bool applies) {
    const amp_dtype low = u->low ? u->low_type : AMP_DTYPE_DEFAULT;
    return (struct streams){ u->grad_type, low, u->param != NULL, u->rest != NULL, moments, applies };
}

/* X(grad, low, param, rest) for combinations that are compiled: FP32 alone, gradient and copy in one 16-bit type beside
 * a master, a split master, a bf16 parameter alone. Others run the general code. */
#define COMMON_STREAMS(X)                                                                                              \
    X(AMP_FLOAT32, AMP_DTYPE_DEFAULT, true, false)                                                                     \
    X(AMP_FLOAT16, AMP_FLOAT16, true, false)                                                                           \
    X(AMP_BFLOAT16, AMP_BFLOAT16, true, false)                                                                         \
    X(AMP_BFLOAT16, AMP_BFLOAT16, false, true)                                                                         \
    X(AMP_BFLOAT16, AMP_BFLOAT16, false, false)

INLINE bool same_types(struct streams x, struct streams y) {
    return x.grad == y.grad && x.low == y.low && x.param == y.param && x.rest == y.rest;
}

/* ---- memory: n elements from `at` on; n is LANES, or less at an end ---- */

#define TYPED(type)                                                                                                    \
    INLINE vf read_##type(const void *src, size_t at, size_t n) {                                                      \
        const amp__##type *s = (const amp__##type *)src + at;                                                          \
        return n < LANES ? vf_load_part_##type(s, n) : vf_load_##type(s);                                              \
    }                                                                                                                  \
    INLINE void write_##type(void *dst, vf x, size_t at, size_t n, bool stream) {                                      \
        amp__##type *d = (amp__##type *)dst + at;                                                                      \
        if (n < LANES) vf_store_part_##type(d, x, n);                                                                  \
        else if (stream) vf_stream_##type(d, x);                                                                       \
        else vf_store_##type(d, x);                                                                                    \
    }
TYPED(f32)
TYPED(f16)
TYPED(bf16)

/* The lines of the streams that are read AHEAD bytes after these elements. */
INLINE void fetch_line(const void *stream, size_t at, size_t width) {
    prefetch((const char *)stream + at * width, AHEAD, 1);
}
INLINE void fetch_ahead(const struct amp__update *u, struct streams s, size_t at) {
    if (!s.applies) fetch_line(u->grad, at, s.grad == AMP_FLOAT32 ? 4 : 2);
    if (s.param) fetch_line(u->param, at, 4);
    else fetch_line(u->low, at, 2);
    if (s.rest) fetch_line(u->rest, at, 2);
    for (int k = 0; k < s.moments; k++) fetch_line(u->moments[k], at, 4);
}

INLINE vf read_low(amp_dtype type, const void *src, size_t at, size_t n) {
    return type == AMP_FLOAT16 ? read_f16(src, at, n) : read_bf16(src, at, n);
}

INLINE void read_param(struct elements *x, const struct amp__update *u, struct streams s, size_t at, size_t n) {
    x->p = s.param  ? read_f32(u->param, at, n)
           : s.rest ? read_split(u->low, u->rest, u->ties, at, n)
                    : read_low(s.low, u->low, at, n);
    for (int k = 0; k < 3; k++) x->m[k] = k < s.moments ? read_f32(u->moments[k], at, n) : vf_set1(0.0f);
}

INLINE void read_grad(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s,
                      size_t at, size_t n) {
    const vf g = s.grad == AMP_FLOAT32 ? read_f32(u->grad, at, n) : read_low(s.grad, u->grad, at, n);
    x->g = vf_mul(vf_mul(g, c->inv_scale), c->factor);
}

INLINE void write_moments(const struct elements *x, const struct amp__update *u, struct streams s, size_t at,
                          size_t n) {
    for (int k = 0; k < s.moments; k++) write_f32(u->moments[k], x->m[k], at, n, false);
}

INLINE void step_and_write(const struct elements *x, const struct amp__update *u, const struct numbers *c,
                           struct streams s, size_t at, size_t n) {
    vf p = vf_sub(x->p, vf_mul(c->lr, x->u));
    if (!s.param && !s.rest && s.low == AMP_BFLOAT16 && u->stochastic)
        p = rounded_at_random(p, u->low_key, (size_t)u->before + at);
    if (s.param) write_f32(u->param, p, at, n, false);
    if (s.rest) write_split(u->low, u->rest, u->ties, p, at, n);
    else if (s.low == AMP_FLOAT16) write_f16(u->low, p, at, n, u->stream);
    else if (s.low == AMP_BFLOAT16) write_bf16(u->low, p, at, n, u->stream);
}

/* ---- common parts of rules ---- */

INLINE vf decayed(vf to, const struct elements *x, const struct amp__update *u, const struct numbers *c) {
    return u->weight_decay != 0.0f ? vf_add(to, vf_mul(c->weight_decay, x->p)) : to;
}

INLINE vf averaged(vf moment, vf value, const struct numbers *c) {
    return vf_add(vf_mul(c->beta1, moment), vf_mul(c->rest1, value));
}

#endif
