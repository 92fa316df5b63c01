/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For training loops that need more than amp.h: several losses and optimizers, micro-batches, the loss scale on other
 * tensors, parameters that are added or written between steps, optimizers that own the masters.
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
    /* Leaves the gradients scaled; a later bracket with the same loss_id unscales them (Apex: delay_unscale). In that
     * bracket they are not set aside: backward accumulates into them, and a reduction over ranks inside it reduces the
     * sum. That bracket uses the scale of these gradients, even if the scale of the loss has changed (if the scaler is
     * on a device: the present scale). AMP_ERR_CONFLICT: gradients of its optimizers have different scales. */
    AMP_DELAY_UNSCALE = 1u << 0,
    /* Unscales the gradients, and leaves the scale update and the decision to the next bracket with the same loss_id
     * and without this flag (Apex: delay_overflow_check). That bracket decides over the gradients of all these
     * brackets, for all their optimizers and ranks: one scale change, at most one skip, one reduction between ranks. It
     * may contain no backward. Until it ends, those optimizers do not step. */
    AMP_DELAY_OVERFLOW_CHECK = 1u << 1
};

/* amp_scale_loss_begin for several optimizers and losses. loss_id: from 0, below amp_config.num_losses. flags:
 * AMP_DELAY_*. context may be NULL if n_optimizers > 0. Brackets may overlap if they share no optimizer and no
 * parameter (else AMP_ERR_WRONG_STATE). AMP_ERR_CONFLICT: a gradient still has the scale of another loss
 * (AMP_DELAY_UNSCALE), and the two are not one static scale. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_loss_begin_many(amp_context *context, amp_optimizer *const *optimizers,
                                                            size_t n_optimizers, uint32_t loss_id, uint32_t flags,
                                                            void *loss, amp_scaled_loss *scaled);

/* ---- The scale on other tensors ---------------------------------------------------------------------------------- */

/* The loss scale on other tensors, for gradient penalties and several backward passes. amp_scale multiplies a tensor
 * and records it on the tape. *out moves to the caller. amp_unscale divides elements in place, without the tape, and
 * sets *found_inf (may be NULL) to 1.0f if a result is infinite or NaN. Both use the present scale of loss_id: in a
 * bracket, that of the bracket. On a device, all tensors of one amp_unscale must be on one device that has parameters
 * (AMP_ERR_CONFLICT); it waits for the device only if found_inf is in host memory. amp_scale waits unless the host has
 * scale_by; its tensor must then be on the device of the parameters. */
AMP_API AMP_MUST_CHECK amp_status amp_scale(amp_context *context, uint32_t loss_id, void *tensor, void **out);
AMP_API AMP_MUST_CHECK amp_status amp_unscale(amp_context *context, uint32_t loss_id, void *const *tensors, size_t n,
                                              float *found_inf);

/* ---- Parameters and masters between steps ------------------------------------------------------------------------ */

/* Adds parameters to an optimizer (torch: add_param_group): frozen parameters of its model, or new ones in FP32, which
 * are cast and get masters as in amp_initialize. The optimizer of the host must have them already. Outside brackets and
 * steps, while no other thread runs ops of this context. On an error nothing has changed. */
AMP_API AMP_MUST_CHECK amp_status amp_add_params(amp_optimizer *optimizer, const amp_param *params, size_t n);

/* Call this after parameters changed outside a step, on hosts without `version`: copies each element of a parameter
 * that differs from the rounded master into the master. With `version` each step does this by itself. At every level it
 * also drops cached casts and packed raw buffers (docs/reference/buffers.md) of parameters. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_reconcile(amp_context *context);

/* Call this after writing masters between steps (averaged weights, sharpness-aware minimization): rounds each master
 * into its parameter, so that a forward before the next step uses it. Changes of a parameter that `version` reports go
 * into its master first. Parameters in a running step are written by the end of that step. */
AMP_API AMP_MUST_CHECK amp_status amp_masters_write_back(amp_context *context);

/* ---- Optimizers that hold the masters ---------------------------------------------------------------------------- */

/*
 * AMP_OPTIMIZER_HOLDS_MASTERS: the masters (amp_master_params: data) are tensors of the optimizer of the host, which
 * updates them. A step exchanges no storage, and amp_step_end rounds the masters into the parameters. amp_master.grad
 * is the FP32 gradient, one block for the life of the parameter. After a bracket the hook grad returns a handle on that
 * block, or NULL if the host has cleared it. During amp_scale_loss_end it returns the 16-bit gradient of backward,
 * which stays scaled. The hook set_grad is needed, and takes gradients of either type, and NULL.
 */

#ifdef __cplusplus
}
#endif

#endif /* AMP_TRAIN_H */
