/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale on tensors of the host's choice. */
#include "host/strides.h"
#include "opt_levels/context.h"

static amp_status find_scale(amp_context *context, uint32_t loss_id, const char *who, const amp_host **host,
                             float *scale) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    AMP_RETURN_IF(loss_id >= context->properties.num_losses, AMP_ERR_INVALID_ARGUMENT,
                  "%s: loss_id %u is out of range: amp_config.num_losses is %u", who, (unsigned)loss_id,
                  (unsigned)context->properties.num_losses);
    *host = context->n_optimizers ? &context->optimizers[0].host : context->n_models ? &context->models[0].host : NULL;
    AMP_RETURN_IF(!*host, AMP_ERR_WRONG_STATE, "%s: the context has no model and no optimizer, so no host", who);
    struct amp__bracket *bracket = &context->brackets[loss_id];
    if (!bracket->open || bracket->blind) AMP_TRY(amp__there_learn(bracket));
    if (bracket->there) bracket->scale = bracket->scaler.scale;
    *scale = bracket->open ? bracket->scale : bracket->scaler.scale;
    return AMP_OK;
}

AMP_API amp_status amp_scale(amp_context *context, uint32_t loss_id, void *tensor, void **out) {
    const amp_host *host = NULL;
    float scale = 1.0f;
    AMP_TRY(find_scale(context, loss_id, "amp_scale", &host, &scale));
    AMP_RETURN_IF(!tensor || !out, AMP_ERR_INVALID_ARGUMENT, "amp_scale: %s is NULL", tensor ? "out" : "tensor");
    AMP_TRY(amp__host_need(host->scale != NULL, "scale", "amp_scale", "it multiplies on the host's tape"));
    return amp__host_scale(host, tensor, scale, out);
}

/* The tensors as compact blocks: their own, or copies of those that have gaps. */
struct work {
    amp_span *spans;
    void **flat;
};

static const char unscaled[] = "amp_unscale: a tensor";

static amp_status gather(const amp_host *host, void *tensor, struct work *work, size_t i) {
    struct amp__elements now;
    AMP_TRY(amp__host_layout(host, tensor, unscaled, &now));
    if (now.strides) {
        AMP_RETURN_IF(!amp__is_floating(now.dtype), AMP_ERR_INVALID_ARGUMENT, "%s is not floating", unscaled);
        work->flat[i] = amp__alloc_aligned((size_t)now.size * amp__dtype_size(now.dtype));
        if (!work->flat[i]) return amp__fail_memory();
        amp__strides_gather(work->flat[i], &now);
    }
    work->spans[i] = (amp_span){ now.strides ? work->flat[i] : now.data, now.size, now.dtype, 0 };
    return AMP_OK;
}

static amp_status scatter(const amp_host *host, void *tensor, const struct work *work, size_t i) {
    struct amp__elements now;
    if (!work->flat[i]) return AMP_OK;
    AMP_TRY(amp__host_layout(host, tensor, unscaled, &now));
    amp__strides_scatter(&now, work->flat[i]);
    return AMP_OK;
}

AMP_API amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n, float *found_inf) {
    const amp_host *host = NULL;
    float scale = 1.0f;
    AMP_TRY(find_scale(context, loss_id, "amp_unscale", &host, &scale));
    AMP_RETURN_IF(n && !tensors, AMP_ERR_INVALID_ARGUMENT, "amp_unscale: tensors is NULL, but n is %zu", n);
    struct work work = { amp__alloc(n, sizeof *work.spans), amp__alloc(n, sizeof *work.flat) };
    amp_status status = work.spans && work.flat ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < n && status == AMP_OK; i++) status = gather(host, tensors[i], &work, i);
    if (status == AMP_OK) status = amp_scale_list(work.spans, work.spans, n, (float)(1.0 / (double)scale), found_inf);
    for (size_t i = 0; i < n && status == AMP_OK; i++) status = scatter(host, tensors[i], &work, i);
    for (size_t i = 0; work.flat && i < n; i++) amp__free(work.flat[i]);
    amp__free(work.flat);
    amp__free(work.spans);
    return status;
}
