/* SPDX-License-Identifier: Apache-2.0 */
/* One gradient: its elements, the exact one beside a rounded one, and how it makes room for another. */
#include "master/grad.h"

#include <string.h>

uint64_t amp__grad_version(const struct amp__param *param, void *handle) {
    return param->host->version ? param->host->version(param->host->self, handle) : 0;
}

static amp_status check(const struct amp__param *param, amp_status status, const struct amp__elements *now) {
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    AMP_RETURN_IF(now->size != param->size || !amp__is_floating(now->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "%s has %llu element%s but its gradient has %llu of %s", param->name, (unsigned long long)param->size,
                  AMP__S(param->size), (unsigned long long)now->size, amp__dtype_name(now->dtype));
    AMP_RETURN_IF(now->strides && amp__has_master_grad(param) && amp__strides_negative(now), AMP_ERR_UNSUPPORTED,
                  "%s: gradient runs backwards in memory (a negative stride), and its parameter has a master: the FP32 "
                  "gradient cannot be put under it for the step; make it contiguous", param->name);
    return AMP_OK;
}

static amp_status look(const struct amp__param *param, void *grad, struct amp__elements *now) {
    return check(param, amp__param_layout(param, grad, "gradient", now), now);
}

/* Nothing of the parameter's size is kept: no type to go back to, no master, no moments, no copy of a gradient. */
static bool follows_its_size(const struct amp__param *param) {
    const struct amp__gradient *gradient = &param->gradient;
    return !param->re_typed && !param->has_master && !param->master.fp32.data &&
           !param->emulated && !gradient->may_be_left &&
           param->host->set_grad && gradient->aside[AMP__AT_BEGIN] == AMP__ASIDE_NOTHING &&
           gradient->aside[AMP__AT_REOPENING] == AMP__ASIDE_NOTHING;
}

/* The host may have cut or joined such a parameter since (sharding): its present size is used. */
static amp_status follow_size(struct amp__param *param, void *grad) {
    struct amp__elements now, own;
    if (!follows_its_size(param)) return AMP_OK;
    if (amp__param_layout(param, grad, "gradient", &now) != AMP_OK) return AMP_OK; /* look() reports it with its name */
    if (now.size == param->size) return AMP_OK;
    AMP_TRY(amp__param_layout(param, param->tensor, param->name, &own));
    if (own.size != now.size) return AMP_OK;
    for (int i = 0; i < 3; i++) amp__param_free(param, &param->gradient.spare[i]);
    amp__free(param->gradient.flat);
    param->gradient.flat = NULL;
    param->size = own.size;
    return AMP_OK;
}

/* Not the compact block that it nearly always is. */
__attribute__((noinline)) static amp_status look_closely(struct amp__param *param, void *grad, amp_span *span) {
    struct amp__elements now;
    AMP_TRY(follow_size(param, grad));
    AMP_TRY(look(param, grad, &now));
    if (now.strides) {
        if (param->gradient.flat && param->gradient.flat_dtype != now.dtype) {
            amp__free(param->gradient.flat);
            param->gradient.flat = NULL;
        }
        if (!param->gradient.flat)
            param->gradient.flat = amp__alloc_aligned((size_t)now.size * amp__dtype_size(now.dtype));
        if (!param->gradient.flat) return amp__fail_memory();
        param->gradient.flat_dtype = now.dtype;
        amp__strides_gather(param->gradient.flat, &now);
    }
    param->gradient.gaps = now.strides != NULL;
    *span = (amp_span){ now.strides ? param->gradient.flat : now.data, now.size, now.dtype, 0 };
    return AMP_OK;
}

amp_status amp__grad_elements(struct amp__param *param, void *grad, amp_span *span) {
    amp_tensor_view view;
    const amp_status status = amp__host_view(param->host, grad, "gradient", &view);
    if (__builtin_expect(status != AMP_OK, 0)) return amp__fail_prefix(status, "%s", param->name);
    if (param->on_device || !amp__view_is_plain(&view, span) || span->size != param->size)
        return look_closely(param, grad, span);
    param->gradient.gaps = false;
    return AMP_OK;
}

amp_status amp__grad_store(const struct amp__param *param, void *grad, const amp_span *span) {
    struct amp__elements now;
    if (!span->data || span->data != param->gradient.flat) return AMP_OK;
    AMP_TRY(look(param, grad, &now));
    AMP_RETURN_IF(!now.strides || now.dtype != span->dtype, AMP_ERR_HOST_FAILED,
                  "%s: the layout of its gradient changed while libamp worked on it", param->name);
    amp__strides_scatter(&now, span->data);
    return AMP_OK;
}

amp_span amp__grad_master(const struct amp__param *param) {
    return (amp_span){ param->gradient.master.data, param->size, AMP_FLOAT32, 0 };
}

amp_status amp__grad_make_master(struct amp__param *param) {
    return amp__param_alloc(param, AMP_FLOAT32, AMP_FOR_GRADIENT, &param->gradient.master);
}

bool amp__span_is_zero(const amp_span *span) {
    static const unsigned char zeros[4096];
    const unsigned char *bytes = span->data;
    uint64_t n = amp__span_bytes(span);
    for (; n > sizeof zeros; n -= sizeof zeros, bytes += sizeof zeros)
        if (memcmp(bytes, zeros, sizeof zeros)) return false;
    return !n || !memcmp(bytes, zeros, n);
}

void amp__grad_write_zero(struct amp__param *param) {
    if (param->gradient.zero) memset(param->gradient.master.data, 0, (size_t)param->size * sizeof(float));
    param->gradient.zero = false;
}

amp_status amp__grad_follow(struct amp__param *param, void *grad, const amp_span *shown, bool look) {
    AMP_TRY(amp__grad_need_master(param));
    amp__grad_write_zero(param);
    if (shown->data == param->gradient.master.data) { /* the block itself: held */
        param->gradient.handle = grad;
        return AMP_OK;
    }
    const uint64_t version = amp__grad_version(param, grad);
    const amp_span master = amp__grad_master(param);
    const bool another = grad != param->gradient.handle || !amp__is_low(shown->dtype);
    if (param->on_device) {
        if (another) AMP_TRY(amp__param_add(param, AMP__WORK_FOLLOW, &master, shown));
        else if (look || version != param->gradient.version)
            AMP_TRY(amp__param_add(param, AMP__WORK_RECONCILE_GRAD, &master, shown));
    } else if (another || ((look || version != param->gradient.version) && amp__span_is_zero(shown)))
        AMP_TRY(amp_cast_list(&master, shown, 1));
    else if (look || version != param->gradient.version)
        AMP_TRY(amp__reconcile(param->gradient.master.data, shown->data, shown->size, shown->dtype));
    param->gradient.handle = grad;
    param->gradient.version = version;
    return AMP_OK;
}

amp_status amp__grads_look(struct amp__param *param, amp_span *exact, amp_span *shown) {
    void *grad;
    *exact = *shown = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    AMP_TRY(amp__master_settle(param));
    AMP_TRY(amp__grads_unscale(param));
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) {
        param->gradient.handle = NULL;
        return AMP_OK;
    }
    AMP_TRY(amp__grad_elements(param, grad, shown));
    *exact = *shown;
    if (!amp__has_master_grad(param) || param->lent.steps) return AMP_OK;
    AMP_TRY(amp__grad_follow(param, grad, shown, false));
    *exact = amp__grad_master(param);
    return AMP_OK;
}

