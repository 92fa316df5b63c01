/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule with each of its switches, for tests that go through all of them; and tensors to step. */
#ifndef TEST_OPTIM_RULES_H
#define TEST_OPTIM_RULES_H

#include "asserts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* X(name, kind, what differs from the defaults) */
#define RULES(X)                                                                                                       \
    X(sgd, SGD, )                                                                                                      \
    X(sgd_decay, SGD, r.weight_decay = 0.1)                                                                            \
    X(sgd_momentum, SGD, r.momentum = 0.9; r.weight_decay = 0.01)                                                      \
    X(sgd_dampening, SGD, r.momentum = 0.9; r.dampening = 0.3)                                                         \
    X(sgd_nesterov, SGD, r.momentum = 0.9; r.flags |= AMP_OPTIM_NESTEROV)                                              \
    X(sgd_decay_after, SGD, r.momentum = 0.9; r.weight_decay = 0.1; r.flags |= AMP_OPTIM_DECAY_AFTER_MOMENTUM)         \
    X(adam, ADAM, )                                                                                                    \
    X(adam_decay, ADAM, r.weight_decay = 0.1)                                                                          \
    X(adam_uncorrected, ADAM, r.flags = 0; r.eps = 1e-3)                                                               \
    X(adam_amsgrad, ADAM, r.flags |= AMP_OPTIM_AMSGRAD)                                                                \
    X(adamw, ADAMW, r.weight_decay = 0.1)                                                                              \
    X(adamw_amsgrad, ADAMW, r.weight_decay = 0.1; r.flags |= AMP_OPTIM_AMSGRAD)                                        \
    X(lamb, LAMB, )                                                                                                    \
    X(lamb_l2, LAMB, r.flags &= ~(uint32_t)AMP_OPTIM_DECOUPLED)                                                        \
    X(lamb_no_decay, LAMB, r.weight_decay = 0.0)                                                                       \
    X(lamb_nvlamb, LAMB, r.weight_decay = 0.0; r.flags |= AMP_OPTIM_NVLAMB; r.max_grad_norm = 0.0)                     \
    X(lamb_sum, LAMB, r.flags &= ~(uint32_t)(AMP_OPTIM_GRAD_AVERAGING | AMP_OPTIM_BIAS_CORRECTION))                    \
    X(novograd, NOVOGRAD, r.weight_decay = 0.01)                                                                       \
    X(novograd_paper, NOVOGRAD, r.weight_decay = 0.01; r.flags = 0)                                                    \
    X(novograd_zero, NOVOGRAD, r.flags |= AMP_OPTIM_INIT_ZERO)                                                         \
    X(adagrad, ADAGRAD, )                                                                                              \
    X(adagrad_decay, ADAGRAD, r.weight_decay = 0.1)                                                                    \
    X(adagrad_w, ADAGRAD, r.weight_decay = 0.1; r.flags |= AMP_OPTIM_DECOUPLED)                                        \
    X(larc, LARC, r.weight_decay = 0.01)                                                                               \
    X(larc_momentum, LARC, r.weight_decay = 0.01; r.momentum = 0.9; r.lr = 0.1)                                        \
    X(larc_rate, LARC, r.momentum = 0.9; r.flags = 0)

#define RULE_ONE(name, kind, ...) +1
enum { N_RULES = 0 RULES(RULE_ONE) };
#undef RULE_ONE

/* Each kind has a rule of its own name. */
#define RULE_NAME(name, kind, ...) rule_##name,
enum { RULES(RULE_NAME) };
#undef RULE_NAME
#define RULE_OF_KIND(constant, value, name, ...) _Static_assert(rule_##name >= 0, "RULES leaves out a kind");
AMP_OPTIM_MAP(RULE_OF_KIND)
#undef RULE_OF_KIND

static inline amp_optim rule_of(int index, const char **name) {
    amp_optim rules[N_RULES];
    const char *names[N_RULES];
    int n = 0;
#define RULE_ENTRY(rule_name, rule_kind, ...)                                                                          \
    {                                                                                                                  \
        amp_optim r = AMP_OPTIM_INIT;                                                                                  \
        ck_ok(amp_optim_defaults(AMP_OPTIM_##rule_kind, &r));                                                          \
        __VA_ARGS__;                                                                                                   \
        names[n] = #rule_name;                                                                                         \
        rules[n++] = r;                                                                                                \
    }
    RULES(RULE_ENTRY)
#undef RULE_ENTRY
    if (name) *name = names[index];
    return rules[index];
}

/* ---- tensors ---- */

enum { N_TENSORS = 4 };
static const size_t tensor_sizes[N_TENSORS] = { 1, 7, 300, 66000 }; /* the last is longer than a block of the sums */

struct tensors {
    float *grad[N_TENSORS], *param[N_TENSORS], *moments[3][N_TENSORS]; /* FP32 */
    uint16_t *low_grad[N_TENSORS], *low[N_TENSORS];
    uint64_t steps[N_TENSORS];
    amp_span grads[N_TENSORS], params[N_TENSORS], lows[N_TENSORS], moment_spans[3][N_TENSORS];
    amp_optim_tensors list;
};

static inline float *floats(size_t n) { return calloc(n, sizeof(float)); }

/* Zeros. The list is of FP32 parameters with FP32 gradients and no copies. */
static inline void tensors_init(struct tensors *t, const amp_optim *rule) {
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const size_t n = tensor_sizes[i];
        t->grad[i] = floats(n), t->param[i] = floats(n);
        t->low_grad[i] = calloc(n, 2), t->low[i] = calloc(n, 2);
        t->grads[i] = (amp_span){ t->grad[i], n, AMP_FLOAT32, 0 };
        t->params[i] = (amp_span){ t->param[i], n, AMP_FLOAT32, 0 };
        for (int k = 0; k < 3; k++) {
            const size_t size = rule->kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : n;
            t->moments[k][i] = floats(n);
            t->moment_spans[k][i] = (amp_span){ t->moments[k][i], size, AMP_FLOAT32, 0 };
        }
    }
    t->list = (amp_optim_tensors){ .struct_size = sizeof t->list, .n = N_TENSORS, .grad = t->grads, .param = t->params,
                                   .steps = t->steps };
    for (int k = 0; k < 3; k++) t->list.moments[k] = t->moment_spans[k];
}

static inline void tensors_free(struct tensors *t) {
    for (size_t i = 0; i < N_TENSORS; i++) {
        free(t->grad[i]), free(t->param[i]), free(t->low_grad[i]), free(t->low[i]);
        for (int k = 0; k < 3; k++) free(t->moments[k][i]);
    }
}

#define OWN_TENSORS __attribute__((cleanup(tensors_free))) struct tensors

/* A generator of its own, so that every failure can be had again: splitmix64 from the test's number. */
static inline uint64_t next_bits(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline float next_float(uint64_t *state) { return (float)((double)(int64_t)next_bits(state) * 0x1p-63); }

static inline void fill_floats(float *x, size_t n, float scale, uint64_t *state) {
    for (size_t i = 0; i < n; i++) x[i] = scale * next_float(state);
}

#endif
