/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping: all gradients are looked at before one is written. And clearing. */
#include "master/grad.h"

#include <string.h>

/* A change of all gradients together, in place. */
typedef amp_status change_fn(const amp_span *grads, size_t n, float value);

static amp_status clamp(const amp_span *grads, size_t n, float limit) {
    return amp_clip_value_list(grads, grads, n, limit);
}

/* Of gradients that wait for the step, it remembers the first factor. */
static amp_status multiply(const amp_span *grads, size_t n, float factor) {
    return amp_scale_list(grads, grads, n, factor, NULL);
}

/* The handle of the host shows the new value, rounded if it is that of the master. One with gaps gets it scattered. */
static amp_status show(struct amp__param *param, const amp_span *exact, const amp_span *shown) {
    void *grad;
    if (exact->data != shown->data) {
        AMP_TRY(amp__param_copy(param, AMP__WORK_SHOW, shown, exact));
        param->gradient.version = amp__grad_version(param, param->gradient.handle);
    }
    if (shown->data != param->gradient.flat) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    return amp__grad_store(param, grad, shown);
}

/* Removes gradients on a device from the list. The next flush changes them by the factor of their place. */
static amp_status send_away(struct amp__param *param, amp_span *exact, bool clamps) {
    if (!param->on_device || !exact->data) return AMP_OK;
    const amp_span grad = *exact;
    *exact = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    return amp__param_add(param, clamps ? AMP__WORK_CLAMP : AMP__WORK_MULTIPLY, &grad, &grad);
}

static amp_status show_on_device(struct amp__param *param, const amp_span *shown) {
    const amp_span master = amp__grad_master(param);
    return amp__has_master_grad(param) ? show(param, &master, shown) : AMP_OK;
}

static amp_status change_all(struct amp__param *const *params, size_t n, change_fn *change, float value) {
    amp_span *exact = amp__alloc(2 * n, sizeof *exact); /* zeros */
    if (!exact) return amp__fail_memory();
    amp_span *shown = exact + n;
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        exact[i].dtype = AMP_FLOAT32; /* empty, so far */
        if (change != multiply || !amp__grads_takes_factor(params[i]))
            status = amp__grads_look(params[i], &exact[i], &shown[i]);
    }
    for (size_t i = 0; i < n && status == AMP_OK; i++) status = send_away(params[i], &exact[i], change == clamp);
    if (status == AMP_OK) status = change(exact, n, value);
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        if (params[i]->on_device) status = shown[i].data ? show_on_device(params[i], &shown[i]) : AMP_OK;
        else if (exact[i].data) status = show(params[i], &exact[i], &shown[i]);
        else if (change == multiply && amp__grads_takes_factor(params[i])) params[i]->gradient.left.factor = value;
    amp__free(exact);
    return status;
}

amp_status amp__grads_clamp(struct amp__param *const *params, size_t n, float limit) {
    return change_all(params, n, clamp, limit);
}

amp_status amp__grads_scale(struct amp__param *const *params, size_t n, float factor) {
    return change_all(params, n, multiply, factor);
}

/* ---- clearing ---- */

static amp_status clear_one(struct amp__param *param) {
    void *grad;
    amp_span shown;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    if (param->host->set_grad) {
        AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, NULL));
        amp__host_release(param->host, grad);
        return AMP_OK;
    }
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    AMP_TRY(amp__param_zero(param, &shown));
    return amp__grad_store(param, grad, &shown);
}

amp_status amp__grads_clear(struct amp__param *const *params, size_t n) {
    for (size_t i = 0; i < n; i++) AMP_TRY(clear_one(params[i]));
    return AMP_OK;
}
