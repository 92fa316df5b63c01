/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that stay scaled after a bracket, because an optimizer of libamp unscales them in its step: the end of the
 * bracket only checks them and sums their squares. Clipping by norm leaves a factor beside them. Any other reader
 * unscales them first. A gradient that the host puts in their place counts as unscaled.
 */
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "master/grad.h"

#include <math.h>

/* True if it would be unscaled in FP32. 16-bit storage would round, which the step would not do. */
bool amp__grad_may_be_left(const struct amp__param *param, const amp_span *fresh) {
    if (!param->gradient.may_be_left || fresh->dtype == AMP_FLOAT64) return false;
    return amp__has_master_grad(param) || (fresh->dtype == AMP_FLOAT32 && (!param->emulated || param->has_master));
}

void amp__grads_forget_left(struct amp__param *param) {
    if (param->gradient.state != AMP__GRAD_LEFT) return;
    param->gradient.left.handle = NULL;
    amp__grad_goes(param, AMP__GRAD_UNSCALED);
}

/* Returns the handle that was left scaled, or NULL. Forgets one that the host has replaced. */
static amp_status find_left(struct amp__param *param, void **out) {
    void *grad;
    *out = NULL;
    if (param->gradient.state != AMP__GRAD_LEFT) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (grad == param->gradient.left.handle) *out = grad;
    else amp__grads_forget_left(param);
    return AMP_OK;
}

static amp_status unscale_on_device(struct amp__param *param, void *grad, const amp_span *dst, const amp_span *shown) {
    const amp_factor by = { param->gradient.left.device_inverse, param->gradient.left.inverse, AMP_FACTOR_AS_IT_IS };
    AMP_TRY(amp__place_set_deferred(param->place, &by));
    param->gradient.left.given = param->gradient.left.handle;
    AMP_TRY(amp__param_add(param, AMP__WORK_UNSCALE, dst, shown));
    if (dst->data != shown->data) {
        AMP_TRY(amp__param_add(param, AMP__WORK_SHOW, shown, dst));
        param->gradient.handle = grad;
        param->gradient.version = amp__grad_version(param, grad);
    }
    amp__grads_forget_left(param);
    return AMP_OK;
}

amp_status amp__grads_unscale_now(struct amp__param *param) {
    const struct amp__left *left = &param->gradient.left;
    void *grad;
    amp_span shown;
    AMP_TRY(find_left(param, &grad));
    if (!grad) return AMP_OK;
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    AMP_TRY(amp__grad_need_master(param));
    const bool master = amp__has_master_grad(param);
    const amp_span dst = master ? amp__grad_master(param) : shown;
    param->gradient.zero = false; /* all of it is written here */
    if (param->on_device) return unscale_on_device(param, grad, &dst, &shown);
    AMP_TRY(amp_scale_list(&dst, &shown, 1, left->inverse, NULL));
    if (left->factor != 1.0f) AMP_TRY(amp_scale_list(&dst, &dst, 1, left->factor, NULL));
    if (master) AMP_TRY(amp_cast_list(&shown, &dst, 1));
    amp__grads_forget_left(param);
    AMP_TRY(amp__grad_store(param, grad, &shown));
    if (!master) return AMP_OK;
    param->gradient.handle = grad;
    param->gradient.version = amp__grad_version(param, grad);
    return AMP_OK;
}

amp_status amp__grads_for_step(struct amp__param *param, struct amp__grad_for_step *out) {
    const struct amp__left *left = &param->gradient.left;
    void *grad;
    *out = (struct amp__grad_for_step){ .inverse = 1.0f, .factor = 1.0f };
    AMP_TRY(find_left(param, &grad));
    if (!grad) return amp__grads_view(param, &out->span);
    AMP_TRY(amp__grad_elements(param, grad, &out->span));
    out->inverse = left->inverse;
    out->device_inverse = left->device_inverse;
    out->factor = left->factor;
    out->squares = left->squares;
    out->has_squares =
        left->factor == 1.0f && param->host->version && amp__grad_version(param, grad) == left->version;
    return AMP_OK;
}

/* Apart, so that no arithmetic is moved out of the environment that the caller sets. */
__attribute__((noinline)) static void add_up(const struct amp__grad_for_step *parts, size_t n, float *norm) {
    double squares = 0.0;
    uint32_t unused = 0;
    for (size_t i = 0; i < n; i++) {
        const struct amp__grad_for_step *part = &parts[i];
        if (!part->span.data) continue;
        squares += part->has_squares ? part->squares
                                     : amp__check_span(&part->span, part->inverse, part->factor, &unused);
    }
    *norm = (float)sqrt(squares);
}

amp_status amp__grads_norm_for_step(struct amp__param *const *params, size_t n, float *norm) {
    struct amp__grad_for_step *parts = amp__alloc(n, sizeof *parts);
    if (!parts) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) status = amp__grads_for_step(params[i], &parts[i]);
    if (status == AMP_OK) {
        const amp__fpenv saved = amp__fpenv_enter();
        add_up(parts, n, norm);
        amp__fpenv_leave(saved);
    }
    amp__free(parts);
    return status;
}
