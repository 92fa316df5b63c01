/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule with its defaults and with each of its switches, for tests that go through all of them. */
#ifndef TEST_OPTIM_RULES_H
#define TEST_OPTIM_RULES_H

#include "asserts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* X(name, kind, what differs from the defaults), beside AMP_OPTIM_MAP. */
#define SWITCHES(X)                                                                                                    \
    X(sgd_decay, SGD, r.weight_decay = 0.1)                                                                            \
    X(sgd_momentum, SGD, r.momentum = 0.9; r.weight_decay = 0.01)                                                      \
    X(sgd_dampening, SGD, r.momentum = 0.9; r.dampening = 0.3)                                                         \
    X(sgd_nesterov, SGD, r.momentum = 0.9; r.flags |= AMP_OPTIM_NESTEROV)                                              \
    X(sgd_decay_after, SGD, r.momentum = 0.9; r.weight_decay = 0.1; r.flags |= AMP_OPTIM_DECAY_AFTER_MOMENTUM)         \
    X(adam_decay, ADAM, r.weight_decay = 0.1)                                                                          \
    X(adam_uncorrected, ADAM, r.flags = 0; r.eps = 1e-3)                                                               \
    X(adam_amsgrad, ADAM, r.flags |= AMP_OPTIM_AMSGRAD)                                                                \
    X(adamw_decay, ADAMW, r.weight_decay = 0.1)                                                                        \
    X(adamw_amsgrad, ADAMW, r.weight_decay = 0.1; r.flags |= AMP_OPTIM_AMSGRAD)                                        \
    X(lamb_l2, LAMB, r.flags &= ~(uint32_t)AMP_OPTIM_DECOUPLED)                                                        \
    X(lamb_no_decay, LAMB, r.weight_decay = 0.0)                                                                       \
    X(lamb_nvlamb, LAMB, r.weight_decay = 0.0; r.flags |= AMP_OPTIM_NVLAMB; r.max_grad_norm = 0.0)                     \
    X(lamb_sum, LAMB, r.flags &= ~(uint32_t)(AMP_OPTIM_GRAD_AVERAGING | AMP_OPTIM_BIAS_CORRECTION))                    \
    X(novograd_decay, NOVOGRAD, r.weight_decay = 0.01)                                                                 \
    X(novograd_paper, NOVOGRAD, r.weight_decay = 0.01; r.flags = 0)                                                    \
    X(novograd_zero, NOVOGRAD, r.flags |= AMP_OPTIM_INIT_ZERO)                                                         \
    X(adagrad_decay, ADAGRAD, r.weight_decay = 0.1)                                                                    \
    X(adagrad_w, ADAGRAD, r.weight_decay = 0.1; r.flags |= AMP_OPTIM_DECOUPLED)                                        \
    X(larc_decay, LARC, r.weight_decay = 0.01)                                                                         \
    X(larc_momentum, LARC, r.weight_decay = 0.01; r.momentum = 0.9; r.lr = 0.1)                                        \
    X(larc_rate, LARC, r.momentum = 0.9; r.flags = 0)

#define RULE_ONE(...) +1
enum { N_RULES = 0 AMP_OPTIM_MAP(RULE_ONE) SWITCHES(RULE_ONE) };
#undef RULE_ONE

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
#define KIND_ENTRY(constant, value, kind_name, ...) RULE_ENTRY(kind_name, constant, )
    AMP_OPTIM_MAP(KIND_ENTRY)
    SWITCHES(RULE_ENTRY)
#undef KIND_ENTRY
#undef RULE_ENTRY
    if (name) *name = names[index];
    return rules[index];
}

#endif
