/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a context: errors stored until the bracket ends, events, warnings. */
#ifndef AMP_REPORT_H
#define AMP_REPORT_H

#include "amp_diagnostics.h"
#include "context/op.h"

/* Stores the last error of the thread as that of the context, if it has none yet, and reports it to the host. */
void amp__keep_error(amp_context *context, amp_status status);
/* Takes the kept error away, leaving its text as the thread's last error. */
amp_status amp__take_error(amp_context *context);
bool amp__has_error(amp_context *context);
void amp__event(amp_context *context, const amp_host *host, const amp_event *event);
/* A line for the host's event hook and for amp_explain. */
amp_status amp__warn(amp_context *context, const char *format, ...) AMP_PRINTF(2, 3);

#endif
