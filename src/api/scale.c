/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale on tensors of the host's choice. */
#include "amp_train.h"
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "context/brackets.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"

static amp_status find_bracket(amp_context *context, uint32_t loss_id, const char *who, const amp_host **host,
                               struct amp__bracket **bracket) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    const struct amp__policy *policy = amp__policy_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    const struct amp__models *models = amp__models_of(context);
    AMP_RETURN_IF(loss_id >= policy->properties.num_losses, AMP_ERR_INVALID_ARGUMENT,
                  "%s: loss_id %u is out of range: amp_config.num_losses is %u", who, (unsigned)loss_id,
                  (unsigned)policy->properties.num_losses);
    *host = optimizers->n ? &optimizers->list[0].host : models->n ? &models->list[0].host : NULL;
    AMP_RETURN_IF(!*host, AMP_ERR_WRONG_STATE, "%s: the context has no model and no optimizer, so no host", who);
    *bracket = &amp__brackets_of(context)->list[loss_id];
    amp__progress_of(context)->scaled_by_hand = true;
    return AMP_OK;
}

/* Reads the present scale, from the device if only that knows it. */
static amp_status learn_scale(struct amp__bracket *bracket, float *scale) {
    const bool open = amp__bracket_is_open(bracket);
    if (open && bracket->opening.carrier == AMP__CARRIER_NONE) bracket->opening.carrier = AMP__CARRIER_HOST;
    if (!open || bracket->device.decides_alone) AMP_TRY(bracket->home->read(bracket));
    *scale = open ? bracket->scale : bracket->scaler.scale;
    return AMP_OK;
}

AMP_API amp_status amp_scale(amp_context *context, uint32_t loss_id, void *tensor, void **out) {
    const amp_host *host = NULL;
    struct amp__bracket *bracket = NULL;
    float scale = 1.0f;
    AMP_TRY(find_bracket(context, loss_id, "amp_scale", &host, &bracket));
    AMP_RETURN_IF(!tensor || !out, AMP_ERR_INVALID_ARGUMENT, "amp_scale: %s is NULL", tensor ? "out" : "tensor");
    if (bracket->device.scaler && host->scale_by) return amp__host_scale_by(host, tensor, bracket->shown.scale, out);
    AMP_TRY(amp__host_need(host->scale != NULL, "scale", "amp_scale", "it multiplies on the host's tape"));
    AMP_TRY(learn_scale(bracket, &scale));
    return amp__host_scale(host, tensor, scale, out);
}

/* The tensors as compact blocks: their own, or copies of those that have gaps. */
struct work {
    amp_span *spans;
    void **flat;
    amp_device device; /* of all of them */
};

static const char unscaled[] = "amp_unscale: a tensor";

static amp_status gather_elements(struct work *work, size_t i, const struct amp__elements *now) {
    if (now->strides) {
        AMP_RETURN_IF(!amp__is_floating(now->dtype), AMP_ERR_INVALID_ARGUMENT, "%s is not floating", unscaled);
        work->flat[i] = amp__alloc_aligned((size_t)now->size * amp__dtype_size(now->dtype));
        if (!work->flat[i]) return amp__fail_memory();
        amp__strides_gather(work->flat[i], now);
    }
    work->spans[i] = (amp_span){ now->strides ? work->flat[i] : now->data, now->size, now->dtype, 0 };
    return AMP_OK;
}

static amp_status inspect_tensor(const amp_host *host, void *const *tensors, struct work *work, size_t i) {
    struct amp__elements now;
    AMP_TRY(amp__host_find(host, tensors[i], unscaled, &now));
    if (!i) work->device = now.device;
    const amp_device first = work->device;
    AMP_RETURN_IF(amp__is_device(first) != amp__is_device(now.device) ||
                      (amp__is_device(first) && !amp__same_device(first, now.device)),
                  AMP_ERR_CONFLICT,
                  "amp_unscale: tensors 0 and %zu are in two memories (device types %d and %d, numbers %d and %d): one "
                  "call for each",
                  i, (int)first.type, (int)now.device.type, (int)first.id, (int)now.device.id);
    if (!amp__is_device(first)) return gather_elements(work, i, &now);
    AMP_RETURN_IF(now.strides, AMP_ERR_UNSUPPORTED,
                  "%s is not one compact block (its strides leave gaps or permute): on a device make it contiguous",
                  unscaled);
    work->spans[i] = (amp_span){ now.data, now.size, now.dtype, 0 };
    return AMP_OK;
}

static amp_status scatter_elements(const amp_host *host, void *tensor, const struct work *work, size_t i) {
    struct amp__elements now;
    if (!work->flat[i]) return AMP_OK;
    AMP_TRY(amp__host_layout(host, tensor, unscaled, &now));
    amp__strides_scatter(&now, work->flat[i]);
    return AMP_OK;
}

static amp_status unscale_tensors(struct amp__bracket *bracket, const amp_host *host, void *const *tensors, size_t n,
                                  struct work *work, float *found_inf) {
    float scale = 1.0f;
    for (size_t i = 0; i < n; i++) AMP_TRY(inspect_tensor(host, tensors, work, i));
    if (amp__is_device(work->device)) return amp__unscale_on_device(bracket, work->device, work->spans, n, found_inf);
    AMP_TRY(learn_scale(bracket, &scale));
    AMP_TRY(amp_scale_list(work->spans, work->spans, n, amp__rule_inverse(scale), found_inf));
    for (size_t i = 0; i < n; i++) AMP_TRY(scatter_elements(host, tensors[i], work, i));
    return AMP_OK;
}

AMP_API amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n,
                               float *found_inf) {
    const amp_host *host = NULL;
    struct amp__bracket *bracket = NULL;
    AMP_TRY(find_bracket(context, loss_id, "amp_unscale", &host, &bracket));
    AMP_RETURN_IF(n && !tensors, AMP_ERR_INVALID_ARGUMENT, "amp_unscale: tensors is NULL, but n is %zu", n);
    struct work work = { amp__alloc(n, sizeof *work.spans), amp__alloc(n, sizeof *work.flat), { 1, 0 } };
    const amp_status status = work.spans && work.flat ? unscale_tensors(bracket, host, tensors, n, &work, found_inf)
                                                      : amp__fail_memory();
    for (size_t i = 0; work.flat && i < n; i++) amp__free(work.flat[i]);
    amp__free(work.flat);
    amp__free(work.spans);
    return status;
}
