/* SPDX-License-Identifier: Apache-2.0 */
#include "context/trace_line.h"

#include <math.h>

/* How many bytes of UTF-8 begin here. 0: they are none. */
static int sequence(const unsigned char *p) {
    const int n = *p < 0x80         ? 1
        : *p >= 0xc2 && *p < 0xe0   ? 2
        : (*p & 0xf0) == 0xe0       ? 3
        : *p >= 0xf0 && *p < 0xf5   ? 4
                                    : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] >= 0xa0))) return 0;
    if (n == 4 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] >= 0x90))) return 0;
    return n;
}

void amp__line_string(amp__text *line, const char *name, const char *text) {
    amp__text_add(line, ",\"%s\":", name);
    if (!text) {
        amp__text_add(line, "null");
        return;
    }
    amp__text_add(line, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p && p < (const unsigned char *)text + 1200;) {
        const int n = sequence(p);
        if (!n) amp__text_add(line, "\\ufffd");
        else if (*p == '"' || *p == '\\') amp__text_add(line, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f) amp__text_add(line, "\\u%04x", *p);
        else amp__text_add(line, "%.*s", n, (const char *)p);
        p += n ? n : 1;
    }
    amp__text_add(line, "\"");
}

/* So many digits are the number. */
static void add_digits(amp__text *line, const char *name, double value, int digits) {
    if (isfinite(value)) amp__text_add(line, ",\"%s\":%.*g", name, digits, value);
    else amp__text_add(line, ",\"%s\":null", name);
}

void amp__line_float(amp__text *line, const char *name, float value) { add_digits(line, name, (double)value, 9); }
void amp__line_double(amp__text *line, const char *name, double value) { add_digits(line, name, value, 17); }

void amp__line_number(amp__text *line, const char *name, uint64_t value) {
    amp__text_add(line, ",\"%s\":%llu", name, (unsigned long long)value);
}
