/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients in a bracket. begin sets existing ones aside, so that backward starts without any. end (unscale.c) unscales
 * the new ones, adds those set aside, and checks. A fixed FP32 buffer is scaled instead, and unscaled with the result
 * of backward. Gradients from delayed brackets are scaled already: they stay, for backward to add to, and for the host
 * to reduce over its ranks. Outside a bracket no gradient is scaled: a 16-bit parameter has an exact FP32 master
 * gradient, and the handle of the host shows it rounded. Source of the semantics: apex/amp/_process_optimizer.py,
 * without its losses (docs/internals/apex-differences.md).
 */
#include "master/grad.h"

#include <string.h>

/* ---- begin ---- */

static amp_status save_first(struct amp__param *param, const amp_span *shown, bool zero) {
    if (param->host->set_grad || param->gradient.first != AMP__FIRST_UNKNOWN) return AMP_OK;
    const bool master = amp__has_master_grad(param);
    const amp_span exact = master ? amp__grad_master(param) : *shown;
    const bool nothing = !master ? zero : param->gradient.zero || (!param->on_device && amp__span_is_zero(&exact));
    if (!nothing) AMP_TRY(amp__span_copy(param, AMP__WORK_SAVE, &exact, &param->gradient.first_copy));
    param->gradient.first = nothing ? AMP__FIRST_ZEROS : AMP__FIRST_COPIED;
    return AMP_OK;
}

/* The master gradient as the host's handle has it now. zero: the handle shows nothing but zeros, as far as it was
 * looked at. Where the master gradient becomes zero, that is only noted: the bracket's end will write it. */
static amp_status follow(struct amp__param *param, void *grad, const amp_span *shown, bool zero) {
    /* a host without versions may have zeroed its gradient by hand, so it is read */
    const bool look = !param->host->version;
    if (!zero) return amp__grad_follow(param, grad, shown, look);
    const uint64_t version = amp__grad_version(param, grad);
    if (look || grad != param->gradient.handle || version != param->gradient.version || !amp__is_low(shown->dtype))
        param->gradient.zero = true;
    param->gradient.handle = grad;
    param->gradient.version = version;
    return AMP_OK;
}

static amp_status begin_one(struct amp__param *param, const struct amp__hooks *hooks, float scale) {
    void *grad;
    amp_span shown;
    AMP_TRY(amp__master_settle(param));
    AMP_TRY(amp__grads_unscale(param));
    if (!param->gradient.may_be_left) AMP_TRY(amp__grad_need_master(param));
    AMP_TRY(amp__grad_of(param, hooks, &grad));
    if (!grad) {
        if (param->gradient.state != AMP__GRAD_DELAYED) param->gradient.handle = NULL;
        return AMP_OK;
    }
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    /* a device is not asked for zeros, which would be a wait */
    const bool asked = param->gradient.may_be_left || !param->host->set_grad;
    const bool zero = asked && !param->on_device && amp__span_is_zero(&shown);
    if (param->gradient.state == AMP__GRAD_DELAYED) return amp__aside_copy(param, &shown, zero);
    /* then there is no need of a master gradient */
    const bool cleared = param->gradient.may_be_left && !param->gradient.handle && zero;
    if (amp__has_master_grad(param) && !cleared) AMP_TRY(follow(param, grad, &shown, zero));
    if (!cleared) AMP_TRY(save_first(param, &shown, zero));
    else if (!param->host->set_grad && param->gradient.first == AMP__FIRST_UNKNOWN)
        param->gradient.first = AMP__FIRST_ZEROS;
    param->gradient.aside[AMP__AT_BEGIN] = amp__has_master_grad(param) ? AMP__ASIDE_IN_MASTER : AMP__ASIDE_NOTHING;
    if (zero && !param->host->set_grad) return AMP_OK;
    return amp__aside_put(param, grad, &shown, zero, scale);
}

amp_status amp__grads_begin(struct amp__param *const *params, size_t n, float scale, const struct amp__plan *last) {
    AMP_CLEANUP(amp__hooks_leave) const struct amp__hooks hooks = amp__hooks_enter();
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        amp__plan_prefetch(last, params, n, i, true);
        if (amp__in_open_bracket(param)) continue; /* of another optimizer in this bracket */
        const amp_status status = begin_one(param, &hooks, scale);
        if (status == AMP_OK) {
            amp__grad_goes(param, param->gradient.state == AMP__GRAD_DELAYED ? AMP__GRAD_REOPENED : AMP__GRAD_OPEN);
            continue;
        }
        (void)amp__grads_cancel(params, i, false);
        return status;
    }
    return AMP_OK;
}

/* ---- cancel ---- */

