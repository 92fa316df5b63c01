/* SPDX-License-Identifier: Apache-2.0 */
/* Check's assertions without Check: helpers that fuzzers share with tests print their message and abort. */
#include <check.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void _mark_point(const char *file, int line) { (void)file, (void)line; }

void _ck_assert_failed(const char *file, int line, const char *expression, const char *text, ...) {
    va_list args;
    va_start(args, text);
    fprintf(stderr, "%s:%d: %s: ", file, line, expression);
    if (text) vfprintf(stderr, text, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}
