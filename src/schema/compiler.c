/* SPDX-License-Identifier: Apache-2.0 */
/* The compiler of extents: precedence climbing over the operators of C. extents.c runs the result. */
#include "schema/expression.h"
#include "schema/schema.h"
#include "schema/structs.h"

#include <string.h>

struct compiler {
    struct amp__lexer *lexer;
    const struct amp__scope_of_names *names; /* NULL: not looked up */
    struct amp__operation *operations;
    uint32_t n, nesting;
};

static amp_status take_conditional(struct compiler *c);

static amp_status fault(const struct compiler *c, const char *hint, const char *what) {
    return amp__lexer_fault(c->lexer, c->lexer->token.at, hint, "%s", what);
}

static amp_status emit(struct compiler *c, uint8_t code, int64_t value) {
    if (c->n == AMP__MAX_OPERATIONS)
        return amp__lexer_fault(c->lexer, c->lexer->token.at, "have the caller compute it and pass the result",
                                "an extent has at most %d operations", AMP__MAX_OPERATIONS);
    c->operations[c->n++] = (struct amp__operation){ value, code };
    return AMP_OK;
}

/* Sets the target of the jump at `from` to the next operation. */
static void land(struct compiler *c, uint32_t from) { c->operations[from].value = c->n; }

/* The expression itself is the first level. */
static amp_status nest(struct compiler *c) {
    if (c->nesting++ > AMP__MAX_NESTING)
        return amp__lexer_fault(c->lexer, c->lexer->token.at, NULL, "an extent nests at most %d deep",
                                AMP__MAX_NESTING);
    return AMP_OK;
}

/* ---- operands ---- */

static amp_status take_constant(struct compiler *c) {
    const struct amp__token *token = &c->lexer->token;
    int64_t value = 0;
    if (token->length > 1 && token->at[0] == '0')
        return fault(c, "write it in decimal without zeros before it", "a constant begins with 0, which is octal in C");
    for (size_t i = 0; i < token->length; i++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, token->at[i] - '0', &value))
            return fault(c, NULL, "a constant does not fit 64 bits");
    AMP_TRY(emit(c, AMP__OP_CONSTANT, value));
    amp__lexer_advance(c->lexer);
    return AMP_OK;
}

static amp_status unknown_name(const struct compiler *c) {
    const struct amp__token *token = &c->lexer->token;
    char word[64] = "", names[AMP__MAX_ARGS][64], hint[128];
    const char *pointers[AMP__MAX_ARGS];
    amp__text text = { hint, sizeof hint, 0 };
    size_t n = 0;
    for (uint32_t i = 0; i < c->names->n; i++) {
        const struct amp__token *name = &c->names->names[i];
        if (!amp__is_integer(c->names->args[i].kind) || !name->length || name->length >= sizeof names[0]) continue;
        memcpy(names[n], name->at, name->length);
        names[n][name->length] = '\0';
        pointers[n] = names[n];
        n++;
    }
    memcpy(word, token->at, token->length < sizeof word ? token->length : sizeof word - 1);
    amp__text_add(&text, "did you mean ");
    const size_t empty = text.length;
    amp__nearest_names(&text, word, pointers, n);
    amp__text_add(&text, "?");
    return fault(c, text.length > empty + 1 ? hint : NULL, "no argument has this name");
}

/* Takes a member of `arg`, with the lexer at its name behind '.' or '->'. */
static amp_status take_member(struct compiler *c, uint32_t arg, bool by_pointer) {
    const struct amp__arg *owner = c->names ? &c->names->args[arg] : NULL;
    struct amp__member field = { .argument = (uint8_t)arg };
    if (c->lexer->token.kind != AMP__TOKEN_WORD) return fault(c, "as in l.n or net->batch", "expected a member's name");
    if (owner) {
        if (owner->kind != AMP__STRUCT && owner->kind != AMP__STRUCT_POINTER)
            return fault(c, "write struct layer l, and describe the struct", "only a struct has members");
        if (by_pointer != (owner->kind == AMP__STRUCT_POINTER))
            return fault(c, by_pointer ? "write '.', as in C" : "write '->', as in C", "a member of a struct by value "
                         "is named with '.', one behind a pointer with '->'");
        AMP_TRY(amp__struct_member(c->lexer, &c->names->structs[owner->struct_index], &field.offset, &field.kind));
    }
    AMP_TRY(emit(c, AMP__OP_FIELD, amp__member_pack(field)));
    amp__lexer_advance(c->lexer);
    return AMP_OK;
}

/* The argument that the lexer is at. */
static amp_status find_name(const struct compiler *c, uint32_t *i) {
    const struct amp__token *token = &c->lexer->token, *names = c->names->names;
    for (*i = 0; *i < c->names->n; ++*i)
        if (names[*i].length == token->length && memcmp(names[*i].at, token->at, token->length) == 0) return AMP_OK;
    return unknown_name(c);
}

