/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A C prototype in place of a schema: the message proposes the schema for it, after the parser has read the proposal
 * itself. For parts without a form in a schema the message has the position and the remedy.
 */
#include "schema/parser.h"
#include "schema/structs.h"
#include "schema/types.h"

#include <ctype.h>
#include <string.h>

/* The words of C that make up numbers, in any order. */
enum { UNSIGNED, SIGNED, CHAR, SHORT, LONG, INT, FLOAT, DOUBLE, VOID, BOOL, BOOL_C, COMPLEX, N_WORDS };
static const char *const words[N_WORDS] = { "unsigned", "signed", "char", "short", "long", "int", "float", "double",
                                            "void", "bool", "_Bool", "_Complex" };

/* A parameter, or the result. */
struct declared {
    uint8_t n[N_WORDS]; /* how often each of the words stood there */
    bool is_number, is_const, is_array, is_function;
    char tag;                      /* of struct, union or enum the first letter (0: a typedef's name) */
    struct amp__token base, name;  /* base: if it is no number */
    uint32_t stars;
};

static bool one_of(const struct amp__token *token, const char *const *list, size_t n, size_t *index) {
    for (*index = 0; *index < n; ++*index)
        if (amp__token_is(token, list[*index])) return true;
    return false;
}

/* Returns true for words without effect on the passing of a value. */
static bool plays_no_part(const struct amp__token *token) {
    static const char *const list[] = { "volatile", "restrict", "__restrict", "__restrict__", "static", "extern",
                                        "inline", "__inline", "__inline__", "typedef", "register", "_Noreturn" };
    size_t index;
    return one_of(token, list, AMP_COUNT(list), &index);
}

/* Moves from '(' or '[' behind the closing bracket. */
static bool skip_brackets(struct amp__lexer *at) {
    int depth = 0;
    do {
        if (at->token.kind == AMP__TOKEN_END) return false;
        depth += amp__token_is(&at->token, "(") || amp__token_is(&at->token, "[");
        depth -= amp__token_is(&at->token, ")") || amp__token_is(&at->token, "]");
        amp__lexer_advance(at);
    } while (depth);
    return true;
}

/* '(' '*' [name] ... ')', and whether '(' follows: a pointer to a function, not to an array. */
static bool take_pointed(struct amp__lexer *at, struct amp__token *name, bool *is_function) {
    *name = (struct amp__token){ AMP__TOKEN_END, at->token.at, 0 };
    amp__lexer_advance(at); /* ( */
    while (amp__token_is(&at->token, "*") || at->token.kind == AMP__TOKEN_WORD) {
        if (at->token.kind == AMP__TOKEN_WORD && !plays_no_part(&at->token) && !amp__token_is(&at->token, "const"))
            *name = at->token;
        amp__lexer_advance(at);
    }
    const bool is_array = amp__token_is(&at->token, "[");
    while (amp__token_is(&at->token, "["))
        if (!skip_brackets(at)) return false;
    if (!amp__lexer_take(at, ")")) return false;
    *is_function = !is_array && amp__token_is(&at->token, "(");
    return true;
}

/* Types that no schema has, by word; or an attribute that makes one of another. */
static bool has_no_type(struct amp__lexer at) {
    static const char *const types[] = { "_BitInt", "_Decimal32", "_Decimal64", "_Decimal128", "_Float16", "_Float128",
                                         "_Imaginary", "__complex", "__complex__", "__float128", "__fp16", "__int128",
                                         "__int128_t", "__uint128_t" };
    static const char *const attributes[] = { "vector_size", "__vector_size__", "mode", "__mode__", "ext_vector_type" };
    size_t index;
    if (one_of(&at.token, types, AMP_COUNT(types), &index)) return true;
    if (!amp__lexer_take(&at, "__attribute__") && !amp__lexer_take(&at, "__attribute")) return false;
    struct amp__lexer behind = at;
    if (!amp__token_is(&at.token, "(") || !skip_brackets(&behind)) return false;
    for (; at.token.at < behind.token.at; amp__lexer_advance(&at))
        if (one_of(&at.token, attributes, AMP_COUNT(attributes), &index)) return true;
    return false;
}

