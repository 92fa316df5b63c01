/* SPDX-License-Identifier: Apache-2.0 */
#include "state/json.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 4, BYTES_PER_CONTAINER = 16, FREE_CONTAINERS = 16 };

const char *amp__json_quote(const char *text, char quoted[96]) {
    size_t n = 0;
    for (; n < 80 && text[n]; n++) quoted[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
    strcpy(quoted + n, text[n] ? "..." : "");
    return quoted;
}

/* A tensor's entry is 52 bytes at least and has three containers: text with many more is none of ours. Looked at before
 * the library allocates anything for it. */
static amp_status check_structure(const char *text, size_t bytes, const char *what) {
    size_t depth = 0, containers = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else in_string = c != '"';
            continue;
        }
        if (c == '"') in_string = true;
        else if (c == '{' || c == '[') depth++, containers++;
        else if ((c == '}' || c == ']') && depth) depth--;
        AMP_RETURN_IF(depth > MAX_DEPTH, AMP_ERR_BAD_FILE, "%s is nested more than %d deep (byte %zu)", what, MAX_DEPTH,
                      i);
    }
    AMP_RETURN_IF(containers > FREE_CONTAINERS + bytes / BYTES_PER_CONTAINER, AMP_ERR_BAD_FILE,
                  "%s has %zu object%s and lists in %zu byte%s, more than any state has", what, containers,
                  AMP__S(containers), bytes, AMP__S(bytes));
    return AMP_OK;
}

amp_status amp__json_parse(const char *text, size_t bytes, const char *what, json_t **root) {
    AMP_TRY(check_structure(text, bytes, what));
    json_error_t error;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json) {
        char quoted[96];
        /* no text: the library gave up without finding anything wrong */
        if (!*error.text || json_error_code(&error) == json_error_out_of_memory) return amp__fail_memory();
        return amp__fail(AMP_ERR_BAD_FILE, "%s is not valid JSON: %s (byte %d)", what,
                         amp__json_quote(error.text, quoted), error.position);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return amp__fail(AMP_ERR_BAD_FILE, "%s is not a JSON object", what);
    }
    *root = json;
    return AMP_OK;
}

/* The library's writer ignores some of its callback's failures, so each callback remembers its own. */
struct expected {
    const char *text;
    size_t left;
    bool failed;
};

static int compare_piece(const char *piece, size_t bytes, void *user) {
    struct expected *expected = user;
    if (expected->failed || bytes > expected->left || memcmp(piece, expected->text, bytes)) {
        expected->failed = true;
        return -1;
    }
    expected->text += bytes;
    expected->left -= bytes;
    return 0;
}

bool amp__json_is(const json_t *root, const char *text, size_t bytes) {
    struct expected expected = { text, bytes, false };
    if (json_dump_callback(root, compare_piece, &expected, JSON_COMPACT) || expected.failed) return false;
    while (expected.left && *expected.text == ' ') expected.text++, expected.left--;
    return !expected.left;
}

/* Not json_dumps: its result must be freed with whatever allocator the process gave to the library. */
struct growing {
    char *data;
    size_t length, capacity;
    bool failed;
};

static int append(const char *piece, size_t bytes, void *user) {
    struct growing *text = user;
    if (text->failed) return -1;
    if (bytes >= text->capacity - text->length) {
        const size_t capacity = 2 * text->capacity + bytes;
        char *grown = amp__grow(text->data, text->capacity, capacity, 1);
        text->failed = !grown;
        if (!grown) return -1;
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, piece, bytes);
    text->length += bytes;
    return 0;
}

amp_status amp__json_text(const json_t *root, char **out, size_t *bytes) {
    struct growing text = { amp__alloc(1024, 1), 0, 1024, false };
    if (!text.data) return amp__fail_memory();
    if (json_dump_callback(root, append, &text, JSON_COMPACT) || text.failed) {
        amp__free(text.data);
        return amp__fail_memory();
    }
    text.data[text.length] = '\0';
    *out = text.data;
    *bytes = text.length;
    return AMP_OK;
}
