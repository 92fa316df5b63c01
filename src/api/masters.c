/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that the optimizer updates, for clipping and inspection: masters, or parameters without masters. */
#include "amp_train.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "call/cache.h"
#include "common/thread.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static amp_status find_idle(amp_optimizer *user, const char *who, struct amp__optimizer **out) {
    AMP_TRY(amp__optimizer_find(user, out));
    AMP_RETURN_IF(amp__step_in_bracket(*out), AMP_ERR_WRONG_STATE,
                  "%s inside a bracket: gradients are still scaled: call it after amp_scale_loss_end", who);
    AMP_RETURN_IF(amp__step_is_delayed(*out), AMP_ERR_WRONG_STATE,
                  "%s while gradients are still scaled (AMP_DELAY_UNSCALE)", who);
    AMP_RETURN_IF(amp__step_is_running(*out) || amp__optimizer_is_lent(*out), AMP_ERR_WRONG_STATE,
                  "%s inside a step of this optimizer, or of one that shares a parameter with it", who);
    const struct amp__param *scaled = amp__optimizer_scaled_elsewhere(*out);
    AMP_RETURN_IF(scaled, AMP_ERR_WRONG_STATE, "%s while the gradient of %s is in the bracket of another optimizer "
                  "that shares it, or is still scaled: call it after amp_scale_loss_end", who, scaled->name);
    return AMP_OK;
}

/* Whatever of it could be refused, before any master changes. */
static amp_status check_master(struct amp__param *param) {
    struct amp__elements now, grad = { .data = NULL };
    AMP_TRY(amp__master_settle(param));
    AMP_TRY(amp__param_layout(param, param->tensor, param->name, &now));
    const bool gaps = !param->has_master && now.strides;
    const int32_t ndim = now.ndim; /* the host's shape holds until its next view */
    AMP_TRY(amp__param_check(param, &now));
    if (!param->host->grad || (param->master.held_by_host && param->has_master)) return AMP_OK;
    AMP_TRY(amp__grads_check(param, &grad));
    AMP_RETURN_IF(gaps && grad.data && grad.strides && grad.ndim != ndim, AMP_ERR_INVALID_ARGUMENT,
                  "%s has %d dimension%s but its gradient has %d", param->name, (int)ndim, AMP__S(ndim),
                  (int)grad.ndim);
    return AMP_OK;
}

/* Copies of the host's shape and strides, which hold until its next view only. part: 1 of data, 2 of grad. */
static amp_status tell_layout(struct amp__param *param, const struct amp__elements *now, amp_master *out,
                              const int64_t **strides, size_t part) {
    const size_t n = (size_t)now->ndim;
    if (!now->strides) return AMP_OK;
    if (!out->shape) {
        int64_t *grown = amp__alloc(3 * n, sizeof *grown);
        if (!grown) return amp__fail_memory();
        amp__free(param->layout);
        param->layout = grown;
        memcpy(grown, now->shape, n * sizeof *grown);
    }
    memcpy(param->layout + part * n, now->strides, n * sizeof *param->layout);
    out->ndim = now->ndim;
    out->shape = param->layout;
    *strides = param->layout + part * n;
    return AMP_OK;
}

static amp_status describe_master(struct amp__param *param, amp_master *out) {
    struct amp__elements now;
    amp_span grad = { NULL, 0, AMP_FLOAT32, 0 };
    *out = (amp_master){ .struct_size = sizeof *out, .param = param->tensor, .name = param->name, .size = param->size,
                         .is_master = param->has_master };
    if (param->has_master) {
        AMP_TRY(amp__master_reconcile(param, false));
        AMP_TRY(amp__master_join(param));
        out->data = param->master.fp32.data;
        out->dtype = AMP_FLOAT32;
    } else {
        AMP_TRY(amp__param_layout(param, param->tensor, param->name, &now));
        AMP_TRY(amp__param_check(param, &now));
        out->data = now.data;
        out->dtype = now.dtype;
        AMP_TRY(tell_layout(param, &now, out, &out->strides, 1));
    }
    if (param->master.held_by_host && param->has_master) grad.data = param->gradient.master.data;
    else if (param->host->grad) AMP_TRY(amp__grads_view(param, &grad));
    out->grad = grad.data;
    if (!grad.data || grad.data != param->gradient.flat) return AMP_OK;
    void *handle; /* the caller gets the host's own elements, not our compact copy of them */
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &handle));
    AMP_TRY(amp__host_layout(param->host, handle, param->name, &now));
    out->grad = now.data;
    return tell_layout(param, &now, out, &out->grad_strides, 2);
}

/* Drops casts, since a caller with the elements may write them without a version. */
static void drop_casts(amp_context *context) {
    amp__cache_drop(amp__cache_of(context), false);
}

AMP_API amp_status amp_master_params(amp_optimizer *user, amp_master *masters, size_t capacity, size_t *count) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(find_idle(user, "amp_master_params", &optimizer));
    AMP_RETURN_IF(!count || (capacity && !masters), AMP_ERR_INVALID_ARGUMENT, "amp_master_params: an argument is NULL");
    if (capacity) AMP_TRY(amp__check_struct(masters->struct_size, sizeof *masters, "amp_master"));
    const uint32_t stride = capacity ? masters->struct_size : 0;
    const size_t n = optimizer->n_params < capacity ? optimizer->n_params : capacity;
    for (size_t i = 0; i < n; i++) AMP_TRY(check_master(optimizer->params[i]));
    for (size_t i = 0; i < n; i++) {
        amp_master filled;
        AMP_TRY(describe_master(optimizer->params[i], &filled));
        amp_master *entry = (amp_master *)(void *)((char *)masters + i * stride);
        entry->struct_size = stride;
        AMP_TRY(amp__fill_struct(entry, stride, sizeof filled, &filled, sizeof filled, "amp_master"));
    }
    AMP_TRY(amp__places_flush(amp__devices_of(optimizer->context)));
    drop_casts(optimizer->context);
    *count = optimizer->n_params;
    return AMP_OK;
}