static bool is_pointed(struct amp__lexer at) {
    amp__lexer_advance(&at);
    return amp__token_is(&at.token, "*");
}

/* Words that are no part of a number: with a type before them the last is a name, else the one before that is the type;
 * words before that are macros. */
struct loose {
    struct amp__token before, last;
    uint32_t n;
};

static void settle_declared(struct declared *d, const struct loose *loose, bool named) {
    const bool typed = d->is_number || d->tag || d->base.length;
    if (!loose->n) return;
    const bool has_name = named && (typed || loose->n > 1);
    if (has_name) d->name = loose->last;
    if (!typed) d->base = has_name ? loose->before : loose->last;
}

static bool take_word(struct amp__lexer *at, struct declared *d, struct loose *loose) {
    size_t index;
    const char first = *at->token.at;
    const bool none = has_no_type(*at);
    const bool brackets = amp__token_is(&at->token, "__attribute__") || amp__token_is(&at->token, "_BitInt");
    if (none || brackets) {
        d->n[COMPLEX] += none;
        d->is_number |= none;
        if (none && loose->n) d->name = loose->last;
        if (none) loose->n = 0;
        amp__lexer_advance(at);
        return !brackets || !amp__token_is(&at->token, "(") || skip_brackets(at);
    }
    if (amp__lexer_take(at, "const")) {
        d->is_const |= !d->stars;
    } else if (plays_no_part(&at->token)) {
        amp__lexer_advance(at);
    } else if (amp__lexer_take(at, "struct") || amp__lexer_take(at, "union") || amp__lexer_take(at, "enum")) {
        if (at->token.kind != AMP__TOKEN_WORD) return false;
        d->tag = first;
        d->base = at->token;
        loose->n = 0;
        amp__lexer_advance(at);
    } else if (!d->stars && one_of(&at->token, words, N_WORDS, &index)) {
        if (d->n[index] < 2) d->n[index]++;
        d->is_number = true;
        loose->n = 0;
        amp__lexer_advance(at);
    } else {
        loose->before = loose->last;
        loose->last = at->token;
        loose->n++;
        amp__lexer_advance(at);
    }
    return true;
}

/* Takes parentheses inside a declaration. */
static bool take_parentheses(struct amp__lexer *at, struct declared *d, struct loose *loose) {
    if (is_pointed(*at)) {
        settle_declared(d, loose, false);
        if (!take_pointed(at, &d->name, &d->is_function)) return false;
        d->stars += !d->is_function;
        d->is_array = !d->is_function;
        loose->n = 0;
        return !d->is_function || skip_brackets(at);
    }
    struct amp__lexer inner = *at;
    amp__lexer_advance(&inner);
    const bool is_word = inner.token.kind == AMP__TOKEN_WORD;
    amp__lexer_advance(&inner);
    if (d->is_number || d->tag || d->stars || loose->n > 1) {
        d->is_function = true; /* int f(int) as a parameter is a pointer; int (x) may be a name in parentheses */
        if (!d->name.length && !loose->n && is_word && amp__token_is(&inner.token, ")")) return false;
    } else {
        loose->n = 0; /* a macro's */
    }
    return skip_brackets(at);
}

/* The declaration up to `end`. False: it is none that is known here. */
static bool read_declared(struct amp__lexer at, const char *end, bool named, struct declared *d) {
    struct loose loose = { .n = 0 };
    *d = (struct declared){ .stars = 0 };
    while (at.token.at < end && !amp__token_is(&at.token, "=")) {
        if (at.token.kind == AMP__TOKEN_WORD) {
            if (!take_word(&at, d, &loose)) return false;
        } else if (amp__lexer_take(&at, "*")) {
            settle_declared(d, &loose, false);
            loose.n = 0;
            d->stars++;
        } else if (amp__token_is(&at.token, "(")) {
            if (!take_parentheses(&at, d, &loose)) return false;
        } else if (amp__token_is(&at.token, "[")) {
            d->stars += !d->is_array;
            d->is_array = true;
            if (!skip_brackets(&at)) return false;
        } else if (amp__lexer_take(&at, "\"")) { /* extern "C" */
            amp__lexer_advance(&at);
            if (!amp__lexer_take(&at, "\"")) return false;
        } else {
            return false;
        }
    }
    if (d->stars && !d->is_array && !d->is_function && !d->is_number && !d->base.length) return false;
    settle_declared(d, &loose, named);
    return d->is_number || d->base.length;
}

