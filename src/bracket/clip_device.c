/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clipping by norm with gradients on devices. If all are on one, norm and factor stay there. Otherwise each device
 * reports its part to the host, which has the total.
 */
#include "bracket/home.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "kernels/kernels.h"

#include <math.h>

/* Every gradient unscaled, as the step will see it; those of `place` (NULL: the CPU's) are listed. */
static amp_status list_grads(const struct amp__optimizer *optimizer, const struct amp__place *place, amp_span *spans,
                             size_t *n) {
    *n = 0;
    for (size_t i = 0; i < optimizer->n_params; i++) {
        if (optimizer->params[i]->place != place) continue;
        AMP_TRY(amp__grads_view(optimizer->params[i], &spans[*n]));
        *n += spans[*n].data != NULL;
    }
    return amp__places_flush(amp__devices_of(optimizer->context));
}

/* Computes the norm of gradients on one device. *norm is there too. */
static amp_status norm_on_device(const struct amp__optimizer *optimizer, struct amp__place *place, amp_span *spans,
                                 float **norm) {
    amp_device_list **list = &place->queues[AMP__WORK_MULTIPLY].measured;
    void *stream = NULL;
    size_t n = 0;
    AMP_TRY(list_grads(optimizer, place, spans, &n));
    AMP_TRY(amp__place_norms(place, 1, norm));
    AMP_TRY(amp__place_stream(place, &stream));
    if (!*list) AMP_TRY(amp_device_list_open(place->device, list));
    return amp_device_check(*list, stream, spans, n, NULL, NULL, *norm, NULL, NULL);
}

/* Of everything, on the host. */
static amp_status norm_on_host(const struct amp__optimizer *optimizer, amp_span *spans, float *norm) {
    const struct amp__devices *devices = amp__devices_of(optimizer->context);
    double squares = 0.0;
    float part = 0.0f, *device_norm = NULL;
    size_t n = 0;
    AMP_TRY(list_grads(optimizer, NULL, spans, &n));
    AMP_TRY(amp_l2norm_list(spans, n, &part, NULL));
    squares = (double)part * (double)part;
    for (size_t i = 0; i < devices->n_places; i++) {
        AMP_TRY(norm_on_device(optimizer, devices->places[i], spans, &device_norm));
        AMP_TRY(amp__place_out(devices->places[i], &part, device_norm, sizeof part));
        squares += (double)part * (double)part;
    }
    if (optimizer->sharded) AMP_TRY(amp__host_reduce(&optimizer->host, AMP_REDUCE_SUM, &squares, 1));
    *norm = isgreater(sqrt(squares), 3.402823466e38) ? INFINITY : (float)sqrt(squares);
    return AMP_OK;
}

static amp_status clip(struct amp__optimizer *optimizer, float max_norm, amp_span *spans, float *norm) {
    const amp_context *context = optimizer->context;
    struct amp__devices *devices = amp__devices_of(context);
    bool one = devices->n_places == 1 && !optimizer->sharded;
    float total = 0.0f, factor = 1.0f, *device_norm = NULL;
    for (size_t i = 0; i < optimizer->n_params; i++) one &= optimizer->params[i]->on_device;
    if (norm || !one)
        AMP_TRY(amp__home_refuse_capture(context, "amp_clip_grad_norm",
                                         "It needs norm NULL, all gradients on one device, and no ranks that share "
                                         "them (AMP_OPTIMIZER_SHARDED)"));
    if (one) {
        AMP_TRY(norm_on_device(optimizer, devices->places[0], spans, &device_norm));
        devices->places[0]->args.factor = (amp_factor){ device_norm, max_norm, AMP_FACTOR_CLIP };
        if (norm) AMP_TRY(amp__place_out(devices->places[0], &total, device_norm, sizeof total));
    } else {
        AMP_TRY(norm_on_host(optimizer, spans, &total));
        factor = amp__clip_factor(total, max_norm);
        for (size_t i = 0; i < devices->n_places; i++)
            devices->places[i]->args.factor = (amp_factor){ NULL, factor, AMP_FACTOR_AS_IT_IS };
    }
    if (one || factor < 1.0f) AMP_TRY(amp__grads_scale(optimizer->params, optimizer->n_params, factor));
    AMP_TRY(amp__places_flush(devices));
    if (norm) *norm = optimizer->decision.skip ? INFINITY : total;
    return AMP_OK;
}

amp_status amp__clip_on_device(struct amp__optimizer *optimizer, float max_norm, float *norm) {
    amp_span *spans = amp__alloc(optimizer->n_params + 1, sizeof *spans);
    if (!spans) return amp__fail_memory();
    const amp_status status = clip(optimizer, max_norm, spans, norm);
    if (status != AMP_OK) amp__places_drop(amp__devices_of(optimizer->context));
    amp__free(spans);
    return status;
}
