/* SPDX-License-Identifier: Apache-2.0 */
/* The state of libamp's own optimizers by its names in a state file: moments are tensors, steps are metadata. */
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "state/dict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static char *join_text(const char *a, const char *b) {
    const size_t bytes = strlen(a) + strlen(b) + 1;
    char *text = amp__alloc(bytes, 1);
    if (text) snprintf(text, bytes, "%s%s", a, b);
    return text;
}

static size_t count_moments(const amp_context *context) {
    struct amp__params *params = amp__params_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) params->list[i]->named = 0;
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].optim) n += optimizers->list[i].optim->n;
    return n;
}

static char *name_of(const struct amp__param *param, size_t optimizer) {
    char owner[48] = "";
    if (param->named) snprintf(owner, sizeof owner, "optimizer%zu.", optimizer);
    return join_text(owner, param->name);
}

amp_status amp__state_owns(const amp_context *context, struct amp__state_own **out, size_t *out_n) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const size_t capacity = count_moments(context);
    size_t n = 0;
    struct amp__state_own *owns = amp__alloc(capacity, sizeof *owns);
    if (!owns) return amp__fail_memory();
    for (size_t k = 0; k < optimizers->n; k++) {
        const struct amp__optimizer *optimizer = &optimizers->list[k];
        for (size_t i = 0; optimizer->optim && i < optimizer->optim->n; i++) {
            struct amp__param *param = optimizer->params[i];
            struct amp__state_own own = { name_of(param, k), param, &optimizer->optim->states[i],
                                          amp__optim_rule(optimizer->optim, i) };
            param->named++;
            owns[n++] = own;
            if (own.name) continue;
            amp__state_owns_free(owns, n);
            return amp__fail_memory();
        }
    }
    *out = owns;
    *out_n = n;
    return AMP_OK;
}

void amp__state_owns_free(struct amp__state_own *owns, size_t n) {
    for (size_t i = 0; i < n; i++) amp__free(owns[i].name);
    amp__free(owns);
}

char *amp__state_moment_name(const struct amp__state_own *own, int k) {
    char *prefix = join_text(own->name, ".");
    char *name = prefix ? join_text(prefix, amp__optim_moment(own->rule, k)) : NULL;
    amp__free(prefix);
    return name;
}

static const char scale_suffix[] = ".scale";

char *amp__state_scale_name(const char *moment) { return join_text(moment, scale_suffix); }

/* The first `length` bytes of the name. */
static bool is_moment(const char *name, size_t length) {
    static const char *const moments[] = { "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum" };
    const char *dot = memrchr(name, '.', length);
    const size_t n = dot ? length - (size_t)(dot + 1 - name) : 0;
    for (size_t i = 0; dot && i < AMP_COUNT(moments); i++)
        if (strlen(moments[i]) == n && !memcmp(dot + 1, moments[i], n)) return true;
    return false;
}

bool amp__state_is_moment(const char *name) { return is_moment(name, strlen(name)); }

bool amp__state_is_scale(const char *name) {
    const size_t length = strlen(name), suffix = sizeof scale_suffix - 1;
    return length > suffix && !strcmp(name + length - suffix, scale_suffix) && is_moment(name, length - suffix);
}

/* ---- steps ---- */

static const char prefix[] = "libamp.step.";

amp_status amp__state_put_steps(struct amp__header *header, const struct amp__state_own *own) {
    char digits[24];
    char *key = join_text(prefix, own->name);
    if (!key) return amp__fail_memory();
    snprintf(digits, sizeof digits, "%" PRIu64, own->state->steps);
    const amp_status status = amp__header_put(header, key, digits);
    amp__free(key);
    return status;
}

amp_status amp__state_get_steps(const struct amp__header *header, const struct amp__state_own *own, uint64_t *steps) {
    char *key = join_text(prefix, own->name);
    if (!key) return amp__fail_memory();
    const char *digits = amp__header_get(header, key);
    amp__free(key);
    AMP_RETURN_IF(!digits, AMP_ERR_CONFLICT,
                  "the state has no steps of %s: it was saved without libamp's own optimizer; load it into such a "
                  "context, or make this optimizer without amp_optimizer.fused", own->name);
    AMP_RETURN_IF(!amp__uint_from_text(digits, UINT64_MAX, steps), AMP_ERR_BAD_FILE, "%s: its steps are no number",
                  own->name);
    return AMP_OK;
}

/* ---- seeds ---- */

static bool rounds_at_random(const struct amp__optimizer *optimizer) {
    return optimizer->optim && (optimizer->optim->codes || optimizer->optim->stochastic);
}

enum { SEED_KEY = 48 };
static const char *seed_key(size_t i, char key[SEED_KEY]) {
    snprintf(key, SEED_KEY, "libamp.optimizer%zu.seed", i);
    return key;
}

amp_status amp__state_put_seeds(struct amp__header *header, const struct amp__optimizers *optimizers) {
    for (size_t i = 0; i < optimizers->n; i++) {
        char key[SEED_KEY], digits[24];
        if (!rounds_at_random(&optimizers->list[i])) continue;
        snprintf(digits, sizeof digits, "%" PRIu64, optimizers->list[i].optim->seed);
        AMP_TRY(amp__header_put(header, seed_key(i, key), digits));
    }
    return AMP_OK;
}

void amp__state_compare_seeds(const struct amp__header *header, const struct amp__optimizers *optimizers,
                              amp__text *out) {
    for (size_t i = 0; i < optimizers->n; i++) {
        char key[SEED_KEY];
        uint64_t theirs;
        const char *digits = amp__header_get(header, seed_key(i, key));
        if (!rounds_at_random(&optimizers->list[i]) || !digits || !amp__uint_from_text(digits, UINT64_MAX, &theirs) ||
            theirs == optimizers->list[i].optim->seed)
            continue;
        amp__text_add(out, "%soptimizer%zu.seed %" PRIu64 " -> %" PRIu64, out->length ? ", " : "", i, theirs,
                      optimizers->list[i].optim->seed);
    }
}
