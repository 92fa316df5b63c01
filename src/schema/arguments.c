/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and returns: the part before a name. The part behind it: buffers.c. */
#include "schema/parser.h"
#include "schema/structs.h"
#include "schema/types.h"

#include <string.h>

#define MAX_LIST 65535 /* Tensor[n] */

/* The type while it is read. */
struct reading {
    const char *start;
    const struct amp__type *type; /* NULL: a struct */
    bool is_const, annotated;
};

/* ---- annotations ---- */

static amp_status token_fault(const struct amp__parser *p, const char *hint, const char *what) {
    return amp__lexer_fault(&p->lexer, p->lexer.token.at, hint, "%s", what);
}

/* '(' ( 'keep' | 'seed' | 'out' label '!' | label ['!'] ) ')' */
static amp_status take_annotation(struct amp__parser *p, struct amp__arg *arg) {
    static const char forms[] = "(a), (a!), (out a!), (keep) or (seed)";
    struct amp__lexer *lexer = &p->lexer;
    amp__lexer_advance(lexer); /* ( */
    if (amp__lexer_take(lexer, "keep")) {
        arg->flags |= AMP__KEEP;
    } else if (amp__lexer_take(lexer, "seed")) {
        arg->flags |= AMP__SEED;
    } else {
        if (amp__token_is(&lexer->token, "*"))
            return token_fault(p, "write fn for a function pointer", "expected an annotation");
        const bool out = amp__lexer_take(lexer, "out");
        if (lexer->token.kind != AMP__TOKEN_WORD) return token_fault(p, forms, "expected an annotation");
        amp__lexer_advance(lexer);
        const bool written = amp__lexer_take(lexer, "!");
        if (out && !written) return token_fault(p, "write (out a!)", "expected '!'");
        if (written) arg->flags |= out ? AMP__WRITE : AMP__READ_WRITE;
    }
    return amp__lexer_take(lexer, ")") ? AMP_OK : token_fault(p, forms, "expected ')'");
}

/* [annotation] ['?'] [annotation]: PyTorch itself writes annotations in both places */
static amp_status take_annotations(struct amp__parser *p, struct amp__arg *arg, bool *annotated) {
    struct amp__lexer *lexer = &p->lexer;
    for (int i = 0; i < 2; i++) {
        if (amp__token_is(&lexer->token, "(")) {
            if (*annotated) return token_fault(p, NULL, "one annotation is all that a type takes");
            AMP_TRY(take_annotation(p, arg));
            *annotated = true;
        }
        if (i == 0 && amp__lexer_take(lexer, "?")) arg->flags |= AMP__OPTIONAL;
    }
    return AMP_OK;
}

/* ---- Tensor ---- */

/* '[' [number] ']' */
static amp_status take_list(struct amp__parser *p, struct amp__arg *arg) {
    struct amp__lexer *lexer = &p->lexer;
    amp__lexer_advance(lexer); /* [ */
    arg->flags |= AMP__LIST;
    if (lexer->token.kind == AMP__TOKEN_NUMBER) {
        for (size_t i = 0; i < lexer->token.length && arg->fixed_count <= MAX_LIST; i++)
            arg->fixed_count = arg->fixed_count * 10 + (uint32_t)(lexer->token.at[i] - '0');
        if (arg->fixed_count == 0 || arg->fixed_count > MAX_LIST)
            return amp__lexer_fault(lexer, lexer->token.at, NULL, "a list has 1 to %d entries", MAX_LIST);
        amp__lexer_advance(lexer);
    }
    if (!amp__lexer_take(lexer, "]")) return token_fault(p, "write Tensor[] or Tensor[3]", "expected ']'");
    if (amp__token_is(&lexer->token, "?"))
        return token_fault(p, "write Tensor?[] for a list with entries that may be NULL", "a list cannot be optional");
    return AMP_OK;
}

/* '*' ['?']: the op writes the handle itself, or with a list behind it several */
static amp_status take_out_parameter(struct amp__parser *p, struct amp__arg *arg) {
    if (!(arg->flags & AMP__WRITE))
        return token_fault(p, "write Tensor for tensor *, or Tensor(out a!)* out for a handle that the op makes",
                           "a pointer to a handle is written by the op, or a list");
    if (arg->flags & AMP__OPTIONAL)
        return token_fault(p, "write Tensor(out a!)*? if the pointer may be NULL", "'?' stands behind '*'");
    amp__lexer_advance(&p->lexer); /* * */
    if (amp__token_is(&p->lexer.token, "*"))
        return token_fault(p, "Tensor is a pointer already", "an out-parameter has one '*'");
    arg->flags |= AMP__OUT_PARAMETER;
    if (amp__lexer_take(&p->lexer, "?")) arg->flags |= AMP__OPTIONAL;
    return AMP_OK;
}

