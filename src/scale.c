/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale on tensors of the host's choice. */
#include "opt_levels/context.h"

static amp_status find_scale(amp_context *context, uint32_t loss_id, const char *who, const amp_host **host,
                             float *scale) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    AMP_RETURN_IF(loss_id >= context->properties.num_losses, AMP_ERR_INVALID_ARGUMENT,
                  "%s: loss_id %u is out of range: amp_config.num_losses is %u", who, (unsigned)loss_id,
                  (unsigned)context->properties.num_losses);
    *host = context->n_optimizers ? &context->optimizers[0].host : context->n_models ? &context->models[0].host : NULL;
    AMP_RETURN_IF(!*host, AMP_ERR_WRONG_STATE, "%s: the context has no model and no optimizer, so no host", who);
    const struct amp__bracket *bracket = &context->brackets[loss_id];
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

AMP_API amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n, float *found_inf) {
    const amp_host *host = NULL;
    float scale = 1.0f;
    AMP_TRY(find_scale(context, loss_id, "amp_unscale", &host, &scale));
    AMP_RETURN_IF(n && !tensors, AMP_ERR_INVALID_ARGUMENT, "amp_unscale: tensors is NULL, but n is %zu", n);
    amp_span *spans = amp__alloc(n, sizeof *spans);
    if (!spans) return amp__fail_memory();
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        struct amp__elements now = { 0 };
        status = amp__host_elements(host, tensors[i], "amp_unscale: a tensor", &now);
        spans[i] = (amp_span){ now.data, now.size, now.dtype, 0 };
    }
    if (status == AMP_OK) status = amp_scale_list(spans, spans, n, (float)(1.0 / (double)scale), found_inf);
    amp__free(spans);
    return status;
}
