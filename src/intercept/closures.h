/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every closure there is, found by its slot, by its code, and, while it is idle, by its function; in constant time,
 * however many there are. Private to this room; all of it under the registry's mutex.
 */
#ifndef AMP_CLOSURES_H
#define AMP_CLOSURES_H

#include "intercept/closure.h"

/* A new closure, for good. Cannot fail. */
void amp__closures_add(struct amp__closure *closure, amp_fn *slot);
/* Moves the closure to another slot. */
void amp__closures_move(struct amp__closure *closure, amp_fn *slot);

/* Returns the closures with this present or last slot, first and next. */
struct amp__closure *amp__closures_at(const amp_fn *slot, const struct amp__closure *after);
/* The closure with this code, or NULL. */
struct amp__closure *amp__closures_by_code(amp_fn code);

/* Idle closures of a function, in the same way: those that were put there and not taken since. */
void amp__closures_put_idle(struct amp__closure *closure);
void amp__closures_take_idle(struct amp__closure *closure); /* if it is there */
struct amp__closure *amp__closures_idle(amp_fn original, const struct amp__closure *after);

#endif
