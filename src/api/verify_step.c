/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_verify_step: the caller's forward and backward as they are, in FP32 and unscaled, and again through the wiring;
 * then losses and gradients are compared. Whatever either of them changed is put back.
 */
#include "api/verify.h"
#include "bracket/home.h"
#include "call/cache.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/live.h"
#include "context/op.h"
#include "context/probe.h"
#include "context/report.h"
#include "observe/observe.h"
#include "raw/raw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const passes[] = {
    [AMP__PLAIN] = "as it is",
    [AMP__ROUNDED] = "as it is with rounded parameters",
    [AMP__DISTURBED] = "as it is with halved parameters",
    [AMP__WIRED] = "through the wiring",
    [AMP__AGAIN] = "as it is once more",
};
_Static_assert(AMP_COUNT(passes) == AMP__PASSES, "a name for each");

/* ---- elements, here or on a device ---- */

static amp_status fetch(const struct amp__param *param, const struct amp__elements *from, void *to) {
    const size_t bytes = (size_t)from->size * amp__dtype_size(from->dtype);
    if (param->on_device) return amp__place_out(param->place, to, from->data, bytes);
    if (from->strides) amp__strides_gather(to, from);
    else if (bytes) memcpy(to, from->data, bytes);
    return AMP_OK;
}

static amp_status put(const struct amp__param *param, const struct amp__elements *to, const void *from) {
    const size_t bytes = (size_t)to->size * amp__dtype_size(to->dtype);
    if (param->on_device) return amp__place_in(param->place, to->data, from, bytes);
    if (to->strides) amp__strides_scatter(to, from);
    else if (bytes) memcpy(to->data, from, bytes);
    return AMP_OK;
}

static amp_status fetch_floats(const struct amp__param *param, const struct amp__elements *from, float *to) {
    AMP_RETURN_IF(from->size != param->size || !amp__is_floating(from->dtype), AMP_ERR_WRONG_STATE,
                  "amp_verify_step: the gradient of %s has %llu element%s of type %s, and the parameter has %llu",
                  param->name, (unsigned long long)from->size, AMP__S(from->size), amp__dtype_name(from->dtype),
                  (unsigned long long)param->size);
    if (from->dtype == AMP_FLOAT32) return fetch(param, from, to);
    void *raw = amp__alloc((size_t)from->size, amp__dtype_size(from->dtype));
    if (!raw) return amp__fail_memory();
    amp_status status = fetch(param, from, raw);
    const amp_span source = { raw, from->size, from->dtype, 0 }, floats = { to, from->size, AMP_FLOAT32, 0 };
    if (status == AMP_OK && from->dtype != AMP_FLOAT64) status = amp_cast_list(&floats, &source, 1);
    for (uint64_t i = 0; status == AMP_OK && from->dtype == AMP_FLOAT64 && i < from->size; i++)
        to[i] = (float)((const double *)raw)[i];
    amp__free(raw);
    return status;
}

/* ---- saved and restored data ---- */

static amp_status remember(struct amp__verification *v) {
    const amp_context *context = v->context;
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__subject *subject = &v->subjects[i];
        struct amp__elements now;
        AMP_TRY(amp__param_layout(subject->param, subject->param->tensor, subject->param->name, &now));
        AMP_TRY(amp__param_check(subject->param, &now));
        AMP_TRY(fetch(subject->param, &now, subject->before));
    }
    for (size_t i = 0; i < context->optimizers.n; i++) v->optimizers[i] = context->optimizers.list[i];
    for (uint32_t i = 0; i < context->brackets.n; i++) {
        const struct amp__bracket *bracket = &context->brackets.list[i];
        v->brackets[i] = (struct amp__kept_bracket){ bracket->scaler,  bracket->record,    bracket->found_inf,
                                                bracket->told.changes, bracket->told.skips };
    }
    v->looks = context->progress.looks;
    v->ops_checked = context->progress.ops_checked;
    v->verify = context->policy.verify;
    v->properties = context->policy.properties;
    return AMP_OK;
}

