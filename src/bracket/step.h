/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's step, and steps that go past the wired slot. */
#ifndef AMP_STEP_H
#define AMP_STEP_H

#include "context/optimizer.h"

/* ---- step.c ---- */

/* The context's record of a caller's optimizer. */
amp_status amp__optimizer_find(amp_optimizer *user, struct amp__optimizer **out);
/* Is a step running on its parameters, of this optimizer or of another that shares one? */
bool amp__optimizer_is_lent(const struct amp__optimizer *optimizer);
/* After its own brackets: returns a parameter with a gradient in the bracket of another optimizer, or left scaled by
 * it, or NULL. */
const struct amp__param *amp__optimizer_scaled_elsewhere(const struct amp__optimizer *optimizer);
/* The decision of the brackets holds for one call of each of the optimizer's step slots (some hosts have one per
 * layer). Called after the last of them, or when the next bracket begins. */
void amp__decision_used(struct amp__optimizer *optimizer);
/* The end of a step, or of one that was skipped, for gradients and flags. */
amp_status amp__step_over(struct amp__optimizer *optimizer, amp_action action);
/* May it step now? */
amp_status amp__step_check(const struct amp__optimizer *optimizer);
void amp__step_handler(void *user, struct amp__call *call);
void amp__zero_grad_handler(void *user, struct amp__call *call);

/* ---- unseen.c: steps that go past the wired slot ---- */

/* When a bracket begins: a warning, once, if its parameters changed since the last began and no step was seen. */
amp_status amp__report_unseen_steps(struct amp__optimizer *optimizer);
/* Before a bracket's end: a warning, once, if they changed since it began and no step was seen. */
amp_status amp__report_changes_inside(struct amp__optimizer *optimizer);
/* Parameters change in another way: a state is loaded, masters are reconciled. */
void amp__unseen_steps_forget(amp_context *context);

#endif
