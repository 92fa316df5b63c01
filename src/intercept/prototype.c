/* SPDX-License-Identifier: Apache-2.0 */
/* A C prototype where a schema is wanted: the same in the right form, for the message. */
#include "intercept/parser.h"
#include "intercept/structs.h"
#include "intercept/types.h"

#include <ctype.h>
#include <string.h>

/* "tensor", "at_Tensor", "mt_tensor" */
static bool names_tensors(const struct amp__token *token) {
    static const char word[] = "tensor";
    size_t matched = 0;
    for (size_t i = 0; i < token->length && word[matched]; i++)
        matched = tolower((unsigned char)token->at[i]) == word[matched] ? matched + 1 : 0;
    return !word[matched];
}

static bool ends(const struct amp__token *token) {
    return token->kind == AMP__TOKEN_END || amp__token_is(token, ",") || amp__token_is(token, ")");
}

/* From the token to `end`, without the blanks before that. */
static void add_verbatim(amp__text *out, const struct amp__token *token, const char *end) {
    while (end > token->at && strchr(" \t\n\v\f\r", end[-1])) end--;
    amp__text_add(out, "%.*s", (int)(end - token->at), token->at);
}

/* A type with what follows it, up to `end`. Names of typedefs mean nothing here, but for structs that are described. */
static void add_type(const struct amp__parser *p, struct amp__lexer at, const char *end, amp__text *out) {
    const struct amp__token whole = at.token;
    while (amp__lexer_take(&at, "const")) {}
    struct amp__lexer ahead = at;
    if (amp__type_take(&ahead)) {
        add_verbatim(out, &whole, end);
        return;
    }
    const bool says_struct = amp__lexer_take(&at, "struct");
    const struct amp__token type = at.token;
    if (amp__struct_is_known(&type, p->known, p->n_known)) {
        amp__text_add(out, "struct ");
        add_verbatim(out, &type, end);
        return;
    }
    amp__lexer_advance(&at);
    if (!amp__token_is(&at.token, "*")) {
        amp__text_add(out, "%s", says_struct ? "struct " : "");
        add_verbatim(out, &type, end);
        return;
    }
    amp__lexer_advance(&at);
    amp__text_add(out, "%s", names_tensors(&type) && !amp__token_is(&at.token, "*") ? "Tensor" : "pointer");
    while (amp__token_is(&at.token, "*") || amp__token_is(&at.token, "const") || amp__token_is(&at.token, "restrict"))
        amp__lexer_advance(&at);
    if (at.token.at >= end) return;
    amp__text_add(out, " ");
    add_verbatim(out, &at.token, end);
}

static bool add_arguments(const struct amp__parser *p, struct amp__lexer *at, amp__text *out) {
    struct amp__lexer ahead = *at;
    if (amp__lexer_take(&ahead, "void") && amp__token_is(&ahead.token, ")")) *at = ahead;
    for (bool first = true; !amp__token_is(&at->token, ")"); first = false) {
        if (!first && !amp__lexer_take(at, ",")) return false;
        const struct amp__lexer begin = *at;
        while (!ends(&at->token)) amp__lexer_advance(at);
        if (at->token.kind == AMP__TOKEN_END || at->token.at == begin.token.at) return false;
        amp__text_add(out, first ? "" : ", ");
        add_type(p, begin, at->token.at, out);
    }
    amp__lexer_advance(at);
    (void)amp__lexer_take(at, ";");
    return at->token.kind == AMP__TOKEN_END;
}

bool amp__parser_rewrite_prototype(const struct amp__parser *p, amp__text *out) {
    struct amp__lexer at, result;
    struct amp__token name = { AMP__TOKEN_END, NULL, 0 };
    amp__lexer_start(&at, p->lexer.op, p->lexer.text);
    while (amp__lexer_take(&at, "static") || amp__lexer_take(&at, "extern") || amp__lexer_take(&at, "inline")) {}
    result = at;
    for (; at.token.kind == AMP__TOKEN_WORD || amp__token_is(&at.token, "*"); amp__lexer_advance(&at)) name = at.token;
    if (name.kind != AMP__TOKEN_WORD || name.at == result.token.at || !amp__lexer_take(&at, "(")) return false;
    amp__text_add(out, "%.*s(", (int)name.length, name.at);
    if (!add_arguments(p, &at, out)) return false;
    amp__text_add(out, ") -> ");
    add_type(p, result, name.at, out);
    return out->length < out->capacity;
}
