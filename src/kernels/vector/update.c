/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused optimizers, in the operations of struct amp__update: a vector of each stream is read, computed and written
 * before the next. Properties that are constant in a call (types, moments, switches) are tested for each vector, since
 * a branch that always goes one way costs less than the memory. Important combinations are compiled separately
 * (sweep_fast).
 */
#include "kernels/vector/update.h"

/* ---- rules ---- */

INLINE void sgd(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s) {
    x->u = vf_mul(u->decay_after ? x->g : decayed(x->g, x, u, c), c->ratio);
    if (s.moments) {
        x->m[0] = u->first ? x->u : averaged(x->m[0], x->u, c);
        x->u = u->nesterov ? vf_add(x->u, vf_mul(c->beta1, x->m[0])) : x->m[0];
    }
    if (u->decay_after) x->u = decayed(x->u, x, u, c);
}

INLINE void adam_moments(struct elements *x, const struct amp__update *u, const struct numbers *c) {
    if (!u->decoupled) x->g = decayed(x->g, x, u, c);
    x->m[0] = averaged(x->m[0], x->g, c);
    x->m[1] = vf_add(vf_mul(c->beta2, x->m[1]), vf_mul(vf_mul(c->rest2, x->g), x->g));
}

/* x / correction. The division by 1 takes nothing: a correction is 1, rounded, from step 165 on with beta 0.9, and from
 * 17,321 on with 0.999. */
INLINE vf corrected(vf x, float correction, vf all) { return correction == 1.0f ? x : vf_div(x, all); }

INLINE void adam_direction(struct elements *x, const struct amp__update *u, const struct numbers *c, vf v) {
    const vf root = vf_sqrt(corrected(v, u->correction2, c->correction2));
    x->u = vf_div(corrected(x->m[0], u->correction1, c->correction1), vf_add(root, c->eps));
    if (u->decoupled) x->u = decayed(x->u, x, u, c);
}

INLINE void adam(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s) {
    adam_moments(x, u, c);
    if (s.moments > 2) x->m[2] = vf_larger(x->m[1], x->m[2]);
    adam_direction(x, u, c, x->m[s.moments > 2 ? 2 : 1]);
}

INLINE void adagrad(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s) {
    (void)s;
    if (!u->decoupled) x->g = decayed(x->g, x, u, c);
    x->m[0] = vf_add(x->m[0], vf_mul(x->g, x->g));
    x->u = vf_div(x->g, vf_add(vf_sqrt(x->m[0]), c->eps));
    if (u->decoupled) x->u = decayed(x->u, x, u, c);
}

INLINE void novograd(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s) {
    (void)s;
    if (!u->decoupled) x->g = decayed(vf_div(x->g, c->denominator), x, u, c);
    x->m[0] = averaged(x->m[0], x->g, c);
    x->u = corrected(x->m[0], u->correction1, c->correction1);
    if (u->decoupled) x->u = decayed(vf_div(x->u, c->denominator), x, u, c);
}

/* LAMB's second half, once the norms are known. */
INLINE void lamb(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s) {
    adam_direction(x, u, c, x->m[s.moments - 1]);
}

/* ---- kernels ---- */

typedef void rule_fn(struct elements *x, const struct amp__update *u, const struct numbers *c, struct streams s);

INLINE void update(rule_fn *rule, const struct amp__update *u, const struct numbers *c, struct streams s, size_t at,
                   size_t n) {
    struct elements x;
    read_param(&x, u, s, at, n);
    if (!s.applies) read_grad(&x, u, c, s, at, n);
    rule(&x, u, c, s);
    if (!s.applies) write_moments(&x, u, s, at, n);
    step_and_write(&x, u, c, s, at, n);
}

/* Fewer than a vector, for any streams: compiled once for each rule, since parts of vectors are long code. */
typedef void part_fn(const struct amp__update *u, size_t at, size_t n);

#define PART(rule, moments, applies)                                                                                   \
    static __attribute__((noinline)) void rule##_part(const struct amp__update *u, size_t at, size_t n) {              \
        const struct numbers c = numbers_of(u);                                                                        \
        update(rule, u, &c, streams_of(u, moments, applies), at, n);                                                   \
    }
PART(sgd, u->moments[0] ? 1 : 0, false)
PART(adam, u->moments[2] ? 3 : 2, false)
PART(adagrad, 1, false)
PART(novograd, 1, false)
PART(lamb, 2, true)

