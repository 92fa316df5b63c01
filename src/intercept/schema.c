/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recursive descent without recursion: the grammar (docs/schema.md) is flat. A schema is read into fixed arrays on the
 * stack first, with names as tokens of the caller's text, and built in one allocation once all of it is known to be
 * right.
 */
#include "intercept/schema.h"
#include "intercept/lexer.h"
#include "intercept/types.h"

#include <string.h>

#define MAX_LIST 65535 /* Tensor[n] */

struct parser {
    struct amp__lexer lexer;
    struct amp__token name; /* the op's */
    struct amp__token names[AMP__MAX_ARGS];
    struct amp__arg args[AMP__MAX_ARGS], ret;
    uint32_t n_args;
    uint64_t countable; /* bit i: argument i may count a list */
};

/* ---- types ---- */

/* '(' ( 'keep' | 'seed' | 'out' label '!' | label ['!'] ) ')' */
static amp_status take_annotation(struct parser *p, struct amp__arg *arg) {
    static const char forms[] = "(a), (a!), (out a!), (keep) or (seed)";
    struct amp__lexer *lexer = &p->lexer;
    amp__lexer_advance(lexer); /* ( */
    if (amp__lexer_take(lexer, "keep")) {
        arg->flags |= AMP__KEEP;
    } else if (amp__lexer_take(lexer, "seed")) {
        arg->flags |= AMP__SEED;
    } else {
        const bool out = amp__lexer_take(lexer, "out");
        if (lexer->token.kind != AMP__TOKEN_WORD)
            return amp__lexer_fault(lexer, lexer->token.at, forms, "expected an annotation");
        amp__lexer_advance(lexer);
        const bool written = amp__lexer_take(lexer, "!");
        if (out && !written) return amp__lexer_fault(lexer, lexer->token.at, "write (out a!)", "expected '!'");
        if (written) arg->flags |= out ? AMP__WRITE : AMP__READ_WRITE;
    }
    if (!amp__lexer_take(lexer, ")")) return amp__lexer_fault(lexer, lexer->token.at, forms, "expected ')'");
    return AMP_OK;
}

/* '[' [number] ']' */
static amp_status take_list(struct parser *p, struct amp__arg *arg) {
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
    if (!amp__lexer_take(lexer, "]"))
        return amp__lexer_fault(lexer, lexer->token.at, "write Tensor[] or Tensor[3]", "expected ']'");
    if (amp__token_is(&lexer->token, "?"))
        return amp__lexer_fault(lexer, lexer->token.at, "write Tensor?[] for a list whose entries may be NULL",
                                "a list cannot be optional");
    return AMP_OK;
}

/* name, or 'Tensor' [annotation] ['?'] ['[' [number] ']'] [annotation] (PyTorch itself writes annotations in both
 * places) */
static amp_status take_arg_type(struct parser *p, struct amp__arg *arg, bool *counts) {
    struct amp__lexer *lexer = &p->lexer;
    const struct amp__type *type = amp__type_take(lexer);
    if (!type) return amp__type_unknown(lexer);
    *counts = type->counts;
    arg->kind = type->kind;
    arg->count_arg = -1;
    if (type->kind == AMP__TENSOR) {
        const bool annotated = amp__token_is(&lexer->token, "(");
        if (annotated) AMP_TRY(take_annotation(p, arg));
        if (amp__lexer_take(lexer, "?")) arg->flags |= AMP__OPTIONAL;
        if (amp__token_is(&lexer->token, "[")) AMP_TRY(take_list(p, arg));
        if (!amp__token_is(&lexer->token, "(")) return AMP_OK;
        if (annotated)
            return amp__lexer_fault(lexer, lexer->token.at, NULL, "one annotation is all that a type takes");
        return take_annotation(p, arg);
    }
    if (amp__token_is(&lexer->token, "("))
        return amp__lexer_fault(lexer, lexer->token.at, "raw buffers are not in this version; write pointer",
                                "only a Tensor takes an annotation");
    if (amp__token_is(&lexer->token, "["))
        return amp__lexer_fault(lexer, lexer->token.at, "write pointer for an array of numbers",
                                "only a Tensor can be a list");
    if (amp__token_is(&lexer->token, "?"))
        return amp__lexer_fault(lexer, lexer->token.at, NULL, "only a Tensor can be optional");
    return AMP_OK;
}

/* ---- arguments ---- */

