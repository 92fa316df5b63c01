/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_unscale for tensors on a device: one launch, with the scale there. It waits only if found_inf is in CPU memory.
 */
#include "bracket/bracket.h"
#include "bracket/home.h"
#include "context/devices.h"
#include "context/parts.h"
#include "kernels/device.h"

static amp_status find_place(const amp_context *context, amp_device device, struct amp__place **out) {
    *out = amp__place_on(amp__devices_of(context), device);
    AMP_RETURN_IF(!*out, AMP_ERR_UNSUPPORTED,
                  "amp_unscale: the tensors are in the memory of %s %d, where no parameter was at "
                  "amp_initialize: use amp_device_scale, with AMP_FACTOR_INVERSE of the scale that "
                  "amp_scale_loss_begin tells",
                  amp__device_words(device), (int)device.id);
    return AMP_OK;
}

/* The flag where the CPU can read it: by way of a word on the device. */
static amp_status unscale_and_tell(struct amp__place *place, const amp_factor *by, amp_device_list *list, void *stream,
                                   const amp_span *spans, size_t n, float *found_inf) {
    float found = 0.0f, *flag = NULL;
    bool capturing = false;
    AMP_TRY(amp__place_capturing(place, &capturing));
    AMP_RETURN_IF(capturing, AMP_ERR_WRONG_STATE,
                  "amp_unscale while the stream is being captured: found_inf must be NULL or in the device's memory");
    AMP_TRY(amp__place_norms(place, 1, &flag));
    AMP_TRY(amp__place_zero(place, flag, sizeof *flag));
    AMP_TRY(amp_device_scale(list, stream, spans, spans, n, by, flag));
    AMP_TRY(amp__place_out(place, &found, flag, sizeof found));
    if (found != 0.0f) *found_inf = 1.0f;
    return AMP_OK;
}

amp_status amp__unscale_on_device(const struct amp__bracket *bracket, amp_device device, const amp_span *spans,
                                  size_t n, float *found_inf) {
    const amp_factor by = amp__home_inverse(bracket);
    struct amp__place *place = NULL;
    amp_device where;
    void *stream = NULL;
    AMP_TRY(find_place(bracket->context, device, &place));
    AMP_TRY(amp__places_where(amp__devices_of(bracket->context), found_inf, &where));
    AMP_TRY(amp__place_stream(place, &stream));
    amp_device_list **list = &place->queues[AMP__WORK_SCALE].measured; /* not needed otherwise */
    if (!*list) AMP_TRY(amp_device_list_open(place->device, list));
    if (found_inf && where.type != AMP__DEVICE_CUDA)
        return unscale_and_tell(place, &by, *list, stream, spans, n, found_inf);
    return amp_device_scale(*list, stream, spans, spans, n, &by, found_inf);
}
