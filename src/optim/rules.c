/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's rule: its defaults, checks, and the moments that it keeps. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

AMP_API amp_status amp_optim_defaults(amp_optim_kind kind, amp_optim *rule) {
    const struct amp__optim_kind *found = amp__optim_kind(kind);
    AMP_RETURN_IF(!rule, AMP_ERR_INVALID_ARGUMENT, "amp_optim_defaults: rule is NULL");
#define NAMED(constant, value, ...) ", AMP_OPTIM_" #constant " (" #value ")"
    AMP_RETURN_IF(!found, AMP_ERR_INVALID_ARGUMENT,
                  "amp_optim_defaults: kind %d does not exist. These exist" AMP_OPTIM_MAP(NAMED), (int)kind);
#undef NAMED
    AMP_TRY(amp__check_struct(rule->struct_size, sizeof *rule, "amp_optim"));
    return amp__fill_struct(rule, rule->struct_size, sizeof *rule, &found->defaults, sizeof *rule, "amp_optim");
}

/* ---- checks ---- */

static const char *const flag_names[] = { "NESTEROV", "DECAY_AFTER_MOMENTUM", "BIAS_CORRECTION", "AMSGRAD", "DECOUPLED",
                                          "GRAD_AVERAGING", "NVLAMB", "INIT_ZERO", "CLIP" };

static amp_status check_flags(const amp_optim *rule, const struct amp__optim_kind *kind, const char *what) {
    for (uint32_t i = 0; i < 32; i++) {
        if (!(rule->flags & ~kind->flags & (uint32_t)1 << i)) continue;
        AMP_RETURN_IF(i >= AMP_COUNT(flag_names), AMP_ERR_INVALID_ARGUMENT, "%s: unknown flags 0x%x", what,
                      (unsigned)rule->flags);
        return amp__fail(AMP_ERR_INVALID_ARGUMENT, "%s: %s has no AMP_OPTIM_%s", what, kind->name, flag_names[i]);
    }
    AMP_RETURN_IF((rule->flags & AMP_OPTIM_NESTEROV) && !(rule->momentum > 0.0 && rule->dampening == 0.0),
                  AMP_ERR_INVALID_ARGUMENT, "%s: AMP_OPTIM_NESTEROV needs momentum above 0 and dampening 0; they are "
                  "%g and %g", what, rule->momentum, rule->dampening);
    return AMP_OK;
}

static amp_status check_numbers(const amp_optim *rule, const struct amp__optim_kind *kind, const char *what) {
    const bool betas = kind->defaults.beta2 > 0.0, trust = kind->defaults.trust_coefficient > 0.0;
    const struct {
        const char *name;
        double value, end; /* 0 <= value < end, or <= FLT_MAX */
    } numbers[] = {
        { "lr", rule->lr, 0.0 },
        { "weight_decay", rule->weight_decay, 0.0 },
        { "momentum", rule->momentum, 0.0 },
        { "beta1", betas ? rule->beta1 : 0.0, 1.0 },
        { "beta2", betas ? rule->beta2 : 0.0, 1.0 },
        { "eps", rule->eps, 0.0 },
        { "max_grad_norm", rule->max_grad_norm, 0.0 },
    };
    for (size_t i = 0; i < AMP_COUNT(numbers); i++) {
        const double value = numbers[i].value, end = numbers[i].end;
        AMP_RETURN_IF(!(value >= 0.0 && value <= 3.402823466e38) || (end > 0.0 && value >= end),
                      AMP_ERR_INVALID_ARGUMENT, "%s: %s is %g; it must be at least 0%s", what, numbers[i].name, value,
                      end > 0.0 ? " and below 1" : ", and a finite float");
    }
    AMP_RETURN_IF(!(fabs(rule->dampening) <= 3.402823466e38), AMP_ERR_INVALID_ARGUMENT, "%s: dampening is not finite",
                  what);
    AMP_RETURN_IF(trust && !(rule->trust_coefficient > 0.0 && rule->trust_coefficient <= 3.402823466e38),
                  AMP_ERR_INVALID_ARGUMENT, "%s: trust_coefficient is %g; it must be above 0", what,
                  rule->trust_coefficient);
    return AMP_OK;
}

amp_status amp__optim_check(const amp_optim *given, const char *what, amp_optim *out) {
    amp_optim rule;
    AMP_RETURN_IF(!given, AMP_ERR_INVALID_ARGUMENT, "%s: the rule is NULL", what);
    AMP_TRY(amp__copy_struct(&rule, sizeof rule, sizeof rule, given, given->struct_size, "amp_optim"));
    const struct amp__optim_kind *kind = amp__optim_kind(rule.kind);
    AMP_RETURN_IF(!kind, AMP_ERR_INVALID_ARGUMENT, "%s: kind %d does not exist: start from amp_optim_defaults", what,
                  (int)rule.kind);
    AMP_RETURN_IF(rule.reserved, AMP_ERR_INVALID_ARGUMENT, "%s: reserved is not 0", what);
    AMP_TRY(check_flags(&rule, kind, what));
    AMP_TRY(check_numbers(&rule, kind, what));
    rule.struct_size = sizeof rule;
    *out = rule;
    return AMP_OK;
}

/* ---- moments ---- */

const char *amp__optim_moment(const amp_optim *rule, int k) {
    const bool sgd = rule->kind == AMP_OPTIM_SGD || rule->kind == AMP_OPTIM_LARC;
    if (sgd && rule->momentum == 0.0) return NULL;
    if (k == 2 && !(rule->flags & AMP_OPTIM_AMSGRAD)) return NULL;
    return amp__optim_kind(rule->kind)->moments[k];
}

uint64_t amp__optim_moment_size(const amp_optim *rule, int k, uint64_t size) {
    return rule->kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : size;
}

bool amp__optim_codes(const amp_optim *rule) {
    const bool adam = rule->kind == AMP_OPTIM_ADAM || rule->kind == AMP_OPTIM_ADAMW;
    return adam && !amp__optim_has(rule, AMP_OPTIM_AMSGRAD);
}

bool amp__optim_same_moments(const amp_optim *a, const amp_optim *b) {
    if (a->kind != b->kind) return false;
    for (int k = 0; k < AMP__MOMENTS; k++)
        if (!amp__optim_moment(a, k) != !amp__optim_moment(b, k)) return false;
    return true;
}
