/* SPDX-License-Identifier: Apache-2.0 */
/* The one place of the library that writes to standard error. */
#include "context/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const levels[] = {
    [AMP_LOG_OFF] = "off",   [AMP_LOG_ERROR] = "error", [AMP_LOG_WARN] = "warn",
    [AMP_LOG_INFO] = "info", [AMP_LOG_TRACE] = "trace",
};

ssize_t amp__write_quietly(int fd, const char *text, size_t length) {
    sigset_t pipe, before, waiting;
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    if (sigpending(&waiting) || pthread_sigmask(SIG_BLOCK, &pipe, &before)) return -1;
    /* a SIGPIPE that waited already is not ours */
    const ssize_t done = write(fd, text, length);
    if (done < 0 && errno == EPIPE && !sigismember(&waiting, SIGPIPE))
        (void)sigtimedwait(&pipe, NULL, &(struct timespec){ 0 });
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return done;
}

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
    for (ssize_t done = 0, now; done < length; done += now)
        if ((now = amp__write_quietly(STDERR_FILENO, line + done, (size_t)(length - done))) <= 0) break;
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
