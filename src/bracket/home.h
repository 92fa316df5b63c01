/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the scaler of a loss lives: on the host, or in a device's memory, which then decides. The bracket asks its home
 * and does not know which it is.
 *
 * On a device nobody on the host need know a decision if every optimizer of the bracket reads its flag there and the
 * loss is scaled there: the device decides alone, and the bracket costs no wait. Otherwise the end starts one copy of
 * the scaler to the host, and what needs it, a step or the next begin, waits for that.
 */
#ifndef AMP_HOME_H
#define AMP_HOME_H

#include "bracket/bracket.h"

struct amp__scaler_home {
    /* Before anything changes: bracket->scale, where the host must have it. */
    amp_status (*begin)(struct amp__bracket *bracket, bool with_loss);
    /* Before gradients are looked at: what launches on devices work with. */
    amp_status (*arm)(const struct amp__bracket *bracket);
    /* After it: adds what devices found, where the host must know. */
    amp_status (*find)(const struct amp__bracket *bracket, struct amp__grads_result *result);
    /* Has this rank found an overflow? For what the ranks tell one another through the host; may wait. */
    amp_status (*overflowed)(const struct amp__bracket *bracket, bool *overflow);
    /* The end of a bracket whose check is delayed: what was found stays for a later one. */
    amp_status (*keep)(struct amp__bracket *bracket);
    /* The end. overflow: on any rank. */
    amp_status (*decide)(struct amp__bracket *bracket, const struct amp__grads_result *result, bool overflow,
                         amp_action *action);
    /* What was found is forgotten: the bracket did not end. */
    void (*forget)(struct amp__bracket *bracket);
    /* bracket->scaler and its record := what is true now. Not while a stream is being captured. */
    amp_status (*read)(struct amp__bracket *bracket);
    /* What is true := bracket->scaler. */
    amp_status (*write)(struct amp__bracket *bracket);
};
extern const struct amp__scaler_home amp__home_host, amp__home_device;

/* Once all parameters are known: on the device if all that optimizers update is in one's memory, else on the host. */
amp_status amp__home_start(amp_context *context);
/* Before amp__places_end. */
void amp__home_end(amp_context *context);

/* A graph that is being captured cannot ask the host: AMP_ERR_WRONG_STATE then, of what begins with `function` and what
 * would be needed instead. */
amp_status amp__home_refuse_capture(const amp_context *context, const char *function, const char *needs);
#define AMP__BRACKET_IN_CAPTURE                                                                                        \
    "amp_scale_loss_begin",                                                                                            \
        "It needs optimizers that skip on the device (amp_optimizer.fused or AMP_OPTIMIZER_SKIPS_ON_DEVICE) with all " \
        "parameters there, the hook scale_by or AMP_HOST_SEEDS_ON_DEVICE, and no ranks, or ranks that agree there "    \
        "(the hook reduce_on_device)"
/* The scale that the loss is to be multiplied with, where only a device knows it; else NULL. */
const float *amp__home_device_scale(const struct amp__bracket *bracket);
/* One over the scale: the open bracket's, else the present one. */
amp_factor amp__home_inverse(const struct amp__bracket *bracket);

/* Do the ranks agree where the scaler lives? Asked only where there are ranks. */
bool amp__home_agrees_there(const struct amp__bracket *bracket);
/* This rank's word among them, with what its kernels found, in the stream's order; decide knows what came of it.
 * *anybody_ended, of a cancel (else NULL): waits for it, and where nobody did all is as before. */
amp_status amp__home_agree(const struct amp__bracket *bracket, bool gave_up, bool *anybody_ended);

/* Waits for the decisions that are being copied to the host, for the optimizers whose steps wait for them. */
amp_status amp__home_wait(amp_context *context);
/* All losses' scalers and records. */
amp_status amp__home_read_all(amp_context *context);
/* The flag of an optimizer on the device, and the end of a step that read it. NULL: it has none. */
const float *amp__home_skip(const struct amp__optimizer *optimizer);
amp_status amp__home_stepped(struct amp__optimizer *optimizer);

/* ---- clip_device.c ---- */

/* amp_clip_grad_norm where parameters are on devices. Waits only if the norm is wanted here, or is more than one
 * device's. */
amp_status amp__clip_on_device(struct amp__optimizer *optimizer, float max_norm, float *norm);

/* ---- unscale_device.c ---- */

/* amp_unscale of compact tensors in one device's memory. found_inf may be NULL, in that memory, or in the CPU's: then
 * it waits. */
amp_status amp__unscale_on_device(const struct amp__bracket *bracket, amp_device device, const amp_span *spans,
                                  size_t n, float *found_inf);

#endif
