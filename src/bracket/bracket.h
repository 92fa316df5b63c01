/* SPDX-License-Identifier: Apache-2.0 */
/* What the files at the top of src/ share with each other. */
#ifndef AMP_TOP_H
#define AMP_TOP_H

#include "context/context.h"

/* Frees a context whose slots and parameters are back, or one that was never finished. */
void amp__context_destroy(amp_context *context);

/* bracket.c: the bracket of a loss_id, and its list of optimizers filled; or why not. */
amp_status amp__bracket_find(amp_context *context, uint32_t loss_id, uint32_t flags, struct amp__bracket **out);
amp_status amp__bracket_optimizers(struct amp__bracket *bracket, amp_optimizer *const *users, size_t n);

/* Ends an open bracket's hold on its optimizers, temporaries and thread. The gradients are the caller's business. */
void amp__bracket_close(struct amp__bracket *bracket);

/* ---- decide.c: from what a bracket found to what it decides ---- */

/* Ends without a decision, and without a word to other ranks. */
static inline bool amp__bracket_puts_off(const struct amp__bracket *bracket) { return bracket->delay || bracket->delay_check; }
static inline bool amp__bracket_has_ranks(const struct amp__bracket *bracket) {
    return !amp__bracket_puts_off(bracket) && bracket->host && amp__host_has_ranks(bracket->host);
}
/* The end of a bracket that leaves its check to a later one. */
amp_status amp__bracket_delay_check(struct amp__bracket *bracket, const struct amp__grads_result *result);
/* The end of a bracket that went well here: with the other ranks, if there are any. */
amp_status amp__bracket_conclude(struct amp__bracket *bracket, struct amp__grads_result *result, amp_action *action);
/* The end of one that did not, for the optimizers: gradients are as at begin, and the step that follows skips. agreed: the
 * other ranks know. */
void amp__bracket_give_up(struct amp__bracket *bracket, bool agreed);
/* amp_scale_loss_cancel, but for the closing. */
amp_status amp__bracket_cancel(struct amp__bracket *bracket);
/* AMP_ERR_TOO_MANY_SKIPS, in words, or AMP_OK. */
amp_status amp__bracket_check_skips(const struct amp__bracket *bracket, bool overflow_here);

#endif
