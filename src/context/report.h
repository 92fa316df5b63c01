/* SPDX-License-Identifier: Apache-2.0 */
/* What a context has to say: errors kept until the bracket ends, events, warnings. */
#ifndef AMP_REPORT_H
#define AMP_REPORT_H

#include "amp_diagnostics.h"
#include "context/op.h"

/* Keeps the thread's last error as the context's, if it has none yet, and tells the host. */
void amp__keep_error(amp_context *context, amp_status status);
/* Takes the kept error away, leaving its text as the thread's last error. */
amp_status amp__take_error(amp_context *context);
bool amp__has_error(amp_context *context);
/* For what concerns no model or optimizer alone; NULL: the context has neither. */
const amp_host *amp__any_host(const amp_context *context);
void amp__event(amp_context *context, const amp_host *host, const amp_event *event);
/* A line for the host's event hook and for amp_explain. */
amp_status amp__warn(amp_context *context, const char *format, ...) AMP_PRINTF(2, 3);

/* A host to tell: the first model's, else the first optimizer's; NULL: there is none. */
const amp_host *amp__any_host(const amp_context *context);

/* ---- slots that saw no call ---- */

uint64_t amp__op_passed(const struct amp__op *op); /* calls that ran as they came */
/* Was its slot called, and only for objects that nobody described? */
bool amp__op_missed_self(const struct amp__op *op);
bool amp__op_unused(const struct amp__op *op);
/* Those of `ops` that saw no call, by name, behind `found` others in the text; how many there are now. */
size_t amp__name_unused(amp__text *names, const struct amp__op *ops, size_t n, size_t found);

#endif
