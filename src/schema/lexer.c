/* SPDX-License-Identifier: Apache-2.0 */
/* Schemas are plain ASCII whatever the locale says, so character classes are spelled out. */
#include "schema/lexer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_word(char c) { return is_word_start(c) || is_digit(c); }

/* The operators of two bytes. */
static bool is_double(const char *at) {
    static const char operators[][3] = { "==", "!=", "<=", ">=", "&&", "||" };
    for (size_t i = 0; i < AMP_COUNT(operators); i++)
        if (at[0] == operators[i][0] && at[1] == operators[i][1]) return true;
    return false;
}

/* Behind spaces and comments. One without an end reaches to the text's. */
static const char *skip_space(const char *at) {
    for (;;) {
        while (is_space(*at)) at++;
        if (at[0] != '/' || (at[1] != '*' && at[1] != '/')) return at;
        const char *end = at[1] == '*' ? strstr(at + 2, "*/") : strchr(at, '\n');
        at = !end ? at + strlen(at) : at[1] == '*' ? end + 2 : end;
    }
}

static struct amp__token token_at(const char *at) {
    at = skip_space(at);
    struct amp__token token = { AMP__TOKEN_SIGN, at, 1 };
    if (*at == '\0') {
        token.kind = AMP__TOKEN_END;
        token.length = 0;
    } else if (is_word_start(*at)) {
        token.kind = AMP__TOKEN_WORD;
        while (is_word(at[token.length])) token.length++;
    } else if (is_digit(*at)) {
        token.kind = AMP__TOKEN_NUMBER;
        while (is_digit(at[token.length])) token.length++;
    } else if (strncmp(at, "->", 2) == 0) {
        token.kind = AMP__TOKEN_ARROW;
        token.length = 2;
    } else if (strncmp(at, "...", 3) == 0) {
        token.kind = AMP__TOKEN_DOTS;
        token.length = 3;
    } else if (is_double(at)) {
        token.length = 2;
    }
    return token;
}

void amp__lexer_start(struct amp__lexer *lexer, const char *op, const char *text) {
    lexer->op = op;
    lexer->text = text;
    lexer->token = token_at(text);
}

void amp__lexer_advance(struct amp__lexer *lexer) {
    lexer->token = token_at(lexer->token.at + lexer->token.length);
}

void amp__lexer_extend_name(struct amp__lexer *lexer) {
    struct amp__token *token = &lexer->token;
    for (char c = token->at[token->length]; is_word(c) || c == ':' || c == '.'; c = token->at[token->length])
        token->length++;
}

bool amp__token_is(const struct amp__token *token, const char *text) {
    return strlen(text) == token->length && memcmp(token->at, text, token->length) == 0;
}

bool amp__lexer_take(struct amp__lexer *lexer, const char *text) {
    const bool taken = amp__token_is(&lexer->token, text);
    if (taken) amp__lexer_advance(lexer);
    return taken;
}

#define WINDOW 96    /* bytes of the schema that a message shows */
#define WINDOW_AT 64 /* of them at most before the fault */

/* One column a byte for any byte, so that the caret is at the right column. */
static char printable(char c) { return is_space(c) ? ' ' : c < ' ' || c > '~' ? '?' : c; }

amp_status amp__lexer_fault(const struct amp__lexer *lexer, const char *at, const char *hint, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);

    /* The whole schema if it is short, else the surroundings of the fault. */
    const size_t offset = (size_t)(at - lexer->text);
    const size_t after = strnlen(at, WINDOW + 1);
    const size_t begin = offset + after <= WINDOW || offset <= WINDOW_AT ? 0 : offset - WINDOW_AT;
    const size_t length = offset + after - begin <= WINDOW ? offset + after - begin : WINDOW;
    const char *head = begin ? "..." : "";
    const char *tail = begin + length < offset + after ? "..." : "";
    char line[WINDOW + 1] = { 0 };
    for (size_t i = 0; i < length; i++) line[i] = printable(lexer->text[begin + i]);

    return amp__fail(AMP_ERR_SCHEMA, "%.128s: %s\n  %s%s%s\n  %*s^%s%s", lexer->op, what, head, line, tail,
                     (int)(strlen(head) + offset - begin), "", hint ? " " : "", hint ? hint : "");
}
