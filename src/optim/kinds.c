/* SPDX-License-Identifier: Apache-2.0 */
/* Each optimizer: the flags that it takes, its defaults, and the step of one tensor through its kernels. */
#include "kernels/kernels.h"
#include "optim/optim.h"

#include <math.h>

/* ---- flags and defaults: AMP_OPTIM_MAP asks for both of every kind ---- */

#define SGD_TAKES (AMP_OPTIM_NESTEROV | AMP_OPTIM_DECAY_AFTER_MOMENTUM)
#define SGD_DEFAULTS .lr = 1e-3
#define ADAM_TAKES (AMP_OPTIM_BIAS_CORRECTION | AMP_OPTIM_AMSGRAD)
#define ADAM_DEFAULTS .flags = AMP_OPTIM_BIAS_CORRECTION, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8
#define ADAMW_TAKES ADAM_TAKES
#define ADAMW_DEFAULTS ADAM_DEFAULTS
#define CORRECTED_MEANS (AMP_OPTIM_BIAS_CORRECTION | AMP_OPTIM_DECOUPLED | AMP_OPTIM_GRAD_AVERAGING)
#define LAMB_TAKES (CORRECTED_MEANS | AMP_OPTIM_NVLAMB)
#define LAMB_DEFAULTS                                                                                                  \
    .flags = CORRECTED_MEANS, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01,             \
    .max_grad_norm = 1.0
#define NOVOGRAD_TAKES (CORRECTED_MEANS | AMP_OPTIM_INIT_ZERO)
#define NOVOGRAD_DEFAULTS .flags = CORRECTED_MEANS, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8
#define ADAGRAD_TAKES AMP_OPTIM_DECOUPLED
#define ADAGRAD_DEFAULTS .lr = 1e-2, .eps = 1e-10
#define LARC_TAKES (AMP_OPTIM_NESTEROV | AMP_OPTIM_CLIP)
#define LARC_DEFAULTS .flags = AMP_OPTIM_CLIP, .lr = 1e-3, .eps = 1e-8, .trust_coefficient = 0.02

/* ---- steps, by the rule in AMP_OPTIM_MAP ---- */

/* Both norms are there: Apex leaves a tensor without one of them as it is. */
static float larc_ratio(const amp_optim *rule, const struct amp__optim_tensor *tensor) {
    const double of_p = (double)amp__optim_norm_of_param(tensor), of_g = (double)amp__optim_norm_of_grad(tensor);
    if (of_p == 0.0 || of_g == 0.0) return 1.0f;
    const double ratio = rule->trust_coefficient * of_p / (of_g + rule->weight_decay * of_p + rule->eps);
    if (!amp__optim_has(rule, AMP_OPTIM_CLIP)) return (float)ratio;
    return ratio < rule->lr ? (float)(ratio / rule->lr) : 1.0f;
}

static void sgd(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u) {
    u->beta1 = (float)rule->momentum;
    u->rest1 = (float)(1.0 - rule->dampening);
    if (rule->kind == AMP_OPTIM_LARC) u->ratio = larc_ratio(rule, tensor);
    amp__optim_pass(amp__kernels_get()->sgd, u, (size_t)tensor->param.size);
}

static void adam(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u) {
    (void)rule;
    amp__optim_pass(u->codes[0] ? amp__kernels_get()->adam8 : amp__kernels_get()->adam, u, (size_t)tensor->param.size);
}

static void adagrad(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u) {
    (void)rule;
    amp__optim_pass(amp__kernels_get()->adagrad, u, (size_t)tensor->param.size);
}

/* The second moment is stored as a norm, not squared, since the square can leave the range of float. */
static void novograd(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u) {
    float *second = tensor->moments[1];
    const double norm = (double)amp__optim_norm_of_grad(tensor), before = (double)*second;
    if (u->first && !amp__optim_has(rule, AMP_OPTIM_INIT_ZERO)) *second = (float)norm;
    else *second = (float)sqrt(rule->beta2 * (before * before) + (1.0 - rule->beta2) * (norm * norm));
    const double correction =
        amp__optim_has(rule, AMP_OPTIM_BIAS_CORRECTION) ? sqrt(1.0 - amp__optim_powers_of(rule, tensor).of_beta2) : 1.0;
    u->denominator = (float)((double)*second / correction + rule->eps);
    u->rest1 = amp__optim_has(rule, AMP_OPTIM_GRAD_AVERAGING) ? u->rest1 : 1.0f;
    u->moments[1] = NULL;
    amp__optim_pass(amp__kernels_get()->novograd, u, (size_t)tensor->param.size);
}

static void lamb(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u) {
    const struct amp__kernels *kernels = amp__kernels_get();
    const size_t n = (size_t)tensor->param.size;
    double squares[2] = { 0.0, 0.0 };
    u->rest1 = amp__optim_has(rule, AMP_OPTIM_GRAD_AVERAGING) ? u->rest1 : 1.0f;
    amp__optim_pass_squares(kernels->lamb_moments, u, n, squares);
    const double of_p = (double)(float)sqrt(squares[0]), of_u = (double)(float)sqrt(squares[1]);
    const bool wanted = rule->weight_decay != 0.0 || amp__optim_has(rule, AMP_OPTIM_NVLAMB);
    if (wanted && of_p != 0.0 && of_u != 0.0) u->lr = (float)(rule->lr * (of_p / of_u));
    amp__optim_pass(kernels->lamb_apply, u, n);
}

/* ---- the table ---- */

static const struct amp__optim_kind kinds[] = {
#define KIND(constant, value, name, title, rule, ...)                                                                  \
    [AMP_OPTIM_##constant] = { title, constant##_TAKES,                                                                \
                               { .struct_size = sizeof(amp_optim), .kind = value, constant##_DEFAULTS },               \
                               { __VA_ARGS__ }, rule },
    AMP_OPTIM_MAP(KIND)
#undef KIND
};

#define HAS_ITS_VALUE(constant, value, ...) _Static_assert(AMP_OPTIM_##constant == (value), "AMP_OPTIM_MAP");
AMP_OPTIM_MAP(HAS_ITS_VALUE)
#undef HAS_ITS_VALUE
_Static_assert(AMP_COUNT(kinds) == AMP__OPTIM_KINDS + 1, "AMP_OPTIM_MAP leaves out a value, or has one twice");
_Static_assert(AMP__OPTIM_KINDS == (int)AMP_OPTIM_LARC, "AMP_OPTIM_MAP ends elsewhere than its constants");

const struct amp__optim_kind *amp__optim_kind(amp_optim_kind kind) {
    return kind > 0 && (size_t)kind < AMP_COUNT(kinds) ? &kinds[kind] : NULL;
}
