/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers for a step of one tensor: from the rule, the step number and norms, in double and rounded once, with the
 * bits of optim/step.c on the processor. They are computed on the device, since only it may know whether a step is
 * skipped, and so the step number.
 */
#ifndef AMP_KERNELS_CUDA_PREPARE_H
#define AMP_KERNELS_CUDA_PREPARE_H

#include "kernels/cuda/update.h"

#include "amp_optim.h"

/* base^n by squaring; multiplications only. */
CUDA_BOTH double cuda_power(double base, uint64_t n) {
    double power = 1.0;
    for (; n; n >>= 1, base = base * base)
        if (n & 1) power = power * base;
    return power;
}

CUDA_BOTH int cuda_flag(const amp_optim *rule, uint32_t flag) { return (rule->flags & flag) != 0; }

/* Returns the factor of LAMB that brings the norm of all gradients to the limit of the rule. */
CUDA_BOTH float cuda_limit(const amp_optim *rule, float norm) {
    if (rule->kind != AMP_OPTIM_LAMB || !(rule->max_grad_norm > 0.0) || !((double)norm > rule->max_grad_norm))
        return 1.0f;
    return (float)(rule->max_grad_norm / (double)norm);
}

CUDA_BOTH float cuda_larc_ratio(const amp_optim *rule, float norm_of_param, float norm_of_grad) {
    const double of_p = (double)norm_of_param, of_g = (double)norm_of_grad;
    if (of_p == 0.0 || of_g == 0.0) return 1.0f;
    const double ratio = rule->trust_coefficient * of_p / (of_g + rule->weight_decay * of_p + rule->eps);
    if (!cuda_flag(rule, AMP_OPTIM_CLIP)) return (float)ratio;
    return ratio < rule->lr ? (float)(ratio / rule->lr) : 1.0f;
}

/* Returns the divisor of the gradients for NovoGrad, and updates its norm *second. */
CUDA_BOTH float cuda_novograd_denominator(const amp_optim *rule, uint64_t steps, float norm_of_grad, float *second) {
    const double norm = (double)norm_of_grad, before = (double)*second;
    if (steps == 0 && !cuda_flag(rule, AMP_OPTIM_INIT_ZERO)) *second = norm_of_grad;
    else *second = (float)sqrt(rule->beta2 * (before * before) + (1.0 - rule->beta2) * (norm * norm));
    const double correction =
        cuda_flag(rule, AMP_OPTIM_BIAS_CORRECTION) ? sqrt(1.0 - cuda_power(rule->beta2, steps + 1)) : 1.0;
    return (float)((double)*second / correction + rule->eps);
}

/* LAMB's learning rate, once the sums of squares of the parameter and of the direction are known. */
CUDA_BOTH float cuda_lamb_lr(const amp_optim *rule, double squares_of_p, double squares_of_u) {
    const double of_p = (double)(float)sqrt(squares_of_p), of_u = (double)(float)sqrt(squares_of_u);
    const int wanted = rule->weight_decay != 0.0 || cuda_flag(rule, AMP_OPTIM_NVLAMB);
    return wanted && of_p != 0.0 && of_u != 0.0 ? (float)(rule->lr * (of_p / of_u)) : (float)rule->lr;
}

/* Returns the numbers common to all rules, before step number steps + 1. */
CUDA_BOTH struct cuda_update cuda_common(const amp_optim *rule, uint64_t steps, float inv_scale, float factor) {
    const int corrects = cuda_flag(rule, AMP_OPTIM_BIAS_CORRECTION);
    const int averages = rule->kind == AMP_OPTIM_LAMB || rule->kind == AMP_OPTIM_NOVOGRAD
                             ? cuda_flag(rule, AMP_OPTIM_GRAD_AVERAGING) : 1;
    struct cuda_update u;
    u.inv_scale = inv_scale, u.factor = factor;
    u.lr = (float)rule->lr, u.weight_decay = (float)rule->weight_decay, u.eps = (float)rule->eps;
    u.beta1 = (float)rule->beta1, u.rest1 = averages ? (float)(1.0 - rule->beta1) : 1.0f;
    u.beta2 = (float)rule->beta2, u.rest2 = (float)(1.0 - rule->beta2);
    u.correction1 = corrects ? (float)(1.0 - cuda_power(rule->beta1, steps + 1)) : 1.0f;
    u.correction2 = corrects ? (float)(1.0 - cuda_power(rule->beta2, steps + 1)) : 1.0f;
    u.ratio = 1.0f, u.denominator = 1.0f;
    u.key = u.low_key = u.before = 0;
    u.flags = (steps == 0 ? CUDA_FIRST : 0) | (cuda_flag(rule, AMP_OPTIM_NESTEROV) ? CUDA_NESTEROV : 0) |
              (cuda_flag(rule, AMP_OPTIM_DECAY_AFTER_MOMENTUM) ? CUDA_DECAY_AFTER : 0) |
              (cuda_flag(rule, AMP_OPTIM_DECOUPLED) || rule->kind == AMP_OPTIM_ADAMW ? CUDA_DECOUPLED : 0);
    if (rule->kind == AMP_OPTIM_SGD || rule->kind == AMP_OPTIM_LARC)
        u.beta1 = (float)rule->momentum, u.rest1 = (float)(1.0 - rule->dampening);
    return u;
}

/* Of each tensor: the key of its random numbers, and the elements of the whole parameter before it. */
struct cuda_random {
    const uint64_t *keys, *before; /* NULL: no tensor needs them */
    uint32_t stochastic;           /* bf16 parameters alone are rounded at random */
};

CUDA_BOTH void cuda_prepare_random(struct cuda_update *u, const struct cuda_random *random, uint32_t tensor,
                                   uint64_t steps) {
    if (!random->keys) return;
    u->key = amp__random_key(random->keys[tensor], steps, AMP__RANDOM_MOMENTS);
    u->low_key = amp__random_key(random->keys[tensor], steps, AMP__RANDOM_PARAM);
    u->before = random->before[tensor];
    if (random->stochastic) u->flags |= CUDA_STOCHASTIC;
}

/* Norms that a rule does not look at are not read. */
struct cuda_norms {
    float all, grad, param; /* norms of all gradients (LAMB), of this gradient (NovoGrad, LARC), of the parameter
                               (LARC) */
};

CUDA_BOTH struct cuda_update cuda_prepare(const amp_optim *rule, uint64_t steps, float inv_scale, float factor,
                                          const struct cuda_norms *norms, float *second) {
    struct cuda_update u = cuda_common(rule, steps, inv_scale, factor);
    if (rule->kind == AMP_OPTIM_LAMB) u.ratio = cuda_limit(rule, norms->all);
    if (rule->kind == AMP_OPTIM_LARC) u.ratio = cuda_larc_ratio(rule, norms->param, norms->grad);
    if (rule->kind == AMP_OPTIM_NOVOGRAD) u.denominator = cuda_novograd_denominator(rule, steps, norms->grad, second);
    return u;
}

#endif