/* Fails, last of all, if a pass has stepped. */
static amp_status put_elements_back(const struct amp__verification *v, int pass) {
    const struct amp__param *stepped = NULL;
    for (size_t i = 0; i < v->n_subjects; i++) {
        const struct amp__subject *subject = &v->subjects[i];
        struct amp__elements now;
        AMP_TRY(amp__param_layout(subject->param, subject->param->tensor, subject->param->name, &now));
        AMP_TRY(amp__param_check(subject->param, &now));
        const size_t bytes = (size_t)now.size * amp__dtype_size(now.dtype);
        const bool ours = subject->param->emulated || pass == AMP__ROUNDED || pass == AMP__DISTURBED;
        if (subject->param->in_optimizer && !subject->param->on_device && !now.strides && !ours &&
            bytes && memcmp(now.data, subject->before, bytes) != 0)
            stepped = subject->param;
        AMP_TRY(put(subject->param, &now, subject->before));
    }
    AMP_RETURN_IF(stepped, AMP_ERR_WRONG_STATE,
                  "amp_verify_step: run %s changed %s: leave the optimizer's step out of it", passes[pass],
                  stepped->name);
    return AMP_OK;
}

/* Drops brackets left open by a pass, and gradients. */
static amp_status clear(const struct amp__verification *v) {
    amp_context *context = v->context;
    for (size_t i = 0; i < context->optimizers.n; i++) {
        struct amp__optimizer *optimizer = &context->optimizers.list[i];
        (void)amp__grads_cancel(optimizer->params, optimizer->n_params, true);
        amp__step_drops_delay(optimizer);
    }
    (void)amp__places_flush(&context->devices);
    for (uint32_t i = 0; i < context->brackets.n; i++)
        if (amp__bracket_is_open(&context->brackets.list[i])) amp__bracket_close(&context->brackets.list[i]);
    for (size_t i = 0; i < context->params.n; i++) {
        struct amp__param *param = context->params.list[i];
        if (!param->host->grad || (param->host->set_grad && !param->host->release)) continue;
        AMP_TRY(amp__grads_clear(&param, 1));
        amp__grads_forget(&param, 1);
    }
    return amp__places_flush(&context->devices);
}

static amp_status put_state_back(const struct amp__verification *v) {
    amp_context *context = v->context;
    amp_status status = AMP_OK;
    for (size_t i = 0; i < context->optimizers.n; i++) context->optimizers.list[i] = v->optimizers[i];
    for (uint32_t i = 0; i < context->brackets.n; i++) {
        struct amp__bracket *bracket = &context->brackets.list[i];
        const struct amp__kept_bracket *kept = &v->brackets[i];
        bracket->scaler = kept->scaler;
        bracket->record = kept->record;
        bracket->found_inf = kept->found_inf;
        bracket->told.changes = kept->changes;
        bracket->told.skips = kept->told_of_skips;
        if (status == AMP_OK) status = bracket->home->write(bracket);
    }
    context->progress.looks = v->looks;
    context->progress.ops_checked = v->ops_checked;
    return status;
}

/* ---- as it is ---- */

static void sleep_op(struct amp__asleep *kept, struct amp__op *op) {
    *kept = (struct amp__asleep){ op, op->op_class, op->raw_mode, op->is_backward, op->types.tabulated,
                                  op->glance, amp__op_probe(op, AMP__PROBE_VERIFY), op->functions };
    op->op_class = AMP_LEAVE;
    op->raw_mode = AMP__RAW_NONE;
    op->is_backward = op->types.tabulated = false;
    op->glance = NULL;
    amp__op_put_probe(op, AMP__PROBE_VERIFY, NULL);
    op->functions = (struct amp__op_functions){ NULL, NULL, NULL };
}

static void wake_op(const struct amp__asleep *kept) {
    struct amp__op *op = kept->op;
    op->op_class = kept->op_class;
    op->raw_mode = kept->raw_mode;
    op->is_backward = kept->is_backward;
    op->types.tabulated = kept->tabulated;
    op->glance = kept->glance;
    amp__op_put_probe(op, AMP__PROBE_VERIFY, kept->verify);
    op->functions = kept->functions;
}

/* Suspends libamp: wrappers stay in the slots and pass calls on, brackets and casts do nothing. */
static amp_status sleep_all(struct amp__verification *v) {
    amp_context *context = v->context;
    size_t n = 0;
    for (size_t i = 0; i < context->models.n; i++)
        for (size_t j = 0; j < context->models.list[i].n_ops; j++)
            sleep_op(&v->ops[n++], &context->models.list[i].ops[j]);
    v->n_ops = n;
    amp__properties_make_inert(&context->policy.properties);
    context->policy.properties.enabled = context->policy.properties.emulate = false;
    context->policy.verify = false;
    amp_status status = AMP_OK;
    for (uint32_t i = 0; i < context->brackets.n && status == AMP_OK; i++) {
        context->brackets.list[i].scaler.scale = 1.0f; /* amp_scale */
        status = context->brackets.list[i].home->write(&context->brackets.list[i]);
    }
    for (size_t i = 0; i < context->params.n && status == AMP_OK; i++)
        status = amp__param_expose(context->params.list[i], &v->subjects[i].kept);
    return status;
}

