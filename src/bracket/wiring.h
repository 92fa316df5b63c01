/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes in the wiring that a bracket can see. No cost after the second bracket. */
#ifndef AMP_WIRING_H
#define AMP_WIRING_H

#include "bracket/bracket.h"

/* The hook scale gave `scaled` for the loss: is it larger? Else AMP-M01, as a warning: backward has not run yet. */
void amp__wiring_check_loss(const struct amp__bracket *bracket, void *loss, void *scaled);
/* Before gradients are divided by the scale: did anything take it? Else AMP-M01 or AMP-M02. */
amp_status amp__wiring_check_scale(const struct amp__bracket *bracket);
/* Before they are unscaled: are there any? In the first two brackets of an optimizer; and after a zero_grad inside. */
amp_status amp__wiring_check_gradients(const struct amp__bracket *bracket);
/* When a bracket has decided: which ops saw a call. */
void amp__wiring_check_ops(amp_context *context);
/* The thread's last error, as a warning: of a look that nothing else depends on, where the hook is at fault all the
 * same. */
void amp__wiring_tell_failure(amp_context *context);
/* zero_grad inside a bracket, before it runs. */
void amp__wiring_check_clearing(struct amp__optimizer *optimizer);
/* stayed.c: after a step that was taken; at the next begin; at its end, unless gradients were cleared inside. */
void amp__wiring_note_step(struct amp__optimizer *optimizer);
void amp__wiring_look_for_stayed(struct amp__optimizer *optimizer);
void amp__wiring_tell_stayed(struct amp__optimizer *optimizer);
/* sampled.c: samples before gradients are unscaled; after a step; findings from them, once each. */
void amp__sampled_look(const struct amp__bracket *bracket);
void amp__sampled_note_step(struct amp__optimizer *optimizer);
void amp__sampled_judge(const struct amp__optimizer *optimizer);
/* Unknown if the ops of the host are not described. */
bool amp__wiring_computes_in_fp16(const amp_context *context);
/* At a static scale of 1, when no step is skipped: reports now and then. Returns true if the step will use non-finite
 * gradients. */
bool amp__wiring_check_finite(struct amp__bracket *bracket, const struct amp__grads_result *result);
/* Where skips do not end: a parameter that is itself not finite. NULL: none is. */
const struct amp__param *amp__wiring_nonfinite_param(const amp_context *context);

#endif
