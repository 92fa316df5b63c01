/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused optimizers, a group at a time: the words of struct amp__update in kernels.h, and its results to the bit.
 * Spans: gradient, parameter, 16-bit copy, three moments in FP32; a tensor may lack any but the gradient. Of a split
 * master: the parameter in bf16, and its remainder in place of the copy.
 */
#ifndef AMP_KERNELS_CUDA_UPDATE_H
#define AMP_KERNELS_CUDA_UPDATE_H

#include "kernels/cuda/split.h"
#include "kernels/random.h"

#include <math.h>

enum { CUDA_GRAD, CUDA_PARAM, CUDA_LOW, CUDA_MOMENTS, CUDA_UPDATE_SPANS = CUDA_MOMENTS + 3 };

/* The passes that write parameters: the kernel of AMP__KERNEL_MAP, constant, moments at most. The first ones need no
 * norm: where the host knows their numbers they are one launch. */
#define CUDA_KNOWN_RULE_MAP(X)                                                                                         \
    X(sgd, SGD, 1)                                                                                                     \
    X(adam, ADAM, 3)                                                                                                   \
    X(adagrad, ADAGRAD, 1)
#define CUDA_RULE_MAP(X)                                                                                               \
    CUDA_KNOWN_RULE_MAP(X)                                                                                             \
    X(novograd, NOVOGRAD, 1)                                                                                           \
    X(lamb_apply, LAMB_APPLY, 2)

#define CUDA_RULE_CONSTANT(kernel, constant, moments) CUDA_##constant,
#define CUDA_RULE_OF_KERNEL(kernel, constant, moments) cuda_rule_##kernel = CUDA_##constant,
#define CUDA_RULE_COUNT(...) +1
enum { CUDA_KNOWN_RULES = 0 CUDA_KNOWN_RULE_MAP(CUDA_RULE_COUNT), CUDA_RULES = 0 CUDA_RULE_MAP(CUDA_RULE_COUNT) };
enum cuda_rule {
    CUDA_RULE_MAP(CUDA_RULE_CONSTANT)
    CUDA_LAMB_MOMENTS,
    /* By the rule in AMP_OPTIM_MAP. */
    CUDA_RULE_MAP(CUDA_RULE_OF_KERNEL)
    cuda_rule_lamb = CUDA_LAMB_APPLY
};
#undef CUDA_RULE_CONSTANT
#undef CUDA_RULE_OF_KERNEL
#undef CUDA_RULE_COUNT

/* The numbers for a step of one tensor, with the names of struct amp__update. */
struct cuda_update {
    float inv_scale, factor;
    float lr, weight_decay, beta1, rest1, beta2, rest2, eps, correction1, correction2;
    float ratio, denominator;
    uint32_t flags;
    /* Of random numbers: keys of the moments in 8 bits and of the parameter, elements of the whole before it. */
    uint64_t key, low_key, before;
};
enum { CUDA_FIRST = 1, CUDA_NESTEROV = 2, CUDA_DECAY_AFTER = 4, CUDA_DECOUPLED = 8, CUDA_SKIPPED = 16,
       CUDA_STOCHASTIC = 32 /* bf16 parameters alone */ };

/* ---- one element ---- */

struct cuda_values {
    float g, p, u, m[3];
};

CUDA_BOTH float cuda_decayed(float to, const struct cuda_values *x, const struct cuda_update *u) {
    return u->weight_decay != 0.0f ? to + u->weight_decay * x->p : to;
}

CUDA_BOTH float cuda_averaged(float moment, float value, const struct cuda_update *u) {
    return u->beta1 * moment + u->rest1 * value;
}

CUDA_BOTH void cuda_sgd(struct cuda_values *x, const struct cuda_update *u, int has_moment) {
    if (!(u->flags & CUDA_DECAY_AFTER)) x->g = cuda_decayed(x->g, x, u);
    x->u = x->g * u->ratio;
    if (has_moment) {
        x->m[0] = u->flags & CUDA_FIRST ? x->u : cuda_averaged(x->m[0], x->u, u);
        x->u = u->flags & CUDA_NESTEROV ? x->u + u->beta1 * x->m[0] : x->m[0];
    }
    if (u->flags & CUDA_DECAY_AFTER) x->u = cuda_decayed(x->u, x, u);
}

CUDA_BOTH void cuda_adam_moments(struct cuda_values *x, const struct cuda_update *u) {
    if (!(u->flags & CUDA_DECOUPLED)) x->g = cuda_decayed(x->g, x, u);
    x->m[0] = cuda_averaged(x->m[0], x->g, u);
    x->m[1] = u->beta2 * x->m[1] + u->rest2 * x->g * x->g;
}

