/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home of the scaler of a loss: the host, or the memory of a device, which then decides. A bracket calls its home
 * without knowing which it is.
 *
 * On a device the host need not know a decision if every optimizer of the bracket reads its flag there and the loss is
 * scaled there: the device decides alone, and the bracket has no wait. Otherwise the end starts one copy of the scaler
 * to the host, and a step or the next begin waits for it.
 */
#ifndef AMP_HOME_H
#define AMP_HOME_H

#include "bracket/bracket.h"

struct amp__scaler_home {
    /* Before anything changes: bracket->scale, where the host must have it. */
    amp_status (*begin)(struct amp__bracket *bracket, bool with_loss);
    /* Before gradients are inspected: prepares the arguments of launches on devices. */
    amp_status (*arm)(const struct amp__bracket *bracket);
    /* Afterwards: adds the results of devices, if the host must know them. */
    amp_status (*find)(const struct amp__bracket *bracket, struct amp__grads_result *result);
    /* Writes whether this rank found an overflow, for an exchange between ranks through the host. May wait. */
    amp_status (*overflowed)(const struct amp__bracket *bracket, bool *overflow);
    /* Ends a bracket with a delayed check: the results stay for a later one. */
    amp_status (*keep)(struct amp__bracket *bracket);
    /* The end. overflow: on any rank. */
    amp_status (*decide)(struct amp__bracket *bracket, const struct amp__grads_result *result, bool overflow,
                         amp_action *action);
    /* Drops the results: the bracket did not end. */
    void (*forget)(struct amp__bracket *bracket);
    /* Reads the true state into bracket->scaler and its record. Not while a stream is being captured. */
    amp_status (*read)(struct amp__bracket *bracket);
    /* Writes bracket->scaler to the true state. */
    amp_status (*write)(struct amp__bracket *bracket);
};
extern const struct amp__scaler_home amp__home_host, amp__home_device;

/* Chooses the home once all parameters are known: a device if it has all that optimizers update, else the host. */
amp_status amp__home_start(amp_context *context);
/* Before amp__places_end. */
void amp__home_end(amp_context *context);

/* Fails with AMP_ERR_WRONG_STATE while a graph is being captured, which cannot ask the host. The message starts with
 * `function` and has the alternative. */
amp_status amp__home_refuse_capture(const amp_context *context, const char *function, const char *needs);
#define AMP__BRACKET_IN_CAPTURE                                                                                        \
    "amp_scale_loss_begin",                                                                                            \
        "It needs optimizers that skip on the device (amp_optimizer.fused or AMP_OPTIMIZER_SKIPS_ON_DEVICE) with all " \
        "parameters there, the hook scale_by or AMP_HOST_SEEDS_ON_DEVICE, and no ranks, or ranks that agree there "    \
        "(the hook reduce_on_device)"
/* The scale that the loss is to be multiplied with, where only a device knows it, else NULL. */
const float *amp__home_device_scale(const struct amp__bracket *bracket);
/* One over the scale: the open bracket's, else the present one. */
amp_factor amp__home_inverse(const struct amp__bracket *bracket);

/* Returns true if the ranks agree at the home of the scaler. Called only if there are ranks. */
bool amp__home_agrees_there(const struct amp__bracket *bracket);
/* Exchanges the vote of this rank with the results of its kernels, in stream order, for decide. *anybody_ended, in a
 * cancel (else NULL): waits for it, and restores everything if no rank ended. */
amp_status amp__home_agree(const struct amp__bracket *bracket, bool gave_up, bool *anybody_ended);

/* Waits for decisions in flight to the host, for optimizers with steps that depend on them. */
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