static amp_status wake(struct amp__verification *v) {
    amp_context *context = v->context;
    amp_status status = AMP_OK;
    for (size_t i = context->params.n; i--;) {
        const amp_status one = amp__param_cover(context->params.list[i], &v->subjects[i].kept);
        if (status == AMP_OK) status = one;
    }
    for (size_t i = v->n_ops; i--;) wake_op(&v->ops[i]);
    v->n_ops = 0;
    context->policy.verify = v->verify;
    context->policy.properties = v->properties;
    return status;
}

/* ---- a pass ---- */

static amp_status check_over(const struct amp__verification *v, int pass) {
    const amp_context *context = v->context;
    for (uint32_t i = 0; i < context->brackets.n; i++)
        AMP_RETURN_IF(amp__bracket_is_open(&context->brackets.list[i]), AMP_ERR_WRONG_STATE,
                      "amp_verify_step: run %s left the bracket of loss %u open: end it there", passes[pass],
                      (unsigned)i);
    for (size_t i = 0; i < context->optimizers.n; i++) {
        const struct amp__optimizer *optimizer = &context->optimizers.list[i];
        AMP_RETURN_IF(amp__step_is_delayed(optimizer) || optimizer->delay.unchecked, AMP_ERR_WRONG_STATE,
                      "amp_verify_step: run %s left gradients of optimizer %zu scaled, or unchecked: end it with a "
                      "bracket that does not delay", passes[pass], i);
    }
    return AMP_OK;
}

static amp_status run_once(struct amp__verification *v, int pass) {
    const double unset = -HUGE_VAL;
    v->losses[pass] = unset;
    (void)amp__fail(AMP_OK, "%s", ""); /* an older error is not run's */
    amp_status status = v->run(v->self, &v->losses[pass]);
    if (status > AMP_OK) status = AMP_ERR_HOST_FAILED;
    const bool silent = status != AMP_OK && !*amp_last_error();
    const amp_status kept = amp__take_error(v->context);
    AMP_RETURN_IF(silent && kept == AMP_OK, status, "amp_verify_step: run %s returned %s", passes[pass],
                  amp_status_name(status));
    if (status == AMP_OK) status = kept;
    if (status != AMP_OK) return amp__fail_prefix(status, "amp_verify_step: run %s", passes[pass]);
    AMP_RETURN_IF(v->losses[pass] <= unset, AMP_ERR_INVALID_ARGUMENT,
                  "amp_verify_step: run wrote no loss: set *loss to it, unscaled");
    return check_over(v, pass);
}

/* Where backward left it. */
static amp_status look_at_plain(const struct amp__param *param, struct amp__elements *now) {
    void *grad;
    now->data = NULL;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    return grad ? amp__param_layout(param, grad, param->name, now) : AMP_OK;
}

/* Reads the gradient as the step would. */
static amp_status look_at_wired(struct amp__param *param, const amp_context *context, struct amp__elements *now) {
    amp_span span;
    AMP_TRY(amp__grads_view(param, &span));
    AMP_TRY(amp__places_flush(&context->devices));
    *now = (struct amp__elements){ .data = span.data, .size = span.size, .dtype = span.dtype };
    return AMP_OK;
}

static amp_status read_gradients(struct amp__verification *v, int pass) {
    for (size_t i = 0; i < v->n_subjects; i++) {
        struct amp__subject *subject = &v->subjects[i];
        struct amp__elements now;
        if (!subject->param->in_optimizer) continue;
        if (pass == AMP__WIRED) AMP_TRY(look_at_wired(subject->param, v->context, &now));
        else AMP_TRY(look_at_plain(subject->param, &now));
        subject->has_grad[pass] = now.data != NULL;
        if (now.data) AMP_TRY(fetch_floats(subject->param, &now, subject->grads[pass]));
    }
    return AMP_OK;
}

/* After either pass, well or not: the first error. */
static amp_status end_pass(struct amp__verification *v, int pass, amp_status status) {
    char text[AMP__ERROR_SIZE];
    snprintf(text, sizeof text, "%s", amp_last_error());
    const amp_status cleared = clear(v), woken = wake(v), back = put_elements_back(v, pass), state = put_state_back(v);
    if (status != AMP_OK) return amp__fail(status, "%s", text);
    return cleared != AMP_OK ? cleared : woken != AMP_OK ? woken : back != AMP_OK ? back : state;
}

