/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters in device memory. Nothing here reads or writes their elements: work is added to the place of the
 * parameter, and launched after a pass over all parameters. Blocks are freed in stream order, by the hook of the host
 * or by libamp, so that earlier work still finds them.
 */
#include "kernels/round.h"
#include "master/param.h"

#include <string.h>

amp_status amp__param_layout(const struct amp__param *param, void *tensor, const char *name,
                             struct amp__elements *out) {
    if (!param->on_device) return amp__host_layout(param->host, tensor, name, out);
    AMP_TRY(amp__host_find(param->host, tensor, name, out));
    AMP_RETURN_IF(out->device.type != param->device.type || out->device.id != param->device.id, AMP_ERR_WRONG_STATE,
                  "%s is on device type %d, number %d, and its parameter was on type %d, number %d at amp_initialize: "
                  "initialise again after moving a model", name, (int)out->device.type, (int)out->device.id,
                  (int)param->device.type, (int)param->device.id);
    AMP_RETURN_IF(out->strides, AMP_ERR_UNSUPPORTED,
                  "%s is not one compact block (its strides leave gaps or permute): on a device make it contiguous",
                  name);
    return AMP_OK;
}

amp_status amp__param_block(const struct amp__param *param, void *tensor, const char *name, struct amp__elements *out) {
    return param->on_device ? amp__param_layout(param, tensor, name, out)
                            : amp__host_elements(param->host, tensor, name, out);
}

bool amp__is_finite(void *data, uint64_t size, amp_dtype dtype) {
    const amp_span span = { data, size, dtype, 0 };
    int64_t at = -1;
    return !data || !size || amp_first_nonfinite(&span, 1, &at) != AMP_OK || at < 0;
}

bool amp__param_is_finite(const struct amp__param *param) {
    struct amp__elements now;
    if (param->on_device) return true;
    const bool beside = param->has_master && !amp__master_is_lent(param);
    if (beside && !amp__is_finite(param->master.fp32.data, param->size, AMP_FLOAT32)) return false;
    if (!param->host->view || amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK) return true;
    return now.strides || amp__is_finite(now.data, now.size, now.dtype);
}

amp_status amp__param_alloc_size(const struct amp__param *param, uint64_t size, amp_dtype dtype, amp_purpose purpose,
                                 amp_storage *out) {
    if (!param->on_device || amp__host_owns_memory(param->host))
        return amp__host_alloc(param->host, size, dtype, param->device, purpose, out);
    const size_t width = amp__dtype_size(dtype);
    amp_storage storage = { NULL, NULL, size ? size * width : width, dtype, 0 };
    AMP_TRY(amp__place_alloc(param->place, storage.bytes, &storage.data));
    *out = storage;
    return AMP_OK;
}

amp_status amp__param_alloc(const struct amp__param *param, amp_dtype dtype, amp_purpose purpose, amp_storage *out) {
    return amp__param_alloc_size(param, param->size, dtype, purpose, out);
}

void amp__param_free(const struct amp__param *param, amp_storage *storage) {
    if (param->on_device && !amp__host_owns_memory(param->host)) {
        amp__place_free(param->place, storage->data);
        memset(storage, 0, sizeof *storage);
        return;
    }
    amp__host_free(param->host, storage);
}

amp_status amp__param_borrow(struct amp__param *param, amp_dtype dtype, amp_storage *out) {
    for (int i = 0; i < 3 && param->on_device; i++) {
        amp_storage *spare = &param->gradient.spare[i];
        if (!spare->data || spare->dtype != dtype) continue;
        *out = *spare;
        memset(spare, 0, sizeof *spare);
        return AMP_OK;
    }
    return amp__param_alloc(param, dtype, AMP_FOR_GRADIENT, out);
}

void amp__param_give_back(struct amp__param *param, amp_storage *storage) {
    for (int i = 0; i < 3 && param->on_device && storage->data; i++) {
        if (param->gradient.spare[i].data) continue;
        param->gradient.spare[i] = *storage;
        memset(storage, 0, sizeof *storage);
        return;
    }
    amp__param_free(param, storage);
}

