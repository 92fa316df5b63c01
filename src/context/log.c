/* SPDX-License-Identifier: Apache-2.0 */
/* Events as lines on standard error. */
#include "context/log.h"
#include "system/system.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const levels[] = {
    [AMP_LOG_OFF] = "off",   [AMP_LOG_ERROR] = "error", [AMP_LOG_WARN] = "warn",
    [AMP_LOG_INFO] = "info", [AMP_LOG_TRACE] = "trace",
};

/* One write, so that lines of threads and processes do not mix. Errors are ignored. */
static void write_line(const char *level, const char *text) {
    char line[2048];
    const int saved = errno;
    int length = snprintf(line, sizeof line, "libamp: %s: %s\n", level, text);
    if (length >= (int)sizeof line) {
        length = (int)sizeof line;
        line[sizeof line - 2] = '\n';
        length--;
    }
    amp__lines_error(line, (size_t)length);
    errno = saved;
}

/* -1: none of the levels. */
static int32_t find_level(const char *name) {
    for (int32_t i = AMP_LOG_OFF; name && i <= AMP_LOG_TRACE; i++)
        if (!strcmp(name, levels[i])) return i;
    return -1;
}

bool amp__log_knows(const char *name) { return find_level(name) >= 0; }

int32_t amp__log_level(int32_t configured) {
    if (configured != AMP_LOG_DEFAULT) return configured;
    const int32_t level = find_level(getenv("AMP_LOG"));
    return level >= 0 ? level : AMP_LOG_WARN;
}

static int32_t level_of(const amp_event *event) {
    switch (event->kind) {
    case AMP_EVENT_ERROR: return AMP_LOG_ERROR;
    case AMP_EVENT_WARNING: return AMP_LOG_WARN;
    case AMP_EVENT_BRACKET: return AMP_LOG_TRACE;
    default: return AMP_LOG_INFO;
    }
}

void amp__log(int32_t most, const amp_event *event) {
    char words[160];
    const int32_t level = level_of(event);
    const char *text = event->message;
    if (level > most) return;
    if (event->kind == AMP_EVENT_BRACKET && !*text) {
        snprintf(words, sizeof words, "loss %u: %s, the scale was %g and is %g", (unsigned)event->loss_id,
                 event->action == AMP_SKIP ? "skip" : "step", (double)event->scale_before, (double)event->scale_after);
        text = words;
    }
    if (*text) write_line(levels[level], text);
}
