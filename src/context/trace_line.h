/* SPDX-License-Identifier: Apache-2.0 */
/* A line of a trace: one object of JSON, member by member. */
#ifndef AMP_TRACE_LINE_H
#define AMP_TRACE_LINE_H

#include "common/common.h"

/* Room for the longest: a histogram of 277 binades. */
#define AMP__LINE(line) \
    char line##_bytes[12 << 10]; \
    amp__text line = { line##_bytes, sizeof line##_bytes, 0 }

/* A string, or null. Names are the host's: whatever their bytes are, the line is JSON; long ones are cut. */
void amp__line_string(amp__text *line, const char *name, const char *text);
/* null: it is not finite. */
void amp__line_float(amp__text *line, const char *name, float value);
void amp__line_double(amp__text *line, const char *name, double value);
void amp__line_number(amp__text *line, const char *name, uint64_t value);

#endif