/* ---- in the words of a schema ---- */

/* "tensor", "at_Tensor", "struct ggml_tensor", "tensor_t"; not "ParameterTensors". */
static bool names_tensors(const struct amp__token *token) {
    static const char word[] = "tensor";
    const size_t length = sizeof word - 1;
    for (size_t i = 0; i + length <= token->length; i++) {
        size_t matched = 0;
        while (matched < length && tolower((unsigned char)token->at[i + matched]) == word[matched]) matched++;
        if (matched == length)
            return i + length == token->length || tolower((unsigned char)token->at[i + length]) != 's';
    }
    return false;
}

static const char *number_of(const struct declared *d) {
    static const char *const names[2][5] = { { "char", "short", "int", "long", "long long" },
                                             { "unsigned char", "unsigned short", "unsigned int", "unsigned long",
                                               "unsigned long long" } };
    if (d->n[COMPLEX] || (d->n[DOUBLE] && d->n[LONG])) return NULL;
    if (d->n[DOUBLE] || d->n[FLOAT]) return d->n[DOUBLE] ? "double" : "float";
    if (d->n[VOID]) return "void";
    if (d->n[BOOL] || d->n[BOOL_C]) return "bool";
    if (d->n[CHAR] && d->n[SIGNED]) return "signed char";
    return names[d->n[UNSIGNED] > 0][d->n[CHAR] ? 0 : d->n[SHORT] ? 1 : d->n[LONG] > 1 ? 4 : d->n[LONG] ? 3 : 2];
}

/* Refuses a part of a prototype without a form in a schema: at `at`, in parameter `which` from 1 (0: the result). */
static amp_status refuse_prototype(const struct amp__parser *p, const char *at, uint32_t which, const char *hint,
                                   const char *what) {
    if (!which) return amp__lexer_fault(&p->lexer, at, hint, "the result of this C prototype: %s", what);
    return amp__lexer_fault(&p->lexer, at, hint, "parameter %u of this C prototype: %s", (unsigned)which, what);
}

static amp_status refuse_value(const struct amp__parser *p, const char *at, uint32_t which, const struct declared *d) {
    static const char by_pointer[] = "wire a function that takes a pointer or a number instead, and calls this one";
    char hint[256];
    amp__text text = { hint, sizeof hint, 0 };
    const int length = d->base.length < 64 ? (int)d->base.length : 64;
    if (d->is_number)
        return refuse_prototype(p, at, which, by_pointer,
                                "long double, complex, 128-bit and vector types have no type in a schema");
    if (d->tag == 'u') return refuse_prototype(p, at, which, by_pointer, "a union by value has no type in a schema");
    const char *known = d->tag ? NULL : amp__type_foreign(&d->base);
    if (known) return refuse_prototype(p, at, which, known, "its type is not known here");
    amp__text_add(&text,
                  d->tag ? "describe struct %.*s in structs, and write struct %.*s"
                         : "if %.*s is a struct, describe it in structs and write struct %.*s; an enum is an "
                           "int, a handle a Tensor, any pointer a pointer",
                  length, d->base.at, length, d->base.at);
    return refuse_prototype(p, at, which, hint, "its type is not known here");
}

/* Is it a name in a schema too? The words of types are none. */
static bool may_be_name(const struct amp__lexer *like, const struct amp__token *name) {
    struct amp__lexer lexer = *like;
    lexer.token = *name;
    const struct amp__type *type = amp__type_take(&lexer);
    return name->length && (!type || type->soft);
}

static void add(const struct amp__parser *p, const struct declared *d, const char *type, int length, uint32_t stars,
                amp__text *out) {
    amp__text_add(out, "%s%.*s%s", stars && d->is_const ? "const " : "", length, type, stars ? " " : "");
    for (uint32_t i = 0; i < stars; i++) amp__text_add(out, "*");
    if (may_be_name(&p->lexer, &d->name))
        amp__text_add(out, "%s%.*s", stars ? "" : " ", (int)d->name.length, d->name.at);
}

