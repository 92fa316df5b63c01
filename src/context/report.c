/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a context: errors stored until the bracket ends, events, warnings. */
#include "amp_diagnostics.h"
#include "context/report.h"
#include "common/thread.h"
#include "context/context.h"
#include "context/log.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The hook is the host's code: ops it calls run as they come. */
void amp__event(amp_context *context, const amp_host *host, const amp_event *event) {
    amp__trace_event(context, event);
    if (!host || !host->event) {
        amp__log(context->reporting.log, event);
        return;
    }
    struct amp__thread *thread = amp__thread_state();
    const struct amp__scope_state saved = thread->scope;
    amp_event copy = *event;
    copy.struct_size = sizeof copy;
    copy.context = context;
    thread->scope.inside = true;
    host->event(host->self, &copy);
    thread->scope = saved;
}

void amp__keep_error(amp_context *context, amp_status status) {
    bool first = false;
    char text[sizeof context->reporting.kept_text];
    snprintf(text, sizeof text, "%s", amp_last_error());
    pthread_mutex_lock(&context->lock);
    if (context->reporting.kept == AMP_OK) {
        context->reporting.kept = status;
        memcpy(context->reporting.kept_text, text, sizeof text);
        first = true;
    }
    pthread_mutex_unlock(&context->lock);
    if (first)
        amp__event(context, amp__any_host(context),
                   &(amp_event){ .kind = AMP_EVENT_ERROR, .status = status, .message = text });
}

bool amp__has_error(amp_context *context) {
    pthread_mutex_lock(&context->lock);
    const bool kept = context->reporting.kept != AMP_OK;
    pthread_mutex_unlock(&context->lock);
    return kept;
}

amp_status amp__take_error(amp_context *context) {
    char text[sizeof context->reporting.kept_text];
    pthread_mutex_lock(&context->lock);
    const amp_status status = context->reporting.kept;
    memcpy(text, context->reporting.kept_text, sizeof text);
    context->reporting.kept = AMP_OK;
    pthread_mutex_unlock(&context->lock);
    return status == AMP_OK ? AMP_OK : amp__fail(status, "%s", text);
}

amp_status amp__warn(amp_context *context, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&context->lock);
    const size_t old = context->reporting.warnings ? strlen(context->reporting.warnings) : 0;
    const size_t bytes = old + strlen(line) + 2;
    char *grown = amp__grow(context->reporting.warnings, old, bytes, 1);
    if (grown) {
        snprintf(grown + old, bytes - old, "%s\n", line);
        context->reporting.warnings = grown;
    }
    pthread_mutex_unlock(&context->lock);
    if (!grown) return amp__fail_memory();
    amp__event(context, amp__any_host(context), &(amp_event){ .kind = AMP_EVENT_WARNING, .message = line });
    return AMP_OK;
}