CUDA_BOTH void cuda_adam_direction(struct cuda_values *x, const struct cuda_update *u, float v) {
    x->u = x->m[0] / u->correction1 / (sqrtf(v / u->correction2) + u->eps);
    if (u->flags & CUDA_DECOUPLED) x->u = cuda_decayed(x->u, x, u);
}

CUDA_BOTH void cuda_adam(struct cuda_values *x, const struct cuda_update *u, int has_largest) {
    cuda_adam_moments(x, u);
    if (has_largest && !(x->m[1] <= x->m[2])) x->m[2] = x->m[1];
    cuda_adam_direction(x, u, has_largest ? x->m[2] : x->m[1]);
}

CUDA_BOTH void cuda_adagrad(struct cuda_values *x, const struct cuda_update *u) {
    if (!(u->flags & CUDA_DECOUPLED)) x->g = cuda_decayed(x->g, x, u);
    x->m[0] = x->m[0] + x->g * x->g;
    x->u = x->g / (sqrtf(x->m[0]) + u->eps);
    if (u->flags & CUDA_DECOUPLED) x->u = cuda_decayed(x->u, x, u);
}

CUDA_BOTH void cuda_novograd(struct cuda_values *x, const struct cuda_update *u) {
    if (!(u->flags & CUDA_DECOUPLED)) x->g = cuda_decayed(x->g / u->denominator, x, u);
    x->m[0] = cuda_averaged(x->m[0], x->g, u);
    x->u = x->m[0] / u->correction1;
    if (u->flags & CUDA_DECOUPLED) x->u = cuda_decayed(x->u / u->denominator, x, u);
}

/* ---- a group: one half after the other, since a group of six spans has more numbers than a thread registers ---- */

struct cuda_state {
    float g[CUDA_HALF], p[CUDA_HALF], m[3][CUDA_HALF];
};

/* At most; a span each. */
CUDA_BOTH int cuda_moments(enum cuda_rule rule) {
#define CUDA_MOMENTS_OF(kernel, constant, moments)                                                                     \
    if (rule == CUDA_##constant) return moments;
    CUDA_RULE_MAP(CUDA_MOMENTS_OF)
#undef CUDA_MOMENTS_OF
    return 2; /* CUDA_LAMB_MOMENTS */
}

/* Of a split master the gradient is under way before the parameter's words are looked at: the search for ties waits
 * for them. with_grad: a constant. */
CUDA_BOTH void cuda_load_values(float p[CUDA_HALF], float g[CUDA_HALF], bool with_grad, const struct cuda_tensor *t,
                                const struct cuda_half *at) {
    const uint32_t type = CUDA_TYPE(t->shape, CUDA_GRAD);
    if (cuda_is_split(t, CUDA_PARAM)) {
        uint32_t words[CUDA_HALF], grad[CUDA_HALF];
        cuda_fetch_split(words, t, CUDA_PARAM, at);
        if (with_grad && type == AMP_FLOAT32) cuda_fetch_half32(grad, t, CUDA_GRAD, at);
        else if (with_grad) cuda_fetch_half16(grad, t, CUDA_GRAD, at);
        cuda_join_words(p, words, t, CUDA_PARAM, at);
        if (with_grad) cuda_widen(g, grad, type, CUDA_HALF);
        return;
    }
    if (cuda_has(t, CUDA_PARAM)) cuda_load_half(p, t, CUDA_PARAM, CUDA_TYPE(t->shape, CUDA_PARAM), at);
    else cuda_load_half(p, t, CUDA_LOW, CUDA_TYPE(t->shape, CUDA_LOW), at);
    if (with_grad) cuda_load_half(g, t, CUDA_GRAD, type, at);
}

CUDA_BOTH void cuda_unscale(float g[CUDA_HALF], const struct cuda_update *u) {
    CUDA_UNROLL
    for (int i = 0; i < CUDA_HALF; i++) g[i] = g[i] * u->inv_scale * u->factor;
}

CUDA_BOTH void cuda_load_state(struct cuda_state *s, enum cuda_rule rule, const struct cuda_tensor *t,
                               const struct cuda_update *u, const struct cuda_half *at) {
    CUDA_UNROLL
    for (int k = 0; k < cuda_moments(rule); k++)
        if (cuda_has(t, CUDA_MOMENTS + k)) cuda_load_half(s->m[k], t, CUDA_MOMENTS + k, AMP_FLOAT32, at);
    cuda_load_values(s->p, s->g, rule != CUDA_LAMB_APPLY, t, at);
    if (rule != CUDA_LAMB_APPLY) cuda_unscale(s->g, u);
}

CUDA_BOTH void cuda_store_moments(const struct cuda_state *s, enum cuda_rule rule, const struct cuda_tensor *t,
                                  const struct cuda_half *at) {
    CUDA_UNROLL
    for (int k = 0; k < cuda_moments(rule); k++)
        if (cuda_has(t, CUDA_MOMENTS + k)) cuda_store_half(s->m[k], t, CUDA_MOMENTS + k, AMP_FLOAT32, at);
}

CUDA_BOTH void cuda_store_param(const float p[CUDA_HALF], const struct cuda_tensor *t, const struct cuda_half *at) {
    if (cuda_is_split(t, CUDA_PARAM)) {
        cuda_split_half(p, t, CUDA_PARAM, at);
        return;
    }
    if (cuda_has(t, CUDA_PARAM)) cuda_store_half(p, t, CUDA_PARAM, CUDA_TYPE(t->shape, CUDA_PARAM), at);
    if (cuda_has(t, CUDA_LOW)) cuda_store_half(p, t, CUDA_LOW, CUDA_TYPE(t->shape, CUDA_LOW), at);
}

/* Rounds a bf16 parameter without a master up or down at random. */
CUDA_BOTH void cuda_round_param(float p[CUDA_HALF], const struct cuda_tensor *t, const struct cuda_update *u,
                                const struct cuda_half *at) {
    const int alone = cuda_has(t, CUDA_PARAM) != cuda_has(t, CUDA_LOW);
    const int k = cuda_has(t, CUDA_LOW) ? CUDA_LOW : CUDA_PARAM;
    if (!(u->flags & CUDA_STOCHASTIC) || !alone || CUDA_TYPE(t->shape, k) != AMP_BFLOAT16) return;
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++)
        p[i] = amp__round_bf16(p[i], amp__random_bits(u->low_key, u->before + at->first + i));
}