INLINE void sweep(rule_fn *rule, part_fn *part, const struct amp__update *given, struct streams s, size_t at,
                  size_t end) {
    const struct amp__update u = *given; /* no store can change this one */
    const struct numbers c = numbers_of(&u);
    const bool streams = s.low && u.stream; /* the 16-bit copy alone is */
    if (streams) { /* whole vectors go where a vector may be */
        const size_t wanted = up_to_vector((const amp__f16 *)u.low + at, sizeof(amp__f16));
        const size_t head = wanted < end - at ? wanted : end - at;
        if (head) part(given, at, head);
        at += head;
    }
    for (; end - at >= LANES; at += LANES) {
        fetch_ahead(&u, s, at);
        update(rule, &u, &c, s, at, LANES);
    }
    if (at < end) part(given, at, end - at);
    if (streams) fence();
}

INLINE void sweep_fast(rule_fn *rule, part_fn *part, const struct amp__update *u, int moments, size_t begin,
                       size_t end) {
    const struct streams any = streams_of(u, moments, false);
#define SWEEP_COMMON(...)                                                                                              \
    if (same_types(any, (struct streams){ __VA_ARGS__, moments, false })) {                                            \
        sweep(rule, part, u, (struct streams){ __VA_ARGS__, moments, false }, begin, end);                             \
        return;                                                                                                        \
    }
    COMMON_STREAMS(SWEEP_COMMON)
    sweep(rule, part, u, any, begin, end);
}

static AMP__UPDATE(update_sgd) {
    if (u->moments[0]) sweep_fast(sgd, sgd_part, u, 1, begin, end);
    else sweep_fast(sgd, sgd_part, u, 0, begin, end);
}
static AMP__UPDATE(update_adam) {
    if (u->moments[2]) sweep(adam, adam_part, u, streams_of(u, 3, false), begin, end);
    else sweep_fast(adam, adam_part, u, 2, begin, end);
}
static AMP__UPDATE(update_adagrad) { sweep(adagrad, adagrad_part, u, streams_of(u, 1, false), begin, end); }
static AMP__UPDATE(update_novograd) { sweep(novograd, novograd_part, u, streams_of(u, 1, false), begin, end); }
static AMP__UPDATE(update_lamb_apply) { sweep(lamb, lamb_part, u, streams_of(u, 2, true), begin, end); }

/* ---- LAMB's first half ---- */

enum { SUMS = AMP__SUM_LANES / LANES };

/* Computes one vector, with squares added in their order. Elements beyond the end must not be counted. */
INLINE void lamb_vector(const struct amp__update *u, const struct numbers *c, struct streams s, size_t at, size_t n,
                        vd sums[2]) {
    struct elements x;
    read_param(&x, u, s, at, n);
    read_grad(&x, u, c, s, at, n);
    x.g = vf_mul(x.g, c->ratio);
    adam_moments(&x, u, c);
    adam_direction(&x, u, c, x.m[1]);
    write_moments(&x, u, s, at, n);
    const vd p = widen(x.p), direction = widen(n < LANES ? vf_first(x.u, n) : x.u);
    sums[0] = vd_add_exact(sums[0], p, p);
    sums[1] = vd_add_exact(sums[1], direction, direction);
}

static AMP__UPDATE_SQUARES(update_lamb_moments) {
    const struct amp__update copy = *u;
    const struct numbers c = numbers_of(&copy);
    const struct streams s = streams_of(&copy, 2, false);
    vd sums[SUMS][2];
    for (int j = 0; j < SUMS; j++) sums[j][0] = sums[j][1] = vd_set1(0.0);
    size_t at = begin;
    for (; end - at >= AMP__SUM_LANES; at += AMP__SUM_LANES)
        for (size_t j = 0; j < SUMS; j++) lamb_vector(&copy, &c, s, at + j * LANES, LANES, sums[j]);
    for (size_t j = 0, n; at < end; at += n, j++) {
        n = end - at < LANES ? end - at : LANES;
        lamb_vector(&copy, &c, s, at, n, sums[j]);
    }
    for (int k = 0; k < 2; k++) {
        double lane[AMP__SUM_LANES];
        for (size_t j = 0; j < SUMS; j++) vd_store_f64(lane + j * LANES, sums[j][k]);
        squares[k] = sum_lanes(lane);
    }
}

amp__update_fn *const AMP__TABLE(sgd) = update_sgd, *const AMP__TABLE(adam) = update_adam,
                      *const AMP__TABLE(adagrad) = update_adagrad, *const AMP__TABLE(novograd) = update_novograd,
                      *const AMP__TABLE(lamb_apply) = update_lamb_apply;
amp__update_squares_fn *const AMP__TABLE(lamb_moments) = update_lamb_moments;