amp_status amp__grads_check(struct amp__param *param, struct amp__elements *now) {
    void *grad;
    *now = (struct amp__elements){ .dtype = AMP_FLOAT32 };
    AMP_TRY(amp__master_settle(param));
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!grad) return AMP_OK;
    AMP_TRY(look(param, grad, now));
    return amp__grad_need_master(param);
}

amp_status amp__grads_view(struct amp__param *param, amp_span *span) {
    amp_span shown;
    return amp__grads_look(param, span, &shown);
}

/* ---- setting aside ---- */

amp_status amp__span_copy(struct amp__param *param, enum amp__work work, const amp_span *span, amp_storage *out) {
    AMP_TRY(amp__param_borrow(param, span->dtype, out));
    const amp_span copy = { out->data, span->size, span->dtype, 0 };
    if (param->on_device) return amp__param_add(param, work, &copy, span);
    memcpy(out->data, span->data, amp__span_bytes(span));
    return AMP_OK;
}

/* May the host's elements carry the scale? An emulated parameter's are a 16-bit sum, which backward rounds; and a scale
 * that lives on a device is not known here (0). */
static bool may_multiply(const struct amp__param *param, const amp_span *shown, float scale) {
    return !param->on_device && !param->emulated && !amp__is_low(shown->dtype) && scale != 0.0f;
}

