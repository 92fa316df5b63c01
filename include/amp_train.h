/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What some training loops need beside amp.h: several losses and optimizers, micro-batches, the scale on tensors of the
 * host's choice, parameters that come late or are written between steps, optimizers that hold the masters.
 */
#ifndef AMP_TRAIN_H
#define AMP_TRAIN_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Brackets over several losses, optimizers, micro-batches ----------------------------------------------------- */

/* Flags of a bracket. */
enum {
    /* Leave the gradients scaled for a later bracket with the same loss_id to unscale (Apex: delay_unscale). There they
     * stay where they are: backward adds to them, and what you do to gradients inside that bracket, as reducing them
     * over ranks, is done to the sum. It has the scale that they carry, should the scale of the loss have changed
     * since; AMP_ERR_CONFLICT: those of its optimizers carry different ones. (Where the scaler lives on a device the
     * scale is the present one.) */
    AMP_DELAY_UNSCALE = 1u << 0,
    /* Unscale, but leave it to the next bracket with the same loss_id and without this flag to update the scale and to
     * decide (Apex: delay_overflow_check): over the gradients of all these brackets, for all their optimizers, over all
     * ranks. Such a bracket counts as one. It may have no backward at all; until it has ended, those optimizers do not
     * step. One scale change and at most one skip for a step of several brackets, and one exchange between ranks. */
    AMP_DELAY_OVERFLOW_CHECK = 1u << 1
};

/* The same for several optimizers and several losses. context may be NULL if n_optimizers > 0. Brackets may overlap if
 * no optimizer is in two of them and none shares a parameter with one in another: AMP_ERR_WRONG_STATE.
 * AMP_ERR_CONFLICT: a gradient still carries the scale of another loss (AMP_DELAY_UNSCALE), and it is not one static
 * scale for both. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin_many(amp_context *context, amp_optimizer *const *optimizers,
                                                            size_t n_optimizers, uint32_t loss_id, uint32_t flags,
                                                            void *loss, amp_scaled_loss *scaled);

/* ---- The scale on other tensors ---------------------------------------------------------------------------------- */

/* The scale on tensors of the host's choice, for gradient penalties and several backward passes. amp_scale multiplies
 * on the tape (*out moves to the caller, who ends it as any tensor of the host's); amp_unscale divides the elements in
 * place, unseen by any tape, and sets *found_inf (may be NULL) to 1.0f if one is not finite afterwards. Both use the
 * present scale of loss_id; inside a bracket that is the bracket's. On a device: the tensors of a call of amp_unscale
 * are in one memory, of a device that has parameters; nothing waits if found_inf is NULL or in that memory too (else it
 * does, for that one word), and amp_scale does not if the host has scale_by: then its tensor is on the device of the
 * parameters, as a loss is. AMP_ERR_CONFLICT: tensors in two memories. */
AMP_API AMP_MUST_CHECK amp_status amp_scale(amp_context *context, uint32_t loss_id, void *tensor, void **out);
AMP_API AMP_MUST_CHECK amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n,
                                              float *found_inf);

/* ---- Parameters and masters between steps ------------------------------------------------------------------------ */

/* More parameters for an optimizer, mid-run (torch: add_param_group): parameters of its model that were frozen, or new
 * ones in FP32, which get the level's type and a master as at initialize. The host's optimizer must know them already.
 * Outside brackets and steps, while no other thread runs this context's ops. All or nothing. */
AMP_API AMP_MUST_CHECK amp_status amp_add_params(amp_optimizer *optimizer, const amp_param *params, size_t n);

/* Tell libamp that parameters changed outside its step, for hosts without `version`: elementwise, master := parameter
 * wherever the parameter is not the rounded master. With `version` this happens by itself before each step. At every
 * level, what is kept of parameters (casts, packed raw buffers: docs/reference/buffers.md) is let go. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_reconcile(amp_context *context);

/* The other way, for who wrote masters between steps (an average of weights swapped in, sharpness-aware minimisation):
 * parameter := master, rounded, so that a forward before the next step computes with it. What changed in a parameter
 * since they last agreed, as `version` tells, goes into its master first. Parameters whose step is running are left to
 * it. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_write_back(amp_context *context);

/* ---- Optimizers that hold the masters ---------------------------------------------------------------------------- */

/*
 * AMP_OPTIMIZER_HOLDS_MASTERS: the host's optimizer updates the masters themselves (amp_master_params: data), which it
 * was given as tensors of its own: nothing is exchanged around a step, and amp_step_end rounds the masters into the
 * parameters. The FP32 gradient of a bracket is in amp_master.grad, one block as long as the parameter lives. The hook
 * grad tells of that block, once a bracket has ended, as of a gradient of the parameter: a handle whose view is the
 * block, or NULL where the host has cleared it. The 16-bit gradient that backward made is left as it is, scaled: while
 * amp_scale_loss_end runs, the hook grad tells of it. Needs set_grad, which takes either kind, and NULL for both.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_TRAIN_H */
