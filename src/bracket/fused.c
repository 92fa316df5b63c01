/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of libamp's own: the step over parameters and masters as the bracket left them. Everything that the host
 * can refuse comes first; then the update, which cannot fail.
 */
#include "bracket/fused.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "bracket/wiring.h"
#include "call/cache.h"
#include "common/thread.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/report.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

amp_status amp__fused_attach(struct amp__optimizer *optimizer, size_t from) {
    if (!optimizer->optim) return AMP_OK;
    for (size_t i = from; i < optimizer->n_params; i++) {
        const struct amp__param *param = optimizer->params[i];
        AMP_RETURN_IF(param->dtype != AMP_FLOAT32 && !amp__is_low(param->dtype), AMP_ERR_UNSUPPORTED,
                      "%s is %s: libamp's own optimizers update fp32 and 16-bit parameters; leave it to an optimizer "
                      "of the host's", param->name, amp__dtype_name(param->dtype));
        AMP_TRY(amp__optim_attach(optimizer->optim, i, param->name, param->size, param->place));
    }
    return amp__fused_device_attach(optimizer);
}

/* Marks gradients that may stay scaled until the step, since only the step reads them. */
void amp__fused_mark(amp_context *context) {
    const struct amp__params *params = amp__params_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < params->n; i++) params->list[i]->owners = 0;
    for (size_t k = 0; k < optimizers->n; k++)
        for (size_t i = 0; i < optimizers->list[k].n_params; i++) optimizers->list[k].params[i]->owners++;
    for (size_t k = 0; k < optimizers->n; k++) {
        const struct amp__optimizer *optimizer = &optimizers->list[k];
        for (size_t i = 0; i < optimizer->n_params; i++)
            optimizer->params[i]->gradient.may_be_left = optimizer->optim && optimizer->params[i]->owners == 1;
    }
}

/* Unmarks gradients that another optimizer lists now. */
void amp__fused_mark_late(const struct amp__optimizer *optimizer, size_t from) {
    for (size_t i = from; i < optimizer->n_params; i++)
        optimizer->params[i]->gradient.may_be_left = ++optimizer->params[i]->owners == 1 && optimizer->optim;
}

/* ---- before the update ---- */

/* An FP32 parameter with gaps between its elements: a compact copy, and where to put it back. */
struct spread {
    struct amp__elements place;
    float *flat;
    int64_t dims[]; /* shape, strides: the host's own hold until its next view */
};

static amp_status gather_spread(const struct amp__elements *now, struct amp__optim_tensor *tensor) {
    const size_t n = (size_t)now->ndim;
    struct spread *spread = amp__alloc(1, sizeof *spread + 2 * n * sizeof(int64_t));
    if (!spread) return amp__fail_memory();
    tensor->spread = spread;
    spread->flat = amp__alloc_aligned((size_t)now->size * sizeof(float));
    if (!spread->flat) return amp__fail_memory();
    spread->place = *now;
    spread->place.shape = memcpy(spread->dims, now->shape, n * sizeof *now->shape);
    spread->place.strides = memcpy(spread->dims + n, now->strides, n * sizeof *now->strides);
    amp__strides_gather(spread->flat, now);
    tensor->param.data = spread->flat;
    return AMP_OK;
}

/* As a step of the host's own, which rounds all of its parameters. */
amp_status amp__fused_pass_over(struct amp__param *param, void **elements) {
    struct amp__elements now;
    if (!param->emulated) return AMP_OK;
    AMP_TRY(amp__master_reconcile(param, false));
    AMP_TRY(amp__param_elements(param, &now));
    *elements = now.data;
    return AMP_OK;
}

static amp_status find_param(const struct amp__optimizer *optimizer, struct amp__param *param,
                             struct amp__optim_tensor *tensor) {
    struct amp__elements now;
    AMP_TRY(amp__master_reconcile(param, false));
    AMP_TRY(amp__master_part(param));
    AMP_TRY(amp__host_layout(param->host, param->tensor, param->name, &now));
    AMP_RETURN_IF(now.size != param->size || now.dtype != param->dtype || (now.strides && now.dtype != AMP_FLOAT32),
                  AMP_ERR_WRONG_STATE,
                  "%s changed from %llu %s to %llu %s elements behind libamp's back: change its "
                  "values, not its storage",
                  param->name, (unsigned long long)param->size, amp__dtype_name(param->dtype),
                  (unsigned long long)now.size, amp__dtype_name(now.dtype));
    const amp_span elements = { now.data, now.size, now.dtype, 0 };
    tensor->elements = now.data;
    const bool apart = param->has_master && !amp__is_split(param);
    tensor->param = apart ? (amp_span){ param->master.fp32.data, param->size, AMP_FLOAT32, 0 } : elements;
    if (apart && !param->emulated) tensor->low = elements;
    tensor->remainder = param->master.rest.data;
    tensor->stochastic = optimizer->optim->stochastic && !param->has_master && now.dtype == AMP_BFLOAT16;
    return now.strides ? gather_spread(&now, tensor) : AMP_OK;
}