static amp_status check_name(const struct parser *p, const struct amp__token *name) {
    for (uint32_t i = 0; i < p->n_args; i++)
        if (p->names[i].length == name->length && memcmp(p->names[i].at, name->at, name->length) == 0)
            return amp__lexer_fault(&p->lexer, name->at, NULL, "two arguments have this name");
    return AMP_OK;
}

static amp_status take_argument(struct parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    const char *start = lexer->token.at;
    struct amp__arg arg = { 0 };
    bool counts;

    if (lexer->token.kind == AMP__TOKEN_DOTS)
        return amp__lexer_fault(lexer, start, NULL,
                                "variadic functions cannot be wrapped: what a call passes cannot be known");
    if (p->n_args == AMP__MAX_ARGS)
        return amp__lexer_fault(lexer, start, NULL, "more than %d arguments", AMP__MAX_ARGS);
    AMP_TRY(take_arg_type(p, &arg, &counts));
    if (arg.kind == AMP__VOID)
        return amp__lexer_fault(lexer, start, "write () for no arguments", "an argument cannot be void");

    struct amp__token name = { AMP__TOKEN_END, start, 0 }; /* none, but a place for messages */
    struct amp__lexer ahead = *lexer;
    if (lexer->token.kind == AMP__TOKEN_WORD && !amp__type_take(&ahead)) { /* f(long double) has no name */
        name = lexer->token;
        AMP_TRY(check_name(p, &name));
        amp__lexer_advance(lexer);
    }
    p->countable |= (uint64_t)counts << p->n_args;
    p->names[p->n_args] = name;
    p->args[p->n_args++] = arg;
    return AMP_OK;
}

/* What may stand behind an argument in other notations. */
static const char *hint_behind_argument(const struct amp__token *token) {
    if (amp__token_is(token, "*")) return "write pointer for a C pointer";
    if (amp__token_is(token, "[")) return "raw buffers with extents are not in this version; write pointer";
    if (amp__token_is(token, "=")) return "a C function has no default arguments";
    if (amp__token_is(token, "double")) return "a comma is missing before it (long double is not in this version)";
    if (token->kind == AMP__TOKEN_WORD) return "a comma is missing before it";
    return NULL;
}

static amp_status take_arguments(struct parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    if (!amp__lexer_take(lexer, "(")) return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected '('");
    if (amp__lexer_take(lexer, ")")) return AMP_OK;
    do {
        AMP_TRY(take_argument(p));
    } while (amp__lexer_take(lexer, ","));
    if (!amp__lexer_take(lexer, ")"))
        return amp__lexer_fault(lexer, lexer->token.at, hint_behind_argument(&lexer->token), "expected ',' or ')'");
    return AMP_OK;
}

static amp_status take_return(struct parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    bool counts, written = false;
    if (!amp__lexer_take(lexer, "->"))
        return amp__lexer_fault(lexer, lexer->token.at, "write -> void if it returns nothing", "expected '->'");
    const char *start = lexer->token.at;
    AMP_TRY(take_arg_type(p, &p->ret, &counts));
    if (p->ret.flags & AMP__LIST)
        return amp__lexer_fault(lexer, start, "write pointer if libamp may ignore it", "a list cannot be returned");
    if (p->ret.flags & (AMP__WRITE | AMP__KEEP | AMP__SEED))
        return amp__lexer_fault(lexer, start, NULL, "a return is annotated with (a) or (a!) only");
    for (uint32_t i = 0; i < p->n_args; i++) written |= (p->args[i].flags & (AMP__READ_WRITE | AMP__WRITE)) != 0;
    if ((p->ret.flags & AMP__READ_WRITE) && !written)
        return amp__lexer_fault(lexer, start, "annotate the argument that is returned: Tensor(a!) self",
                                "no argument is written that could be returned");
    if (lexer->token.kind != AMP__TOKEN_END)
        return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected the end of the schema");
    return AMP_OK;
}

/* ---- list counts ---- */

/* Is `name` prefix + list + suffix? */
static bool is_joined(const struct amp__token *name, const char *prefix, const struct amp__token *list,
                      const char *suffix) {
    const size_t before = strlen(prefix), after = strlen(suffix);
    return list->length && name->length == before + list->length + after && memcmp(name->at, prefix, before) == 0
        && memcmp(name->at + before, list->at, list->length) == 0
        && memcmp(name->at + before + list->length, suffix, after) == 0;
}

/* Which integer says how long a list is decides where libamp stops reading the host's memory: no guessing. A name made
 * of the list's is certain; else it is the integer behind the list or the one named n, if these are not two. */