/* 'Tensor' [annotation] ['?'] ['*' ['?']] ['[' [number] ']'] [annotation] */
static amp_status take_tensor(struct amp__parser *p, struct amp__arg *arg) {
    struct amp__lexer *lexer = &p->lexer;
    bool annotated = false;
    AMP_TRY(take_annotations(p, arg, &annotated));
    if (amp__token_is(&lexer->token, "*")) AMP_TRY(take_out_parameter(p, arg));
    if (amp__token_is(&lexer->token, "[")) AMP_TRY(take_list(p, arg));
    if (!amp__token_is(&lexer->token, "(")) return AMP_OK;
    if (annotated) return token_fault(p, NULL, "one annotation is all that a type takes");
    return take_annotation(p, arg);
}

/* ---- structs, pointers and numbers ---- */

static amp_status take_struct(struct amp__parser *p, struct amp__arg *arg) {
    struct amp__lexer *lexer = &p->lexer, ahead;
    if (lexer->token.kind != AMP__TOKEN_WORD)
        return token_fault(p, "as in struct layer l", "expected the struct's name");
    ahead = *lexer;
    amp__lexer_advance(&ahead);
    while (amp__lexer_take(&ahead, "const")) {}
    arg->kind = AMP__STRUCT;
    if (amp__lexer_take(&ahead, "*") && amp__token_is(&ahead.token, "*")) { /* a pointer to a pointer is opaque */
        amp__lexer_advance(lexer);
        return AMP_OK;
    }
    uint32_t i = 0;
    while (i < p->n_structs && !amp__token_is(&lexer->token, p->structs[i].name)) i++;
    if (i == p->n_structs) {
        AMP_TRY(amp__struct_find(lexer, p->known, p->n_known, &p->structs[i]));
        p->n_structs++;
    }
    arg->struct_index = (int16_t)i;
    amp__lexer_advance(lexer);
    return AMP_OK;
}

/* { '*' { 'const' | 'restrict' | '__restrict' | '__restrict__' } } */
static uint32_t take_stars(struct amp__lexer *lexer) {
    uint32_t n = 0;
    for (; amp__lexer_take(lexer, "*"); n++)
        while (amp__lexer_take(lexer, "const") || amp__lexer_take(lexer, "restrict")
               || amp__lexer_take(lexer, "__restrict") || amp__lexer_take(lexer, "__restrict__")) {}
    return n;
}

/* Refuses suffixes of a type that is neither a Tensor nor the elements of a buffer. */
static amp_status check_plain(const struct amp__parser *p, const struct amp__arg *arg) {
    const struct amp__token *token = &p->lexer.token;
    const bool pointer = arg->kind == AMP__POINTER || arg->kind == AMP__STRUCT_POINTER;
    if (amp__token_is(token, "("))
        return token_fault(p, arg->kind == AMP__VOID ? "write fn for a function pointer" : NULL,
                           "only a Tensor or a raw buffer takes an annotation");
    if (amp__token_is(token, "?"))
        return token_fault(p, pointer ? "a pointer may always be NULL" : NULL,
                           "only a Tensor or a raw buffer can be optional");
    if (amp__token_is(token, "[")) return token_fault(p, "write pointer", "only a Tensor can be a list");
    return AMP_OK;
}

/* The name of a struct that is described, as a typedef would have it. */
static amp_status lacks_struct(const struct amp__parser *p) {
    char hint[192];
    amp__text text = { hint, sizeof hint, 0 };
    struct amp__lexer ahead = p->lexer;
    amp__text_add(&text, "write struct %.*s", (int)ahead.token.length, ahead.token.at);
    amp__lexer_advance(&ahead);
    if (amp__token_is(&ahead.token, "*")) {
        amp__text_add(&text, " *");
        amp__lexer_advance(&ahead);
        if (ahead.token.kind == AMP__TOKEN_WORD) amp__text_add(&text, "%.*s", (int)ahead.token.length, ahead.token.at);
    } else if (ahead.token.kind == AMP__TOKEN_WORD) {
        amp__text_add(&text, " %.*s", (int)ahead.token.length, ahead.token.at);
    }
    return token_fault(p, hint, "expected a type");
}

/* Everything before the name. */
static amp_status take_type(struct amp__parser *p, struct amp__arg *arg, struct reading *reading) {
    struct amp__lexer *lexer = &p->lexer;
    *arg = (struct amp__arg){ .count_arg = -1, .struct_index = -1 };
    reading->start = lexer->token.at;
    reading->is_const = amp__lexer_take(lexer, "const");
    if (amp__lexer_take(lexer, "struct")) {
        AMP_TRY(take_struct(p, arg));
    } else {
        reading->type = amp__type_take(lexer);
        if (!reading->type)
            return amp__struct_is_known(&lexer->token, p->known, p->n_known) ? lacks_struct(p)
                                                                             : amp__type_unknown(lexer);
        arg->kind = reading->type->kind;
    }
    if (arg->kind == AMP__TENSOR) return take_tensor(p, arg);
    if (amp__lexer_take(lexer, "const")) reading->is_const = true;
    const uint32_t stars = take_stars(lexer);
    if (stars) {
        arg->kind = arg->kind == AMP__STRUCT && stars == 1 ? AMP__STRUCT_POINTER : AMP__POINTER;
        if (reading->is_const && arg->kind == AMP__POINTER) arg->flags |= AMP__STATELESS;
        if (stars == 1 && reading->type && amp__is_integer(reading->type->kind)) arg->pointed = reading->type->kind;
        reading->type = NULL;
        return check_plain(p, arg);
    }
    if (arg->kind == AMP__STRUCT) {
        AMP_TRY(amp__struct_check_value(lexer, reading->start, &p->structs[arg->struct_index]));
        return check_plain(p, arg);
    }
    if (arg->kind == AMP__VOID || arg->kind == AMP__POINTER) return check_plain(p, arg);
    if (amp__token_is(&lexer->token, "["))
        return token_fault(p, "as in float x[B*T, C]", "a raw buffer has its extents behind its name");
    return take_annotations(p, arg, &reading->annotated);
}

