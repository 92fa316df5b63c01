/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and handles inside the host's structs, which only the host's hook visit can find. */
#ifndef AMP_VISIT_H
#define AMP_VISIT_H

#include "amp_raw.h"
#include "context/op.h"

/* Is this something to compute with? */
bool amp__is_work(const amp_field *field);
typedef amp_status amp__take_field(void *user, const amp_field *field);
/* Gives `take` each field that the host emits for the arguments at `args`, once it is checked. The first fault of
 * either is returned, with the names of op and field. */
amp_status amp__visit(const struct amp__op *op, void *const *args, amp__take_field *take, void *user);

#endif