static amp_status total_norm(struct amp__optimizer *optimizer, float *norm) {
    size_t n = 0;
    if (optimizer->optim) return amp__grads_norm_for_step(optimizer->params, optimizer->n_params, norm);
    amp_span *spans = amp__alloc(optimizer->n_params, sizeof *spans);
    if (!spans) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < optimizer->n_params && status == AMP_OK; i++) {
        status = amp__grads_view(optimizer->params[i], &spans[n]);
        if (status == AMP_OK && spans[n].data) n++;
    }
    if (status == AMP_OK) status = amp_l2norm_list(spans, n, norm, NULL);
    amp__free(spans);
    return status;
}

/* The parts of a sharded gradient together. A rank that could not look at its own part takes part all the same, or the
 * others would wait for it: its infinity keeps them from clipping by a norm that is not the whole one. */
static amp_status norm_of_all(const struct amp__optimizer *optimizer, amp_status here, float *norm) {
    const bool sharded = optimizer->sharded && amp__host_has_ranks(&optimizer->host);
    char text[AMP__ERROR_SIZE];
    double squared = here == AMP_OK ? (double)*norm * (double)*norm : (double)INFINITY;
    if (!sharded) return here;
    snprintf(text, sizeof text, "%s", amp_last_error());
    const amp_status status = amp__host_reduce(&optimizer->host, AMP_REDUCE_SUM, &squared, 1);
    if (here != AMP_OK) return amp__fail(here, "%s", text);
    if (status == AMP_OK) *norm = isgreater(sqrt(squared), 3.402823466e38) ? INFINITY : (float)sqrt(squared);
    return status;
}

AMP_API amp_status amp_clip_grad_norm(amp_optimizer *user, float max_norm, float *norm) {
    struct amp__optimizer *optimizer = NULL;
    float total = 0.0f;
    AMP_TRY(find_idle(user, "amp_clip_grad_norm", &optimizer));
    AMP_RETURN_IF(!(max_norm > 0.0f), AMP_ERR_INVALID_ARGUMENT,
                  "amp_clip_grad_norm: max_norm is %g; it must be above 0", (double)max_norm);
    if (optimizer->n_params)
        AMP_TRY(amp__host_need(optimizer->host.grad != NULL, "grad", "amp_clip_grad_norm", "it clips gradients"));
    if (amp__devices_of(optimizer->context)->n_places) return amp__clip_on_device(optimizer, max_norm, norm);
    const amp_status here = total_norm(optimizer, &total);
    if (optimizer->decision.skip) total = INFINITY; /* gradients after an overflow are not those of backward */
    AMP_TRY(norm_of_all(optimizer, here, &total));
    const float factor = amp__clip_factor(total, max_norm);
    if (factor < 1.0f) AMP_TRY(amp__grads_scale(optimizer->params, optimizer->n_params, factor));
    if (norm) *norm = total;
    return AMP_OK;
}

AMP_API amp_status amp_clip_grad_value(amp_optimizer *user, float max_value) {
    struct amp__optimizer *optimizer = NULL;
    AMP_TRY(find_idle(user, "amp_clip_grad_value", &optimizer));
    AMP_RETURN_IF(!(max_value > 0.0f), AMP_ERR_INVALID_ARGUMENT,
                  "amp_clip_grad_value: max_value is %g; it must be above 0", (double)max_value);
    if (optimizer->n_params)
        AMP_TRY(amp__host_need(optimizer->host.grad != NULL, "grad", "amp_clip_grad_value", "it clips gradients"));
    const amp_context *context = optimizer->context;
    struct amp__devices *devices = amp__devices_of(context);
    for (size_t i = 0; i < devices->n_places; i++)
        devices->places[i]->args.factor = (amp_factor){ NULL, max_value, AMP_FACTOR_AS_IT_IS };
    AMP_TRY(amp__grads_clamp(optimizer->params, optimizer->n_params, max_value));
    return amp__places_flush(devices);
}

/* Checks that every parameter with a master is as at initialize, so that a pass over all cannot fail half-way. */
static amp_status check_masters(const amp_context *context) {
    struct amp__params *params = amp__params_of(context);
    for (size_t i = 0; i < params->n; i++) {
        struct amp__elements now;
        struct amp__param *param = params->list[i];
        AMP_TRY(amp__master_settle(param));
        if (param->has_master && !param->lent.steps) AMP_TRY(amp__param_elements(param, &now));
    }
    return AMP_OK;
}

AMP_API amp_status amp_masters_reconcile(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_masters_reconcile: context is NULL");
    struct amp__params *params = amp__params_of(context);
    amp__unseen_steps_forget(context);
    drop_casts(context);
    AMP_TRY(check_masters(context));
    for (size_t i = 0; i < params->n; i++) AMP_TRY(amp__master_reconcile(params->list[i], true));
    return amp__places_flush(amp__devices_of(context));
}

AMP_API amp_status amp_masters_write_back(amp_context *context) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "amp_masters_write_back: context is NULL");
    struct amp__params *params = amp__params_of(context);
    amp__unseen_steps_forget(context);
    drop_casts(context);
    AMP_TRY(check_masters(context));
    for (size_t i = 0; i < params->n; i++) {
        struct amp__param *param = params->list[i];
        if (!param->has_master || param->lent.steps) continue;
        AMP_TRY(amp__master_reconcile(param, false));
        AMP_TRY(amp__master_write_back(param));
    }
    return amp__places_flush(amp__devices_of(context));
}