static amp_status find_tensor(const struct amp__optimizer *optimizer, size_t i, struct amp__optim_tensor *tensor) {
    struct amp__param *param = optimizer->params[i];
    struct amp__optim_state *state = &optimizer->optim->states[i];
    struct amp__grad_for_step grad;
    *tensor = (struct amp__optim_tensor){ .steps = &state->steps };
    if (param->on_device) return AMP_OK; /* fused_device.c */
    memcpy(tensor->moments, state->moments, sizeof tensor->moments);
    memcpy(tensor->codes, state->codes, sizeof tensor->codes);
    memcpy(tensor->scales, state->scales, sizeof tensor->scales);
    tensor->key = state->key;
    AMP_TRY(amp__grads_for_step(param, &grad));
    if (!grad.span.data) return amp__fused_pass_over(param, &tensor->elements);
    tensor->grad = grad.span;
    tensor->inv_scale = grad.inverse;
    tensor->factor = grad.factor;
    tensor->squares = grad.squares;
    tensor->has_squares = grad.has_squares;
    AMP_RETURN_IF(tensor->grad.dtype == AMP_FLOAT64, AMP_ERR_UNSUPPORTED,
                  "%s: its gradient is fp64: libamp's own optimizers take fp32 and 16-bit gradients", param->name);
    return find_param(optimizer, param, tensor);
}

/* ---- the update ---- */

/* Sets shared data of tensors: the powers of their group, from its first tensor, and whether the caches hold the
 * step. */
static void share(struct amp__optim *optim) {
    uint64_t bytes = 0;
    for (size_t k = 0; k < optim->n_groups; k++) optim->powers[k].step = 0;
    for (size_t i = 0; i < optim->n; i++) {
        struct amp__optim_tensor *tensor = &optim->work[i];
        struct amp__powers *powers = &optim->powers[optim->states[i].group];
        const amp_optim *rule = amp__optim_rule(optim, i);
        if (!tensor->grad.data) continue;
        if (!powers->step) *powers = amp__optim_powers(rule, *tensor->steps);
        tensor->powers = powers;
        if (tensor->low.data || tensor->remainder)
            bytes += amp__optim_bytes(rule, tensor->grad.dtype, tensor->param.size, tensor->codes[0]);
    }
    for (size_t i = 0; i < optim->n; i++) optim->work[i].stream = bytes > amp__cache_bytes();
}

struct update {
    struct amp__optim *optim;
    float norm;
};

static uint64_t size_of(void *update, size_t i) {
    const struct amp__optim_tensor *tensor = &((const struct update *)update)->optim->work[i];
    return tensor->grad.data ? tensor->param.size : 0;
}

static void update_one(void *update, size_t i) {
    const struct update *u = update;
    const amp_optim *rule = amp__optim_rule(u->optim, i);
    const struct amp__optim_tensor *tensor = &u->optim->work[i];
    if (tensor->grad.data) amp__optim_update(rule, tensor, amp__optim_limit(rule, u->norm));
}

/* Two that are apart, so that no arithmetic is moved out of the environment that the caller sets. */
__attribute__((noinline)) static void update(struct amp__optim *optim, float norm) {
    share(optim);
    struct update u = { optim, norm };
    amp__optim_update_all(optim->n, size_of, update_one, &u);
}

__attribute__((noinline)) static double squares_here(const struct amp__optim *optim) {
    double squares = 0.0;
    for (size_t i = 0; i < optim->n; i++)
        if (optim->work[i].grad.data) squares += amp__optim_squares(&optim->work[i]);
    return squares;
}

/* Computes the norm of all gradients, if a rule needs it, except for a device that needs no other. */
static amp_status norm_of_all(const struct amp__optimizer *optimizer, float *norm) {
    const struct amp__optim *optim = optimizer->optim;
    double squares = 0.0;
    if (!amp__optim_needs_norm_of_all(optim)) return AMP_OK;
    const amp__fpenv saved = amp__fpenv_enter();
    squares = squares_here(optim);
    amp__fpenv_leave(saved);
    if (amp__fused_adds_norms(optimizer)) AMP_TRY(amp__fused_device_squares(optimizer, &squares));
    *norm = (float)sqrt(squares);
    return AMP_OK;
}

static void update_all(const struct amp__optimizer *optimizer, float norm) {
    struct amp__optim *optim = optimizer->optim;
    const amp__fpenv saved = amp__fpenv_enter();
    update(optim, norm);
    amp__fpenv_leave(saved);
    for (size_t i = 0; i < optim->n; i++) {
        const struct spread *spread = optim->work[i].spread;
        if (spread) amp__strides_scatter(&spread->place, spread->flat);
        if (optim->work[i].elements) amp__master_stepped(optimizer->params[i], optim->work[i].elements);
    }
    /* the elements changed, and the host's versions did not */
    amp__cache_drop(amp__cache_of(optimizer->context), false);
}