static amp_status add_declared(const struct amp__parser *p, const struct declared *d, const char *at, uint32_t which,
                               amp__text *out) {
    const char *number = d->is_number ? number_of(d) : NULL;
    struct amp__lexer lexer = p->lexer;
    lexer.token = d->base;
    const bool known = !d->is_number && amp__struct_is_known(&d->base, p->known, p->n_known);
    const struct amp__type *type = d->is_number || d->tag || known ? NULL : amp__type_take(&lexer);
    if (d->is_function) {
        add(p, d, "fn", 2, 0, out);
    } else if (number || (type && type->kind != AMP__TENSOR)) {
        add(p, d, number ? number : type->name, 32, d->stars, out);
    } else if (known && d->stars < 2) {
        amp__text_add(out, "%sstruct ", d->stars && d->is_const ? "const " : "");
        struct declared rest = *d;
        rest.is_const = false;
        add(p, &rest, d->base.at, (int)d->base.length, d->stars, out);
    } else if (!d->stars && d->tag == 'e') {
        add(p, d, "int", 3, 0, out);
    } else if (type ? d->stars <= 1 && !d->is_array
                    : d->stars == 1 && !d->is_array && !d->is_number && names_tensors(&d->base)) {
        add(p, d, "Tensor", 6, 0, out);
    } else if (d->stars) {
        add(p, d, "pointer", 7, 0, out);
    } else {
        return refuse_value(p, at, which, d);
    }
    return AMP_OK;
}

/* ---- the whole ---- */

struct prototype {
    struct amp__lexer arguments; /* behind '(' */
    struct amp__token name;
    const char *result_end;
};

/* Returns true for an attribute, or an exception specification of C++. */
static bool stands_behind(const struct amp__token *token) {
    return token->kind == AMP__TOKEN_WORD && (strncmp(token->at, "__", 2) == 0 || amp__token_is(token, "noexcept") ||
                                              amp__token_is(token, "throw"));
}

/* '(' name ')' before '(': a name that no macro may replace. */
static bool take_bracketed(struct amp__lexer *at, struct amp__token *name) {
    struct amp__lexer ahead = *at;
    size_t index;
    amp__lexer_advance(&ahead); /* ( */
    const struct amp__token inner = ahead.token;
    amp__lexer_advance(&ahead);
    if (inner.kind != AMP__TOKEN_WORD || one_of(&inner, words, N_WORDS, &index) || !amp__lexer_take(&ahead, ")") ||
        !amp__token_is(&ahead.token, "("))
        return false;
    *name = inner;
    *at = ahead;
    return true;
}

/* [result] name '(' or [result] '(' '*' name ')' '(' or [result] '(' name ')' '(' */
static bool find_name(struct amp__lexer *at, struct prototype *found) {
    const char *begin = at->token.at;
    bool is_function = false;
    found->name = (struct amp__token){ AMP__TOKEN_END, begin, 0 };
    for (;; amp__lexer_advance(at)) {
        while (amp__token_is(&at->token, "(")) {
            struct amp__lexer behind = *at;
            found->result_end = at->token.at;
            if (is_pointed(*at))
                return take_pointed(at, &found->name, &is_function) && is_function && found->name.length;
            if (take_bracketed(at, &found->name)) return found->name.at > begin + 1;
            if (!skip_brackets(&behind)) return false;
            const bool is_macro = (behind.token.kind == AMP__TOKEN_WORD && !stands_behind(&behind.token)) ||
                                  amp__token_is(&behind.token, "*");
            if (!is_macro) {
                found->result_end = found->name.at;
                return found->name.length && found->name.at > begin;
            }
            *at = behind;
            found->name.length = 0;
        }
        if (at->token.kind == AMP__TOKEN_WORD) found->name = at->token;
        else if (amp__token_is(&at->token, "*")) found->name.length = 0;
        else if (!amp__token_is(&at->token, "\"")) return false;
    }
}