amp_status amp__aside_put(struct amp__param *param, void *grad, const amp_span *shown, bool zero, float scale) {
    struct amp__set_aside *kept = &param->gradient.kept[AMP__AT_BEGIN];
    enum amp__aside aside = AMP__ASIDE_TAKEN;
    if (param->host->set_grad) {
        AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, NULL));
        kept->handle = grad;
    } else if (!zero) {
        AMP_TRY(amp__span_copy(param, AMP__WORK_ASIDE, shown, &kept->copy));
        const bool scales = may_multiply(param, shown, scale);
        if (scales) aside = AMP__ASIDE_COPIED;
        amp_status status = scales ? amp_scale_list(shown, shown, 1, scale, NULL) : amp__param_zero(param, shown);
        if (status == AMP_OK) status = amp__grad_store(param, grad, shown);
        if (status != AMP_OK) {
            amp__aside_drop(param, AMP__AT_BEGIN);
            return status;
        }
    }
    if (kept->handle || kept->copy.data) param->gradient.aside[AMP__AT_BEGIN] = (uint8_t)aside;
    return AMP_OK;
}

/* The copy into the host's elements. */
static amp_status write_copy(struct amp__param *param, void *grad, const amp_storage *kept) {
    amp_span shown;
    AMP_TRY(amp__grad_elements(param, grad, &shown));
    const amp_span copy = { kept->data, shown.size, shown.dtype, 0 };
    if (!copy.data || kept->dtype != shown.dtype) AMP_TRY(amp__param_zero(param, &shown));
    else if (param->on_device) AMP_TRY(amp__param_add(param, AMP__WORK_TAKE_BACK, &shown, &copy));
    else memcpy(shown.data, copy.data, amp__span_bytes(&shown));
    return amp__grad_store(param, grad, &shown);
}

static amp_status take_back(struct amp__param *param, enum amp__aside_at at) {
    const struct amp__set_aside *kept = &param->gradient.kept[at];
    const enum amp__aside aside = param->gradient.aside[at];
    void *grad;
    if (aside == AMP__ASIDE_NOT_MOVED) return AMP_OK;
    AMP_TRY(amp__host_grad(param->host, param->tensor, param->name, &grad));
    if (!param->host->set_grad || aside == AMP__ASIDE_COPIED) {
        if (!grad) return AMP_OK;
        AMP_TRY(write_copy(param, grad, &kept->copy));
        /* the master gradient is that of the first begin: it knows no elements of a reopening */
        if (at == AMP__AT_BEGIN) param->gradient.version = amp__grad_version(param, grad);
        return AMP_OK;
    }
    if (grad || kept->handle) AMP_TRY(amp__host_set_grad(param->host, param->tensor, param->name, kept->handle));
    amp__host_release(param->host, grad);
    return AMP_OK;
}

/* Takes gradients back. A failing hook is called once more, since there is no other place for them. */
amp_status amp__aside_take_back(struct amp__param *param, enum amp__aside_at at) {
    amp_status status = take_back(param, at);
    if (status != AMP_OK) status = take_back(param, at);
    if (status == AMP_OK) param->gradient.kept[at].handle = NULL; /* the host's again */
    amp__aside_drop(param, at);
    return status;
}

amp_status amp__aside_copy(struct amp__param *param, const amp_span *shown, bool zero) {
    param->gradient.aside[AMP__AT_REOPENING] = AMP__ASIDE_COPIED;
    return zero ? AMP_OK : amp__span_copy(param, AMP__WORK_ASIDE, shown, &param->gradient.kept[AMP__AT_REOPENING].copy);
}

void amp__aside_drop(struct amp__param *param, enum amp__aside_at at) {
    struct amp__set_aside *kept = &param->gradient.kept[at];
    amp__host_release(param->host, kept->handle);
    amp__param_give_back(param, &kept->copy);
    *kept = (struct amp__set_aside){ 0 };
    param->gradient.aside[at] = AMP__ASIDE_NOTHING;
}

amp_status amp__aside_elements(struct amp__param *param, amp_span *span) {
    struct amp__set_aside *kept = &param->gradient.kept[AMP__AT_BEGIN];
    struct amp__elements now = { 0 };
    if (kept->handle) AMP_TRY(look(param, kept->handle, &now));
    if (now.strides) {
        if (!kept->copy.data)
            AMP_TRY(amp__host_alloc(param->host, now.size, now.dtype, param->device, AMP_FOR_GRADIENT, &kept->copy));
        amp__strides_gather(kept->copy.data, &now);
    }
    *span = now.data && !now.strides ? (amp_span){ now.data, now.size, now.dtype, 0 }
                                     : (amp_span){ kept->copy.data, param->size, kept->copy.dtype, 0 };
    return AMP_OK;
}
