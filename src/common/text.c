/* SPDX-License-Identifier: Apache-2.0 */
/* Text into a caller's buffer, the nearest names for messages, and switches that are written as words. */
#include "common/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void amp__text_add(amp__text *text, const char *format, ...) {
    const size_t room = text->length < text->capacity ? text->capacity - text->length : 0;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(room ? text->data + text->length : NULL, room, format, arguments);
    va_end(arguments);
    if (length > 0) text->length += (size_t)length;
}

#define NAME_MAX_LENGTH 63
#define NEAREST_MAX 3

/* Levenshtein distance, names cut at NAME_MAX_LENGTH. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_MAX_LENGTH + 1];
    const size_t n = strnlen(b, NAME_MAX_LENGTH);
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i] && i < NAME_MAX_LENGTH; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t above = row[j + 1];
            size_t best = diagonal + (a[i] != b[j]);
            if (above + 1 < best) best = above + 1;
            if (row[j] + 1 < best) best = row[j] + 1;
            row[j + 1] = best;
            diagonal = above;
        }
    }
    return row[n];
}

/* How far a name is; a name that contains the other is near. Above 3: not worth naming. */
static size_t distance(const char *wanted, const char *name) {
    const size_t edits = edit_distance(wanted, name);
    const size_t shorter = strlen(wanted) < strlen(name) ? strlen(wanted) : strlen(name);
    if (shorter >= 3 && (strstr(name, wanted) || strstr(wanted, name))) return edits < 2 ? edits : 2;
    return edits * 2 > shorter + 1 ? 100 : edits; /* two wrong letters of three: no resemblance */
}

void amp__nearest_names(amp__text *text, const char *wanted, const char *const *names, size_t n) {
    size_t shown = 0;
    for (size_t limit = 0; limit <= 3 && shown < NEAREST_MAX; limit++)
        for (size_t i = 0; i < n && shown < NEAREST_MAX; i++)
            if (distance(wanted, names[i]) == limit) amp__text_add(text, "%s%s", shown++ ? ", " : "", names[i]);
}

/* ---- switches ---- */

/* In capitals or not, whatever the locale. */
static bool is_word(const char *text, const char *word) {
    while (*word && (*text == *word || (*word >= 'a' && (*text | 0x20) == *word))) text++, word++;
    return !*text && !*word;
}

int amp__switch_parse(const char *text) {
    static const char *const words[][2] = { { "0", "1" }, { "false", "true" }, { "no", "yes" }, { "off", "on" } };
    if (!text || !*text) return 0;
    for (size_t i = 0; i < AMP_COUNT(words); i++)
        for (int on = 0; on < 2; on++)
            if (is_word(text, words[i][on])) return on;
    return -1;
}
