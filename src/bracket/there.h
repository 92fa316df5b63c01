/* SPDX-License-Identifier: Apache-2.0 */
/* Brackets whose gradients are on devices, and scalers that live there. */
#ifndef AMP_THERE_H
#define AMP_THERE_H

#include "bracket/bracket.h"

/* Once all parameters are known: where the scalers live. All on one device: there; else on the host. */
amp_status amp__there_start(amp_context *context);
/* Before amp__places_end. */
void amp__there_end(amp_context *context);
/* Before anything changes: who will know what is decided, and the scale where the host must have it. */
amp_status amp__there_begin(struct amp__bracket *bracket, bool with_loss);
/* Is the loss scaled by a number that only the device knows? */
static inline bool amp__there_scales(const struct amp__bracket *bracket) {
    return bracket->blind && bracket->host && bracket->host->scale_by && bracket->context->properties.scaler.dynamic;
}
/* Before gradients are looked at: what the launches work with. */
amp_status amp__there_arm(const struct amp__bracket *bracket);
/* After it: what devices found, where the scaler lives on the host and so must wait for it. */
amp_status amp__there_find(const struct amp__bracket *bracket, struct amp__grads_result *result);
/* Has the device found something? For what the ranks tell one another; waits. */
amp_status amp__there_ask(const struct amp__bracket *bracket, bool *found_inf);
/* The end on the device. found_elsewhere: on another rank. */
amp_status amp__there_decide(struct amp__bracket *bracket, bool decides, bool found_elsewhere);
/* What was found is forgotten: the bracket did not end. */
void amp__there_forget(struct amp__bracket *bracket);

/* What the host may not yet know of brackets that have ended: their decisions, for the optimizers whose steps wait for
 * them. Waits for letters alone. */
amp_status amp__there_hear(amp_context *context);
/* The same for one loss, and asks the device where no letter was sent. Not while its stream is being captured. */
amp_status amp__there_learn(struct amp__bracket *bracket);
/* Of all losses. */
amp_status amp__there_learn_all(amp_context *context);
/* The flag of an optimizer on the device, and the end of a step that read it. */
const float *amp__there_skip(const struct amp__optimizer *optimizer);
amp_status amp__there_stepped(struct amp__optimizer *optimizer);
/* The scaler on the device := the host's. */
amp_status amp__there_set(struct amp__bracket *bracket);

/* ---- clip_there.c ---- */

/* amp_clip_grad_norm where parameters are on devices. Waits only if the norm is wanted here, or is more than one device's. */
amp_status amp__clip_there(struct amp__optimizer *optimizer, float max_norm, float *norm);

/* ---- unscale_there.c ---- */

/* amp_unscale of compact tensors in one device's memory. found_inf may be NULL, in that memory, or in the CPU's: then it waits. */
amp_status amp__unscale_there(const struct amp__bracket *bracket, amp_device device, const amp_span *spans, size_t n,
                              float *found_inf);

#endif