/* stochastic: a constant, false where no tensor is rounded at random. */
CUDA_BOTH void cuda_update_half(enum cuda_rule rule, bool stochastic, const struct cuda_tensor *t,
                                const struct cuda_update *u, const struct cuda_half *at, double sums[2]) {
    struct cuda_state s;
    cuda_load_state(&s, rule, t, u, at);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++) {
        struct cuda_values x = { rule == CUDA_LAMB_APPLY ? 0.0f : s.g[i], s.p[i], 0.0f, { 0.0f, 0.0f, 0.0f } };
        CUDA_UNROLL
        for (int k = 0; k < cuda_moments(rule); k++) x.m[k] = cuda_has(t, CUDA_MOMENTS + k) ? s.m[k][i] : 0.0f;
        if (rule == CUDA_SGD) cuda_sgd(&x, u, cuda_has(t, CUDA_MOMENTS));
        if (rule == CUDA_ADAM) cuda_adam(&x, u, cuda_has(t, CUDA_MOMENTS + 2));
        if (rule == CUDA_ADAGRAD) cuda_adagrad(&x, u);
        if (rule == CUDA_NOVOGRAD) cuda_novograd(&x, u);
        if (rule == CUDA_LAMB_MOMENTS) {
            x.g = x.g * u->ratio;
            cuda_adam_moments(&x, u);
        }
        if (rule == CUDA_LAMB_MOMENTS || rule == CUDA_LAMB_APPLY) cuda_adam_direction(&x, u, x.m[1]);
        if (rule == CUDA_LAMB_MOMENTS && i < at->count) {
            sums[0] = cuda_add_square(sums[0], (double)x.p);
            sums[1] = cuda_add_square(sums[1], (double)x.u);
        }
        CUDA_UNROLL
        for (int k = 0; k < cuda_moments(rule); k++) s.m[k][i] = x.m[k];
        s.p[i] = x.p - u->lr * x.u;
    }
    if (rule != CUDA_LAMB_APPLY) cuda_store_moments(&s, rule, t, at);
    if (rule == CUDA_LAMB_MOMENTS) return;
    if (stochastic) cuda_round_param(s.p, t, u, at);
    cuda_store_param(s.p, t, at);
}

/* `rule` and `stochastic` are constants wherever this is called. sums: of CUDA_LAMB_MOMENTS, the squares of p and of u
 * are added. */
CUDA_BOTH void cuda_update_group(enum cuda_rule rule, bool stochastic, const struct cuda_tensor *t,
                                 const struct cuda_update *u, const struct cuda_range *at, double sums[2]) {
    CUDA_ROLLED
    for (uint32_t done = 0; done < at->count; done += CUDA_HALF) {
        const struct cuda_half half = cuda_half_of(at, done);
        cuda_update_half(rule, stochastic, t, u, &half, sums);
    }
}

#endif