static amp_status find_count(struct parser *p, uint32_t list) {
    int found = -1, candidates = 0;
    for (uint32_t i = 0; i < p->n_args; i++) {
        const struct amp__token *name = &p->names[i], *of = &p->names[list];
        if (!(p->countable >> i & 1)) continue;
        if (!is_joined(name, "n_", of, "") && !is_joined(name, "num_", of, "") && !is_joined(name, "", of, "_count"))
            continue;
        found = (int)i;
        candidates++;
    }
    if (!candidates) {
        const uint32_t behind = list + 1;
        for (uint32_t i = 0; i < p->n_args; i++) {
            if (!(p->countable >> i & 1) || (i != behind && !amp__token_is(&p->names[i], "n"))) continue;
            found = (int)i;
            candidates++;
        }
    }
    p->args[list].count_arg = (int16_t)found;
    if (candidates == 1) return AMP_OK;

    const struct amp__token *name = &p->names[list];
    char hint[192];
    amp__text text = { hint, sizeof hint, 0 };
    if (name->length && name->length < 64)
        amp__text_add(&text, "name the integer argument that counts it n_%.*s, or write", (int)name->length, name->at);
    else amp__text_add(&text, "name both as in Tensor[] xs, int n_xs, or write");
    amp__text_add(&text, " Tensor[3] if it is always 3 long");
    return amp__lexer_fault(&p->lexer, name->at, hint,
                            candidates ? "several arguments could count this list" : "no argument counts this list");
}

/* ---- the whole ---- */

static amp_status take_schema(struct parser *p) {
    if (p->lexer.token.kind != AMP__TOKEN_WORD)
        return amp__lexer_fault(&p->lexer, p->lexer.token.at, "as in linear(Tensor input, Tensor weight) -> Tensor",
                                "expected the op's name");
    amp__lexer_extend_name(&p->lexer);
    p->name = p->lexer.token;
    amp__lexer_advance(&p->lexer);
    AMP_TRY(take_arguments(p));
    AMP_TRY(take_return(p));
    for (uint32_t i = 0; i < p->n_args; i++)
        if ((p->args[i].flags & AMP__LIST) && !p->args[i].fixed_count) AMP_TRY(find_count(p, i));
    return AMP_OK;
}

/* The text goes in twice: as it is, and cut up into names. Behind every name stands a byte that no name needs. */
static amp_status build(const struct parser *p, struct amp__schema **out) {
    const char *text = p->lexer.text;
    const size_t bytes = strlen(text) + 1, head = sizeof(struct amp__schema) + p->n_args * sizeof(struct amp__arg);
    struct amp__schema *schema = amp__alloc(head + 2 * bytes, 1);
    if (!schema) return amp__fail_memory();
    char *copy = (char *)schema + head, *names = copy + bytes;
    memcpy(copy, text, bytes);
    memcpy(names, text, bytes);
    schema->text = copy;
    schema->n_args = p->n_args;
    schema->self_arg = -1;
    schema->ret = p->ret;
    schema->ret.name = names + bytes - 1;
    schema->name = names + (p->name.at - text);
    names[p->name.at - text + (ptrdiff_t)p->name.length] = '\0';
    for (uint32_t i = 0; i < p->n_args; i++) {
        const struct amp__token *name = &p->names[i];
        struct amp__arg *arg = &schema->args[i];
        *arg = p->args[i];
        arg->name = name->length ? names + (name->at - text) : names + bytes - 1;
        if (name->length) names[name->at - text + (ptrdiff_t)name->length] = '\0';
        schema->n_tensors += arg->kind == AMP__TENSOR;
        if ((arg->kind == AMP__TENSOR || arg->kind == AMP__POINTER) && !(arg->flags & AMP__LIST)
            && amp__token_is(name, "self"))
            schema->self_arg = (int32_t)i;
    }
    *out = schema;
    return AMP_OK;
}

amp_status amp__schema_parse(const char *op, const char *text, struct amp__schema **out) {
    struct parser p = { .n_args = 0 };
    if (!op) op = "op";
    AMP_RETURN_IF(!out, AMP_ERR_INVALID_ARGUMENT, "%.128s: nowhere to put the schema", op);
    AMP_RETURN_IF(!text, AMP_ERR_SCHEMA, "%.128s: it has no schema; write one as in %s", op,
                  "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
    amp__lexer_start(&p.lexer, op, text);
    AMP_TRY(take_schema(&p));
    return build(&p, out);
}
