/* SPDX-License-Identifier: Apache-2.0 */
/* What the files at the top of src/ share with each other. */
#ifndef AMP_TOP_H
#define AMP_TOP_H

#include "opt_levels/context.h"

/* Frees a context whose slots and parameters are back, or one that was never finished. */
void amp__context_destroy(amp_context *context);

/* bracket.c: the bracket of a loss_id, and its list of optimizers filled; or why not. */
amp_status amp__bracket_find(amp_context *context, uint32_t loss_id, uint32_t flags, struct amp__bracket **out);
amp_status amp__bracket_optimizers(struct amp__bracket *bracket, amp_optimizer *const *users, size_t n);

/* Ends an open bracket's hold on its optimizers, temporaries and thread. The gradients are the caller's business. */
void amp__bracket_close(struct amp__bracket *bracket);

/* record.c: what a decided bracket has to tell, by the record it left. overflow_here: or on another rank. */
void amp__bracket_tell(struct amp__bracket *bracket, amp_action action, bool overflow_here);

#endif
