/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR 30

void progress_start(struct progress *progress, int quiet, int runs) {
    const char *term = getenv("TERM");
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    progress->runs = runs;
    progress->done = 0;
}

void progress_bar(const struct progress *progress, double share, const char *label) {
    char bar[BAR + 1];
    const int filled = (int)(BAR * (progress->done + share) / progress->runs);
    if (progress->quiet || !progress->terminal) return;
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K[%s] %d of %d  %s", bar, progress->done + 1, progress->runs, label);
    fflush(stderr);
}

void progress_clear(const struct progress *progress) {
    if (!progress->quiet && progress->terminal) fprintf(stderr, "\r\033[K");
}

static void say(const struct progress *progress, const char *format, va_list args) {
    progress_clear(progress);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
}

void progress_say(const struct progress *progress, const char *format, ...) {
    va_list args;
    if (progress->quiet) return;
    va_start(args, format);
    say(progress, format, args);
    va_end(args);
}

void progress_run_done(struct progress *progress, const char *format, ...) {
    va_list args;
    progress->done++;
    if (progress->quiet || progress->terminal) return;
    fprintf(stderr, "%3d of %d  ", progress->done, progress->runs);
    va_start(args, format);
    say(progress, format, args);
    va_end(args);
}