amp_status amp__param_copy(const struct amp__param *param, enum amp__work work, const amp_span *dst,
                           const amp_span *src) {
    return param->on_device ? amp__place_add(param->place, work, param, dst, src, NULL) : amp_cast_list(dst, src, 1);
}

amp_status amp__param_zero(const struct amp__param *param, const amp_span *dst) {
    if (param->on_device) return amp__param_add(param, AMP__WORK_ZERO, dst, NULL);
    if (dst->size) memset(dst->data, 0, (size_t)dst->size * amp__dtype_size(dst->dtype));
    return AMP_OK;
}

amp_status amp__places_launch(struct amp__place *const *places, size_t n) {
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n; i++) {
        const amp_status one = status == AMP_OK ? amp__place_flush(places[i]) : AMP_OK;
        if (status != AMP_OK) amp__place_drop(places[i]);
        if (one != AMP_OK) status = one;
    }
    return status;
}

static void forget_first(struct amp__param *param) {
    amp__param_give_back(param, &param->gradient.first_copy);
    param->gradient.first = AMP__FIRST_UNKNOWN;
}

/* It has no values. Where it is lent already, the step that it was for does not begin. */
static void forget_joined(struct amp__param *param) {
    param->master.spent = true;
    amp__master_release(param);
}

/* Other writes come again with the next work of their kind, or end with the bracket. */
void amp__param_dropped(const void *owner, enum amp__work work) {
    struct amp__param *param = (struct amp__param *)(uintptr_t)owner; /* ours: the queue only holds it */
    if (work == AMP__WORK_UNSCALE) {
        param->gradient.left.handle = param->gradient.left.given;
        if (param->gradient.state == AMP__GRAD_UNSCALED) amp__grad_goes(param, AMP__GRAD_LEFT);
    }
    if (work == AMP__WORK_FOLLOW || work == AMP__WORK_RECONCILE_GRAD) param->gradient.handle = NULL;
    if (work == AMP__WORK_RECONCILE || (work == AMP__WORK_FOLLOW && param->emulated)) param->master.may_differ = true;
    if (work == AMP__WORK_JOIN) forget_joined(param);
    if (work == AMP__WORK_SPLIT) param->master.spent = false;
    if (work == AMP__WORK_SAVE) forget_first(param);
    const enum amp__aside_at at = param->gradient.state == AMP__GRAD_REOPENED ? AMP__AT_REOPENING : AMP__AT_BEGIN;
    if (work == AMP__WORK_ASIDE && param->gradient.kept[at].copy.data) param->gradient.aside[at] = AMP__ASIDE_NOT_MOVED;
}

void amp__places_forget(struct amp__place *const *places, size_t n) {
    for (size_t i = 0; i < n; i++) amp__place_drop(places[i]);
}

/* of: the piece of the parameter, in its type; emulated ones are FP32. */
static uint64_t unfit_of(const struct amp__param *param, const float *exact, const void *of, uint64_t n) {
    struct amp__counts counts = { 0 };
    if (!param->emulated) return amp__count_unfit(exact, of, n, param->dtype);
    amp__count_widened(&counts, exact, of, n, param->emulated);
    return counts.overflowed;
}

amp_status amp__param_count_unfit(struct amp__param *param) {
    enum { PIECE = 1 << 16 };
    struct amp__elements now;
    AMP_TRY(amp__param_elements(param, &now));
    const size_t width = amp__dtype_size(now.dtype);
    float *exact = amp__alloc(PIECE, sizeof *exact);
    void *shown = amp__alloc(PIECE, width);
    amp_status status = exact && shown ? AMP_OK : amp__fail_memory();
    param->unfit = 0;
    for (uint64_t at = 0; at < param->size && status == AMP_OK; at += PIECE) {
        const uint64_t n = param->size - at < PIECE ? param->size - at : PIECE;
        status = amp__place_out(param->place, exact, (const float *)param->master.fp32.data + at, n * sizeof *exact);
        if (status == AMP_OK)
            status = amp__place_out(param->place, shown, (const char *)now.data + at * width, n * width);
        if (status == AMP_OK) param->unfit += unfit_of(param, exact, shown, n);
    }
    amp__free(exact);
    amp__free(shown);
    return status;
}