/* Does the text end behind the parameters, or with a body? */
static bool ends(struct amp__lexer at) {
    if (!skip_brackets(&at)) return false;
    while (stands_behind(&at.token)) {
        amp__lexer_advance(&at);
        if (amp__token_is(&at.token, "(") && !skip_brackets(&at)) return false;
    }
    return amp__token_is(&at.token, "{") || (amp__lexer_take(&at, ";"), at.token.kind == AMP__TOKEN_END);
}

static bool find_prototype(const struct amp__parser *p, struct prototype *found) {
    struct amp__lexer at;
    amp__lexer_start(&at, p->lexer.op, p->lexer.text);
    if (!find_name(&at, found) || !ends(at)) return false;
    amp__lexer_advance(&at); /* ( */
    found->arguments = at;
    return true;
}

/* AMP_ERR_NOT_FOUND: a form that is not known here. */
static amp_status add_arguments(const struct amp__parser *p, struct amp__lexer at, amp__text *out) {
    struct amp__lexer ahead = at;
    struct declared d;
    if (amp__lexer_take(&ahead, "void") && amp__token_is(&ahead.token, ")")) at = ahead;
    for (uint32_t i = 1; !amp__token_is(&at.token, ")"); i++) {
        if (i > 1 && !amp__lexer_take(&at, ",")) return AMP_ERR_NOT_FOUND;
        const struct amp__lexer begin = at;
        if (at.token.kind == AMP__TOKEN_DOTS)
            return refuse_prototype(p, at.token.at, i, "wire a function with fixed arguments that calls it",
                                    "variadic functions cannot be wrapped: their arguments are unknown");
        while (at.token.kind != AMP__TOKEN_END && !amp__token_is(&at.token, ",") && !amp__token_is(&at.token, ")")) {
            if (!amp__token_is(&at.token, "(") && !amp__token_is(&at.token, "[")) amp__lexer_advance(&at);
            else if (!skip_brackets(&at)) return AMP_ERR_NOT_FOUND;
        }
        if (!read_declared(begin, at.token.at, true, &d)) return AMP_ERR_NOT_FOUND;
        amp__text_add(out, i > 1 ? ", " : "");
        AMP_TRY(add_declared(p, &d, begin.token.at, i, out));
    }
    return AMP_OK;
}

static amp_status rewrite(const struct amp__parser *p, const struct prototype *found, amp__text *out) {
    struct amp__lexer begin;
    struct declared result;
    amp__lexer_start(&begin, p->lexer.op, p->lexer.text);
    if (!read_declared(begin, found->result_end, false, &result)) return AMP_ERR_NOT_FOUND;
    amp__text_add(out, "%.*s(", (int)found->name.length, found->name.at);
    AMP_TRY(add_arguments(p, found->arguments, out));
    amp__text_add(out, ") -> ");
    return add_declared(p, &result, begin.token.at, 0, out);
}

/* Does the schema have an argument `float *x`, which policy does not reach? */
static bool has_bare_buffer(const char *schema) {
    const char *buffer = strstr(schema, "float *");
    return buffer && buffer < strchr(schema, ')');
}

amp_status amp__parser_fail_prototype(const struct amp__parser *p, amp_status status) {
    static const char buffers[] = "write float x[N] for a float *x to be cast; ";
    char hint[600] = "write float x[N] for a float *x to be cast; C has the result first, a schema last: ";
    amp__text text = { hint, sizeof hint, strlen(hint) };
    struct prototype found;
    struct amp__parser again = { .known = p->known, .n_known = p->n_known };
    if (!find_prototype(p, &found)) return status;
    const size_t before = text.length;
    const amp_status rewritten = rewrite(p, &found, &text);
    if (rewritten == AMP_ERR_NOT_FOUND) return status;
    if (rewritten != AMP_OK) return rewritten;
    if (text.length >= text.capacity) hint[before - 2] = '\0'; /* it does not fit */
    amp__lexer_start(&again.lexer, p->lexer.op, hint + before);
    if (text.length < text.capacity) AMP_TRY(amp__parser_take_schema(&again)); /* reports the fault in the schema */
    return amp__lexer_fault(&p->lexer, found.name.at, has_bare_buffer(hint + before) ? hint : hint + sizeof buffers - 1,
                            "this is a C prototype");
}