/* ---- arguments and returns ---- */

static amp_status check_name(const struct amp__parser *p, const struct amp__token *name) {
    for (uint32_t i = 0; i < p->n_args; i++)
        if (p->names[i].length == name->length && memcmp(p->names[i].at, name->at, name->length) == 0)
            return amp__lexer_fault(&p->lexer, name->at, NULL, "two arguments have this name");
    return AMP_OK;
}

/* f(long double) has no name: words of types are none, but for those that C does not know. */
static bool at_name(const struct amp__lexer *lexer) {
    struct amp__lexer ahead = *lexer;
    if (lexer->token.kind != AMP__TOKEN_WORD || amp__token_is(&lexer->token, "const")
        || amp__token_is(&lexer->token, "struct"))
        return false;
    const struct amp__type *type = amp__type_take(&ahead);
    return !type || type->soft;
}

/* A number that is written like a buffer, or is only ever the element of one, but has no extents. */
static amp_status check_value(const struct amp__parser *p, const struct amp__arg *arg, const struct reading *reading) {
    if (arg->kind == AMP__BUFFER && !reading->annotated && !(arg->flags & AMP__OPTIONAL))
        return amp__lexer_fault(&p->lexer, reading->start,
                                "a 16-bit float cannot be passed by value; uint16 carries its bits", "expected a type");
    if (reading->type && arg->kind != AMP__TENSOR && (reading->annotated || (arg->flags & AMP__OPTIONAL)))
        return token_fault(p, "as in float(a!) x[M, N], or float(a!) x[?] for a registered buffer",
                           "a raw buffer needs its extents");
    return AMP_OK;
}

amp_status amp__parser_take_argument(struct amp__parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    struct reading reading = { .type = NULL };
    struct amp__arg arg;

    if (lexer->token.kind == AMP__TOKEN_DOTS)
        return token_fault(p, NULL, "variadic functions cannot be wrapped: their arguments are unknown");
    if (p->n_args == AMP__MAX_ARGS)
        return amp__lexer_fault(lexer, lexer->token.at, NULL, "more than %d arguments", AMP__MAX_ARGS);
    AMP_TRY(take_type(p, &arg, &reading));
    if (arg.kind == AMP__VOID)
        return amp__lexer_fault(lexer, reading.start, "write () for no arguments", "an argument cannot be void");

    struct amp__token name = { AMP__TOKEN_END, reading.start, 0 }; /* none, but a place for messages */
    if (at_name(lexer)) {
        name = lexer->token;
        AMP_TRY(check_name(p, &name));
        amp__lexer_advance(lexer);
        if (amp__token_is(&lexer->token, "["))
            AMP_TRY(amp__parser_take_buffer(p, &arg, reading.type, reading.is_const ? reading.start : NULL));
    }
    if (!p->extents[p->n_args].length) AMP_TRY(check_value(p, &arg, &reading));
    p->countable |= (uint64_t)(reading.type && reading.type->counts && arg.kind != AMP__POINTER) << p->n_args;
    p->names[p->n_args] = name;
    p->args[p->n_args++] = arg;
    return AMP_OK;
}

amp_status amp__parser_take_return(struct amp__parser *p) {
    struct reading reading = { .type = NULL };
    bool written = false;
    AMP_TRY(take_type(p, &p->ret, &reading));
    if (p->ret.flags & AMP__LIST)
        return amp__lexer_fault(&p->lexer, reading.start, "write pointer if libamp may ignore it",
                                "a list cannot be returned");
    if (p->ret.flags & (AMP__WRITE | AMP__KEEP | AMP__SEED))
        return amp__lexer_fault(&p->lexer, reading.start, NULL, "a return is annotated with (a) or (a!) only");
    if (reading.type && p->ret.kind != AMP__TENSOR && (reading.annotated || p->ret.flags))
        return amp__lexer_fault(&p->lexer, reading.start, "write pointer", "a raw buffer cannot be returned");
    AMP_TRY(check_value(p, &p->ret, &reading));
    for (uint32_t i = 0; i < p->n_args; i++) written |= (p->args[i].flags & (AMP__READ_WRITE | AMP__WRITE)) != 0;
    if ((p->ret.flags & AMP__READ_WRITE) && !written)
        return amp__lexer_fault(&p->lexer, reading.start, "annotate the argument that is returned: Tensor(a!) self",
                                "no argument is written that could be returned");
    return AMP_OK;
}