/* Changes every FP32 element by the largest effect of rounding to the 16-bit type, also if it was rounded before, or
 * halves it. On a device they stay. */
static amp_status change_elements(const struct amp__verification *v, int pass) {
    const float unit = v->properties.low == AMP_BFLOAT16 ? 0x1p-9f : 0x1p-12f; /* half of the largest, on average */
    for (size_t i = 0; i < v->n_subjects; i++) {
        const struct amp__param *param = v->subjects[i].param;
        struct amp__elements now;
        AMP_TRY(amp__param_layout(param, param->tensor, param->name, &now));
        if (param->on_device || now.strides || now.dtype != AMP_FLOAT32 || !param->in_optimizer) continue;
        float *elements = now.data;
        for (uint64_t k = 0; k < now.size; k++) {
            const bool up = (uint32_t)k * UINT32_C(2654435761) >> 31;
            elements[k] *= pass == AMP__DISTURBED ? 0.5f : up ? 1.0f + unit : 1.0f - unit;
        }
    }
    return AMP_OK;
}

static amp_status run_plain(struct amp__verification *v, int pass) {
    amp_status status = sleep_all(v);
    if (status == AMP_OK && (pass == AMP__ROUNDED || pass == AMP__DISTURBED)) status = change_elements(v, pass);
    if (status == AMP_OK) status = run_once(v, pass);
    if (status == AMP_OK) status = read_gradients(v, pass);
    return end_pass(v, pass, status);
}

static amp_status count(amp_context *context, uint64_t *brackets, uint64_t *skips) {
    AMP_TRY(amp__home_read_all(context));
    *brackets = *skips = 0;
    for (uint32_t i = 0; i < context->brackets.n; i++) {
        *brackets += context->brackets.list[i].record.brackets;
        *skips += context->brackets.list[i].record.skipped;
    }
    return AMP_OK;
}

/* *skipped: a gradient was not finite at a scale that steps down. */
static amp_status run_in_brackets(struct amp__verification *v, bool *skipped) {
    amp_context *context = v->context;
    uint64_t brackets, skips, brackets_now, skips_now;
    AMP_TRY(count(context, &brackets, &skips));
    AMP_TRY(run_once(v, AMP__WIRED));
    AMP_TRY(count(context, &brackets_now, &skips_now));
    AMP_RETURN_IF(context->optimizers.n && brackets == brackets_now, AMP_ERR_WRONG_STATE,
                  "amp_verify_step: run ended no bracket: put backward between amp_scale_loss_begin and "
                  "amp_scale_loss_end, in run as in training");
    *skipped = skips != skips_now && context->policy.properties.scaler.dynamic;
    return AMP_OK;
}

/* A scale that is still too large steps down, as in training. */
static amp_status run_wired(struct amp__verification *v) {
    enum { TRIES = 200 };
    bool skipped = true;
    amp_status status = AMP_OK;
    for (int i = 0; i < TRIES && status == AMP_OK && skipped; i++) {
        if (i) status = clear(v);
        if (i && status == AMP_OK) status = put_elements_back(v, AMP__WIRED);
        if (status == AMP_OK) status = run_in_brackets(v, &skipped);
    }
    v->scale = v->context->brackets.list[0].record.scale_before;
    if (status == AMP_OK) status = read_gradients(v, AMP__WIRED);
    return end_pass(v, AMP__WIRED, status);
}

/* ---- the whole ---- */

static amp_status check_param(const struct amp__param *param) {
    AMP_TRY(amp__host_need(param->host->view != NULL, "view", "amp_verify_step", "parameters are put back through it"));
    if (!param->in_optimizer) return AMP_OK;
    AMP_TRY(amp__host_need(param->host->grad != NULL, "grad", "amp_verify_step", "gradients are compared through it"));
    AMP_RETURN_IF(param->master.held_by_host, AMP_ERR_UNSUPPORTED,
                  "amp_verify_step: the optimizer of %s holds the masters itself (AMP_OPTIMIZER_HOLDS_MASTERS): "
                  "verify the same model with another optimizer", param->name);
    return AMP_OK;
}

