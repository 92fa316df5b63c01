/* SPDX-License-Identifier: Apache-2.0 */
/* What the program says while it works, on stderr: a bar on a terminal, plain lines elsewhere, nothing if quiet. */
#ifndef PROGRESS_H
#define PROGRESS_H

#if defined(__GNUC__)
#define PROGRESS_FORMAT(text, first) __attribute__((format(printf, text, first)))
#else
#define PROGRESS_FORMAT(text, first)
#endif

struct progress {
    int quiet, terminal;
    int runs, done; /* of trainings */
};

void progress_start(struct progress *progress, int quiet, int runs);
/* Redraws the bar: `share` (0 to 1) of the present run is done. */
void progress_bar(const struct progress *progress, double share, const char *label);
/* The bar goes. Before anything is printed on the terminal, and at the end. */
void progress_clear(const struct progress *progress);
/* A line for the reader, above the bar. */
void progress_say(const struct progress *progress, const char *format, ...) PROGRESS_FORMAT(2, 3);
/* A run has ended; the line stands for it where there is no bar. */
void progress_run_done(struct progress *progress, const char *format, ...) PROGRESS_FORMAT(2, 3);

#endif
