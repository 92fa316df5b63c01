/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of a schema text, and messages that point into it. Private to the schema parser. */
#ifndef AMP_LEXER_H
#define AMP_LEXER_H

#include "common/common.h"

enum amp__token_kind {
    AMP__TOKEN_END,
    AMP__TOKEN_WORD,   /* [A-Za-z_][A-Za-z0-9_]* */
    AMP__TOKEN_NUMBER, /* [0-9]+ */
    AMP__TOKEN_ARROW,  /* -> */
    AMP__TOKEN_DOTS,   /* ... */
    AMP__TOKEN_SIGN    /* == != <= >= && ||, or any other single byte */
};

/* Points into the text; nothing is copied. */
struct amp__token {
    enum amp__token_kind kind;
    const char *at;
    size_t length;
};

/* A value: copy it to look ahead. */
struct amp__lexer {
    const char *op;   /* op of the schema, for messages */
    const char *text; /* the whole of it, NUL-terminated */
    struct amp__token token;
};

void amp__lexer_start(struct amp__lexer *lexer, const char *op, const char *text);
void amp__lexer_advance(struct amp__lexer *lexer);
/* Extends the present token by the characters directly behind it that are word characters, ':' or '.'. */
void amp__lexer_extend_name(struct amp__lexer *lexer);

bool amp__token_is(const struct amp__token *token, const char *text);
/* Advances over the token if it is `text`. */
bool amp__lexer_take(struct amp__lexer *lexer, const char *text);

/* AMP_ERR_SCHEMA in the form that schema.h shows. `at`: the fault, in lexer->text. `hint` follows the caret. NULL:
 * none. */
amp_status amp__lexer_fault(const struct amp__lexer *lexer, const char *at, const char *hint, const char *format, ...)
    AMP_PRINTF(4, 5);

#endif