amp_status amp__grads_cancel(struct amp__param *const *params, size_t n, bool all) {
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        const bool inner = param->gradient.state == AMP__GRAD_REOPENED && !all;
        /* cancelled already, for another optimizer */
        if (all ? !amp__in_bracket(param) : !amp__in_open_bracket(param)) continue;
        if (!inner) amp__aside_drop(param, AMP__AT_REOPENING);
        const amp_status one = amp__aside_take_back(param, inner ? AMP__AT_REOPENING : AMP__AT_BEGIN);
        const enum amp__grad_state outer = param->gradient.left.handle ? AMP__GRAD_LEFT : AMP__GRAD_UNSCALED;
        amp__grad_goes(param, inner ? AMP__GRAD_DELAYED : outer);
        if (one != AMP_OK) status = one;
    }
    return status;
}

/* ---- delay ---- */

void amp__grads_delay(struct amp__param *const *params, size_t n, uint32_t loss_id, float scale) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        if (!amp__in_open_bracket(param)) continue;
        amp__aside_drop(param, AMP__AT_REOPENING);
        amp__grad_goes(param, AMP__GRAD_DELAYED);
        param->gradient.delayed_loss = loss_id;
        param->gradient.delayed_scale = scale;
    }
}

/* ---- between brackets ---- */

/* Whether the step was skipped is known there. */
static void restore_first_on_device(struct amp__param *param, void *grad, const amp_span *shown) {
    const amp_span first = { param->gradient.first_copy.data, param->size, param->gradient.first_copy.dtype, 0 };
    const amp_span master = amp__grad_master(param);
    if (!first.data) return;
    if (amp__has_master_grad(param)) (void)amp__param_add(param, AMP__WORK_RESTORE, &master, &first);
    (void)amp__param_add(param, AMP__WORK_RESTORE, shown, &first);
    if (amp__has_master_grad(param)) param->gradient.handle = grad;
}

static void restore_first(struct amp__param *param) {
    void *grad;
    amp_span shown;
    if (amp__grad_need_master(param) != AMP_OK) return;
    if (amp__host_grad(param->host, param->tensor, param->name, &grad) != AMP_OK || !grad) return;
    if (amp__grad_elements(param, grad, &shown) != AMP_OK) return;
    amp__grads_forget_left(param);
    if (param->on_device) {
        restore_first_on_device(param, grad, &shown);
        return;
    }
    const amp_span exact = amp__has_master_grad(param) ? amp__grad_master(param) : shown;
    param->gradient.zero = false; /* all of it is written here */
    const amp_storage *first = &param->gradient.first_copy;
    if (first->data && first->dtype == exact.dtype) memcpy(exact.data, first->data, amp__span_bytes(&exact));
    else if (amp__span_bytes(&exact)) memset(exact.data, 0, amp__span_bytes(&exact));
    (void)amp__grad_store(param, grad, &exact);
    if (amp__has_master_grad(param)) {
        param->gradient.handle = grad;
        (void)amp__grads_show(param, true);
    }
}

void amp__grads_stepped(struct amp__param *const *params, size_t n, bool skipped) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        if (i + AMP__PREFETCH < n) amp__param_prefetch(params[i + AMP__PREFETCH]);
        if (param->gradient.first == AMP__FIRST_UNKNOWN) continue;
        if (skipped) restore_first(param);
        if (param->gradient.first == AMP__FIRST_COPIED) amp__param_give_back(param, &param->gradient.first_copy);
        param->gradient.first = AMP__FIRST_UNKNOWN;
    }
}

amp_status amp__grads_show(struct amp__param *param, bool always) {
    void *grad = param->gradient.handle;
    if (!grad) return AMP_OK;
    const uint64_t version = amp__grad_version(param, grad);
    if (!always && param->host->version && version == param->gradient.version) return AMP_OK;
    amp_span shown;
    amp__grad_write_zero(param);
    const amp_span master = amp__grad_master(param);
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    AMP_TRY(amp__param_copy(param, AMP__WORK_SHOW, &shown, &master));
    AMP_TRY(amp__grad_store(param, grad, &shown));
    param->gradient.version = version;
    return AMP_OK;
}

void amp__grads_forget(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct amp__param *param = params[i];
        amp__grads_forget_left(param);
        param->gradient.handle = NULL;
        amp__aside_drop(param, AMP__AT_BEGIN);
        amp__aside_drop(param, AMP__AT_REOPENING);
        if (param->gradient.state == AMP__GRAD_DELAYED) amp__grad_goes(param, AMP__GRAD_UNSCALED);
        /* perhaps another optimizer's */
        if (param->gradient.state == AMP__GRAD_REOPENED) amp__grad_goes(param, AMP__GRAD_OPEN);
    }
}