static amp_status check_idle(const amp_context *context) {
    AMP_RETURN_IF(context->progress.verifying, AMP_ERR_WRONG_STATE, "amp_verify_step inside of amp_verify_step");
    AMP_RETURN_IF(context->progress.open, AMP_ERR_WRONG_STATE, "amp_verify_step inside a bracket: end it first");
    for (size_t i = 0; i < context->optimizers.n; i++) {
        const struct amp__optimizer *optimizer = &context->optimizers.list[i];
        AMP_RETURN_IF(amp__step_is_delayed(optimizer) || optimizer->delay.unchecked || amp__step_is_running(optimizer),
                      AMP_ERR_WRONG_STATE,
                      "amp_verify_step while optimizer %zu has scaled or unchecked gradients, or steps: call it "
                      "between steps", i);
    }
    for (size_t i = 0; i < context->params.n; i++) AMP_TRY(check_param(context->params.list[i]));
    return AMP_OK;
}

/* Room for all of it, so that nothing fails for want of it on the way back. */
static amp_status make_room(struct amp__verification *v) {
    const amp_context *context = v->context;
    size_t n_ops = 0;
    for (size_t i = 0; i < context->models.n; i++) n_ops += context->models.list[i].n_ops;
    v->n_subjects = context->params.n;
    v->n_optimizers = context->optimizers.n;
    v->subjects = amp__alloc(v->n_subjects, sizeof *v->subjects);
    v->ops = amp__alloc(n_ops, sizeof *v->ops);
    v->optimizers = amp__alloc(v->n_optimizers, sizeof *v->optimizers);
    v->brackets = amp__alloc(context->policy.properties.num_losses, sizeof *v->brackets);
    bool all = v->subjects && v->ops && v->optimizers && v->brackets;
    for (size_t i = 0; all && i < context->params.n; i++) {
        struct amp__subject *subject = &v->subjects[i];
        const size_t n = (size_t)context->params.list[i]->size;
        subject->param = context->params.list[i];
        subject->before = amp__alloc(n, amp__dtype_size(subject->param->dtype));
        all = subject->before != NULL;
        for (int pass = 0; all && pass < AMP__PASSES && subject->param->in_optimizer; pass++)
            all = (subject->grads[pass] = amp__alloc(n, sizeof(float))) != NULL;
    }
    return all ? AMP_OK : amp__fail_memory();
}

static void free_room(struct amp__verification *v) {
    for (size_t i = 0; v->subjects && i < v->n_subjects; i++) {
        for (int pass = 0; pass < AMP__PASSES; pass++) amp__free(v->subjects[i].grads[pass]);
        amp__free(v->subjects[i].before);
    }
    amp__free(v->subjects);
    amp__free(v->ops);
    amp__free(v->optimizers);
    amp__free(v->brackets);
}

static amp_status verify(struct amp__verification *v) {
    AMP_TRY(make_room(v));
    AMP_TRY(amp__home_read_all(v->context));
    AMP_TRY(clear(v));
    AMP_TRY(remember(v));
    AMP_TRY(run_plain(v, AMP__PLAIN));
    AMP_TRY(run_plain(v, AMP__ROUNDED));
    AMP_TRY(run_plain(v, AMP__DISTURBED));
    AMP_TRY(run_wired(v));
    AMP_TRY(run_plain(v, AMP__AGAIN));
    return amp__verify_judge(v);
}

AMP_API amp_status amp_verify_step(amp_context *context, amp_run run, void *self) {
    AMP_RETURN_IF(!context || !run, AMP_ERR_INVALID_ARGUMENT, "amp_verify_step: an argument is NULL");
    AMP_RETURN_IF(!amp__context_is_live(context), AMP_ERR_WRONG_STATE,
                  "amp_verify_step: there is no such context: was it shut down?");
    amp__thread_recover(amp__thread_state(), __builtin_frame_address(0));
    AMP_TRY(check_idle(context));
    if (!context->policy.properties.enabled) return AMP_OK;
    AMP_RETURN_IF(context->addresses.released, AMP_ERR_WRONG_STATE,
                  "amp_verify_step: weights are released, and it runs the "
                  "model in FP32: call amp_weights_restore first");
    AMP_TRY(amp__home_refuse_capture(context, "amp_verify_step", "Call it before the capture or after it"));
    AMP_TRY(amp__take_error(context));
    AMP_CLEANUP(free_room) struct amp__verification v = { .context = context, .run = run, .self = self };
    const bool observing = amp__observing(context);
    amp__observe_set(context, false);
    context->progress.verifying = true;
    const amp_status status = verify(&v);
    context->progress.verifying = false;
    amp__observe_set(context, observing);
    amp__cache_drop(&context->cache, false); /* elements were restored without a version */
    amp__spares_clear(&context->spares);
    return status;
}
