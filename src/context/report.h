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

#endif