static amp_status step(const struct amp__optimizer *optimizer) {
    struct amp__optim *optim = optimizer->optim;
    amp_status status = AMP_OK;
    float norm = 0.0f;
    size_t found = 0;
    while (found < optim->n && status == AMP_OK) {
        status = find_tensor(optimizer, found, &optim->work[found]);
        found++;
    }
    if (status == AMP_OK) status = amp__fused_device_find(optimizer);
    if (status == AMP_OK) status = norm_of_all(optimizer, &norm);
    if (status == AMP_OK) /* it may fail, the rest cannot */
        status = amp__fused_device_step(optimizer, amp__fused_adds_norms(optimizer) ? &norm : NULL);
    if (status == AMP_OK) update_all(optimizer, norm);
    for (size_t i = 0; i < found; i++) {
        struct spread *spread = optim->work[i].spread;
        if (spread) amp__free(spread->flat);
        amp__free(spread);
    }
    return status;
}

/* ---- the public functions ---- */

static amp_status find_fused(amp_optimizer *user, const char *who, struct amp__optimizer **out) {
    AMP_TRY(amp__optimizer_find(user, out));
    AMP_RETURN_IF(!(*out)->optim, AMP_ERR_WRONG_STATE,
                  "%s: the optimizer is the host's own (amp_optimizer.fused was NULL at amp_initialize)", who);
    return AMP_OK;
}

AMP_API amp_status amp_fused_step(amp_optimizer *user, amp_action *action) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(find_fused(user, "amp_fused_step", &optimizer));
    amp__thread_recover(amp__thread_state(), __builtin_frame_address(0));
    AMP_TRY(amp__step_check(optimizer));
    AMP_RETURN_IF(amp__optimizer_is_lent(optimizer), AMP_ERR_WRONG_STATE,
                  "amp_fused_step inside a step of an optimizer that shares a parameter with it: end that one first "
                  "(amp_step_end)");
    if (!optimizer->skips_on_device) AMP_TRY(amp__home_wait(optimizer->context));
    const bool skip = optimizer->decision.skip || amp__has_error(optimizer->context);
    const amp_action taken = skip ? AMP_SKIP : amp__home_skip(optimizer) ? AMP_STEP_ON_DEVICE : AMP_STEP;
    if (!skip && amp__fused_adds_norms(optimizer))
        AMP_TRY(amp__home_refuse_capture(optimizer->context, "amp_fused_step",
                                         "LAMB's max_grad_norm needs all parameters on one device"));
    if (!skip) AMP_TRY(step(optimizer));
    const amp_status status = amp__step_over(optimizer, taken);
    amp__decision_used(optimizer);
    if (taken == AMP_STEP) amp__wiring_note_step(optimizer);
    if (action) *action = taken;
    return status;
}

AMP_API amp_status amp_fused_zero_grad(amp_optimizer *user) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(find_fused(user, "amp_fused_zero_grad", &optimizer));
    AMP_TRY(amp__grads_clear(optimizer->params, optimizer->n_params));
    AMP_TRY(amp__places_flush(amp__devices_of(optimizer->context)));
    amp__grads_forget(optimizer->params, optimizer->n_params);
    optimizer->scans.stayed = NULL;
    amp__step_clears(optimizer);
    return AMP_OK;
}

static amp_status find_group(amp_optimizer *user, size_t group, const char *who, amp_optim **out) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(find_fused(user, who, &optimizer));
    AMP_RETURN_IF(group >= optimizer->optim->n_groups, AMP_ERR_INVALID_ARGUMENT,
                  "%s: there is no group %zu: this optimizer has %zu, from 0 on", who, group,
                  optimizer->optim->n_groups);
    *out = &optimizer->optim->groups[group];
    return AMP_OK;
}

AMP_API amp_status amp_fused_get(amp_optimizer *user, size_t group, amp_optim *rule) {
    amp_optim *present = NULL;
    AMP_TRY(find_group(user, group, "amp_fused_get", &present));
    AMP_RETURN_IF(!rule, AMP_ERR_INVALID_ARGUMENT, "amp_fused_get: rule is NULL");
    return amp__fill_struct(rule, rule->struct_size, sizeof *present, present, sizeof *present, "amp_optim");
}

AMP_API amp_status amp_fused_set(amp_optimizer *user, size_t group, const amp_optim *rule) {
    amp_optim *present = NULL, checked;
    AMP_TRY(find_group(user, group, "amp_fused_set", &present));
    AMP_TRY(amp__optim_check(rule, "amp_fused_set", &checked));
    AMP_RETURN_IF(!amp__optim_same_moments(present, &checked), AMP_ERR_CONFLICT,
                  "amp_fused_set: the kind, AMP_OPTIM_AMSGRAD and whether momentum is 0 decide on the moments and "
                  "cannot change: make another optimizer");
    *present = checked;
    return AMP_OK;
}