/* '*' name: the integer that an argument points to, as Fortran passes all of them. */
static amp_status take_pointed(struct compiler *c) {
    struct amp__member field = { .argument = 0 };
    amp__lexer_advance(c->lexer); /* * */
    if (c->lexer->token.kind != AMP__TOKEN_WORD) return fault(c, "as in *m, of int *m", "expected an argument's name");
    if (c->names) {
        uint32_t i;
        AMP_TRY(find_name(c, &i));
        field.argument = (uint8_t)i, field.kind = c->names->args[i].pointed;
        if (!field.kind) return fault(c, "as *m of an int *m", "it points to no integer");
    }
    AMP_TRY(emit(c, AMP__OP_FIELD, amp__member_pack(field)));
    amp__lexer_advance(c->lexer);
    return AMP_OK;
}

static amp_status take_name(struct compiler *c) {
    struct amp__lexer ahead = *c->lexer;
    uint32_t i = 0;
    amp__lexer_advance(&ahead);
    const bool arrow = ahead.token.kind == AMP__TOKEN_ARROW, member = arrow || amp__token_is(&ahead.token, ".");
    if (c->names) {
        AMP_TRY(find_name(c, &i));
        if (!member && !amp__is_integer(c->names->args[i].kind))
            return fault(c, c->names->args[i].pointed ? "write '*' before it, as in C" : NULL,
                         "an extent is made of integer arguments and integer members");
    }
    if (!member) AMP_TRY(emit(c, AMP__OP_ARGUMENT, i));
    *c->lexer = ahead;
    if (!member) return AMP_OK;
    amp__lexer_advance(c->lexer);
    return take_member(c, i, arrow);
}

static amp_status take_unary(struct compiler *c) {
    const struct amp__token *token = &c->lexer->token;
    if (token->kind == AMP__TOKEN_NUMBER) return take_constant(c);
    if (token->kind == AMP__TOKEN_WORD) return take_name(c);
    if (amp__token_is(token, "*")) return take_pointed(c);
    if (amp__lexer_take(c->lexer, "(")) {
        AMP_TRY(take_conditional(c));
        return amp__lexer_take(c->lexer, ")") ? AMP_OK : fault(c, NULL, "expected ')'");
    }
    const uint8_t code = amp__token_is(token, "-") ? AMP__OP_NEGATE : AMP__OP_NOT;
    if (code == AMP__OP_NOT && !amp__token_is(token, "!"))
        return fault(c, "an integer, an integer argument, or an expression of them", "expected an extent");
    amp__lexer_advance(c->lexer);
    AMP_TRY(nest(c));
    AMP_TRY(take_unary(c));
    c->nesting--;
    return emit(c, code, 0);
}

/* ---- operators ---- */

struct binary {
    char text[3];
    uint8_t code;
    int precedence;
};

static const struct binary *binary_at(const struct amp__token *token) {
    static const struct binary table[] = {
        { "||", AMP__OP_OR, 1 },       { "&&", AMP__OP_AND, 2 },         { "==", AMP__OP_EQUAL, 3 },
        { "!=", AMP__OP_NOT_EQUAL, 3 }, { "<", AMP__OP_LESS, 4 },         { "<=", AMP__OP_LESS_EQUAL, 4 },
        { ">", AMP__OP_GREATER, 4 },   { ">=", AMP__OP_GREATER_EQUAL, 4 }, { "+", AMP__OP_ADD, 5 },
        { "-", AMP__OP_SUBTRACT, 5 },  { "*", AMP__OP_MULTIPLY, 6 },     { "/", AMP__OP_DIVIDE, 6 },
        { "%", AMP__OP_REMAINDER, 6 },
    };
    for (size_t i = 0; i < AMP_COUNT(table); i++)
        if (amp__token_is(token, table[i].text)) return &table[i];
    return NULL;
}

/* All operators of precedence `least` or more; they group from the left. */
static amp_status take_binary(struct compiler *c, int least) {
    AMP_TRY(take_unary(c));
    for (const struct binary *op; (op = binary_at(&c->lexer->token)) && op->precedence >= least;) {
        const bool jumps = op->code == AMP__OP_AND || op->code == AMP__OP_OR;
        const uint32_t from = c->n;
        amp__lexer_advance(c->lexer);
        if (jumps) AMP_TRY(emit(c, op->code, 0));
        AMP_TRY(take_binary(c, op->precedence + 1));
        AMP_TRY(emit(c, jumps ? AMP__OP_BOOLEAN : op->code, 0));
        if (jumps) land(c, from);
    }
    return AMP_OK;
}

static amp_status take_conditional(struct compiler *c) {
    AMP_TRY(nest(c));
    AMP_TRY(take_binary(c, 1));
    if (amp__lexer_take(c->lexer, "?")) {
        const uint32_t branch = c->n;
        AMP_TRY(emit(c, AMP__OP_BRANCH, 0));
        AMP_TRY(take_conditional(c));
        if (!amp__lexer_take(c->lexer, ":")) return fault(c, "as in TA ? K : M", "expected ':'");
        const uint32_t jump = c->n;
        AMP_TRY(emit(c, AMP__OP_JUMP, 0));
        land(c, branch);
        AMP_TRY(take_conditional(c));
        land(c, jump);
    }
    c->nesting--;
    return AMP_OK;
}

amp_status amp__expression_take(struct amp__lexer *lexer, const struct amp__scope_of_names *names,
                                struct amp__operation *operations, uint32_t *n) {
    struct compiler c = { lexer, names, operations, 0, 0 };
    AMP_TRY(take_conditional(&c));
    *n = c.n;
    return AMP_OK;
}
