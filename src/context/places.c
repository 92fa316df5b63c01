/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where parameters are, and with them the loss scalers. If all that the optimizers update is in one device's memory,
 * the scalers live there too and the host has no part in an iteration. If it is spread over devices, or over a device
 * and the CPU's memory, they live on the host, and each bracket's end waits for one word from each device.
 */
#include "context/devices.h"

#include <math.h>

static amp_status open_place(struct amp__devices *devices, const struct amp__properties *properties,
                             const struct amp__param *param, struct amp__place **out) {
    AMP_RETURN_IF(!param->host->current_stream, AMP_ERR_MISSING_HOOK,
                  "%s is in the memory of %s %d, which needs the hook current_stream of amp_host: libamp works on the "
                  "stream that the host works on", param->name, amp__device_words(param->device),
                  (int)param->device.id);
    const bool served = param->device.type == AMP__DEVICE_SERVED;
    AMP_RETURN_IF(properties->split_masters && served, AMP_ERR_UNSUPPORTED,
                  "%s: split masters need the CPU or the backend cuda (libamp_cuda.so), and this device is served by "
                  "the host", param->name);
    AMP_RETURN_IF(properties->stochastic && served, AMP_ERR_UNSUPPORTED,
                  "%s: stochastic rounding needs the CPU or the backend cuda (libamp_cuda.so), and this device is "
                  "served by the host", param->name);
    AMP_RETURN_IF(devices->complete, AMP_ERR_UNSUPPORTED,
                  "%s is on a device that had no parameter at amp_initialize: initialise again with all of them",
                  param->name);
    void *grown = amp__grow(devices->places, devices->n_places, devices->n_places + 1, sizeof(struct amp__place *));
    if (!grown) return amp__fail_memory();
    devices->places = grown;
    const amp_status status = amp__place_open(param->device, param->host->current_stream, param->host->self,
                                              amp__param_dropped, out);
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    (*out)->args.low = properties->cast_model_type;
    devices->places[devices->n_places++] = *out;
    if (param->device.type == AMP__DEVICE_CUDA) devices->cuda = (*out)->backend;
    return AMP_OK;
}

struct amp__place *amp__place_on(const struct amp__devices *devices, amp_device device) {
    for (size_t i = 0; i < devices->n_places; i++)
        if (amp__same_device(devices->places[i]->device, device)) return devices->places[i];
    return NULL;
}

amp_status amp__place_param(struct amp__devices *devices, const struct amp__policy *policy, struct amp__param *param) {
    const struct amp__properties *properties = &policy->properties;
    struct amp__place *place = amp__place_on(devices, param->device);
    AMP_RETURN_IF(devices->skips && !amp__is_device(param->device), AMP_ERR_UNSUPPORTED,
                  "%s is in the CPU's memory, and all parameters so far are on a device, where the loss scalers are "
                  "too: initialise again with all of them", param->name);
    if (!amp__is_device(param->device) || !properties->enabled) return AMP_OK;
    if (!place) AMP_TRY(open_place(devices, properties, param, &place));
    param->place = place;
    param->on_device = true;
    /* rounding back after a step has no way to fail */
    place->n_params++;
    if (properties->split_masters) AMP_TRY(amp__place_reserve(place, AMP__WORK_SPLIT, place->n_params));
    return amp__place_reserve(place, properties->emulate ? AMP__WORK_ROUND : AMP__WORK_WRITE_BACK,
                              place->n_params);
}

amp_status amp__places_where(const struct amp__devices *devices, const void *address, amp_device *where) {
    *where = (amp_device){ 1, 0 };
    return devices->cuda && address ? devices->cuda->where(address, where) : AMP_OK;
}

/* Those that have an infinity in 16 bits are looked at closely; norms[i] are of params[i]. */
static amp_status count_unfit(const struct amp__place *place, struct amp__param *const *params, size_t n,
                              const float *there) {
    float *norms = amp__alloc(n, sizeof *norms);
    if (!norms) return amp__fail_memory();
    amp_status status = amp__place_out(place, norms, there, n * sizeof *norms);
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        if (!isfinite(norms[i])) status = amp__param_count_unfit(params[i]);
    amp__free(norms);
    return status;
}

static amp_status look_for_unfit(const struct amp__params *all, struct amp__place *place, amp_span *spans,
                                 struct amp__param **params) {
    amp_device_list *list = NULL;
    struct amp__elements now;
    float *norms = NULL;
    void *stream = NULL;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        if (all->list[i]->place != place || !all->list[i]->re_typed) continue;
        params[n] = all->list[i];
        AMP_TRY(amp__param_elements(params[n], &now));
        spans[n++] = (amp_span){ now.data, now.size, now.dtype, 0 };
    }
    if (!n) return AMP_OK;
    AMP_TRY(amp__place_norms(place, n, &norms));
    AMP_TRY(amp__place_stream(place, &stream));
    AMP_TRY(amp_device_list_open(place->device, &list));
    amp_status status = amp_device_check(list, stream, spans, n, NULL, NULL, NULL, norms, NULL);
    if (status == AMP_OK) status = count_unfit(place, params, n, norms);
    amp_device_list_close(list);
    return status;
}

amp_status amp__places_count_unfit(const struct amp__devices *devices, const struct amp__params *all) {
    if (!devices->n_places) return AMP_OK;
    amp_span *spans = amp__alloc(all->n, sizeof *spans);
    struct amp__param **params = amp__alloc(all->n, sizeof(struct amp__param *));
    amp_status status = spans && params ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < devices->n_places && status == AMP_OK; i++)
        status = look_for_unfit(all, devices->places[i], spans, params);
    amp__free(spans);
    amp__free(params);
    return status;
}

void amp__places_end(struct amp__devices *devices) {
    for (size_t i = 0; i < devices->n_places; i++) amp__place_close(devices->places[i]);
    amp__free(devices->places);
    devices->places = NULL;
    devices->n_places = 0;
}
