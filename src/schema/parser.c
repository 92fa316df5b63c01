/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schema as a whole. Recursive descent; only extents (compiler.c) recurse. A schema is read into fixed arrays on
 * the stack first, and built in one allocation once its size is known.
 */
#include "amp_raw.h"
#include "schema/schema.h"
#include "schema/parser.h"
#include "schema/structs.h"

#include <string.h>

/* ---- arguments and return ---- */

/* Returns a hint for other notations behind an argument. */
static const char *hint_behind_argument(const struct amp__token *token) {
    if (amp__token_is(token, "*")) return "write pointer for a C pointer";
    if (amp__token_is(token, "=")) return "a C function has no default arguments";
    if (amp__token_is(token, "double")) return "a comma is missing before it (long double is not in this version)";
    if (token->kind == AMP__TOKEN_WORD) return "a comma is missing before it";
    return NULL;
}

static amp_status take_arguments(struct amp__parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    if (!amp__lexer_take(lexer, "(")) return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected '('");
    if (amp__lexer_take(lexer, ")")) return AMP_OK;
    do {
        AMP_TRY(amp__parser_take_argument(p));
    } while (amp__lexer_take(lexer, ","));
    if (!amp__lexer_take(lexer, ")"))
        return amp__lexer_fault(lexer, lexer->token.at, hint_behind_argument(&lexer->token), "expected ',' or ')'");
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
 * of the list's is certain, else it is the integer behind the list or the one named n, if these are not two. */
static amp_status find_count(struct amp__parser *p, uint32_t list) {
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

amp_status amp__parser_take_schema(struct amp__parser *p) {
    struct amp__lexer *lexer = &p->lexer;
    if (lexer->token.kind != AMP__TOKEN_WORD)
        return amp__lexer_fault(lexer, lexer->token.at, "as in linear(Tensor input, Tensor weight) -> Tensor",
                                "expected the op's name");
    amp__lexer_extend_name(lexer);
    p->name = lexer->token;
    amp__lexer_advance(lexer);
    AMP_TRY(take_arguments(p));
    if (!amp__lexer_take(lexer, "->"))
        return amp__lexer_fault(lexer, lexer->token.at, "write -> void if it returns nothing", "expected '->'");
    AMP_TRY(amp__parser_take_return(p));
    if (lexer->token.kind != AMP__TOKEN_END)
        return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected the end of the schema");
    for (uint32_t i = 0; i < p->n_args; i++) {
        if ((p->args[i].flags & AMP__LIST) && !p->args[i].fixed_count) AMP_TRY(find_count(p, i));
        if (p->extents[i].length) AMP_TRY(amp__parser_compile(p, i, NULL, NULL));
    }
    return AMP_OK;
}

/* Where the parts of the one allocation begin; the widest come first, so that none needs padding. */
struct parts {
    size_t structs, expressions, operations, text, names, strings, end;
};

static struct parts lay_out_schema(const struct amp__parser *p) {
    struct parts parts;
    const size_t text = strlen(p->lexer.text) + 1;
    parts.structs = sizeof(struct amp__schema) + p->n_args * sizeof(struct amp__arg);
    parts.expressions = parts.structs + p->n_structs * sizeof(struct amp__struct);
    parts.operations = parts.expressions + p->n_expressions * sizeof(struct amp__expression);
    parts.text = parts.operations + p->n_operations * sizeof(struct amp__operation);
    parts.names = parts.text + text;
    parts.strings = parts.names + text;
    parts.end = parts.strings;
    for (uint32_t i = 0; i < p->n_structs; i++)
        parts.end += strlen(p->structs[i].name) + 1 + (p->structs[i].members ? strlen(p->structs[i].members) + 1 : 0);
    return parts;
}

static char *add_string(char **end, const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *copy = memcpy(*end, text, bytes);
    *end += bytes;
    return copy;
}

static void build_structs(const struct amp__parser *p, struct amp__struct *structs, char *strings) {
    for (uint32_t i = 0; i < p->n_structs; i++) {
        structs[i] = p->structs[i];
        structs[i].name = add_string(&strings, p->structs[i].name);
        if (p->structs[i].members) structs[i].members = add_string(&strings, p->structs[i].members);
    }
}

/* Their texts point into the copy then, and end before the white space that follows them. */
static amp_status build_extents(const struct amp__parser *p, struct amp__expression *expressions,
                                struct amp__operation *operations, const char *copy) {
    struct amp__expression *end = expressions;
    for (uint32_t i = 0; i < p->n_args; i++)
        if (p->args[i].kind == AMP__BUFFER) AMP_TRY(amp__parser_compile(p, i, &end, &operations));
    for (; expressions < end; expressions++) {
        expressions->text = copy + (expressions->text - p->lexer.text);
        while (strchr(" \t\n\v\f\r", expressions->text[expressions->length - 1])) expressions->length--;
    }
    return AMP_OK;
}

/* Adds up the properties of all arguments. */
static void sum_up(struct amp__schema *schema, uint32_t i) {
    const struct amp__arg *arg = &schema->args[i];
    schema->n_tensors += arg->kind == AMP__TENSOR;
    schema->n_buffers += arg->kind == AMP__BUFFER;
    if (arg->kind == AMP__TENSOR && amp__may_cast(arg->flags)) schema->operand_flags |= arg->flags;
    schema->takes_structs |= arg->kind == AMP__STRUCT || arg->kind == AMP__STRUCT_POINTER;
    if (arg->kind <= AMP__DOUBLE) schema->numbers[schema->n_numbers++] = (uint8_t)i;
    if (arg->kind == AMP__STRUCT) schema->struct_args[schema->n_struct_args++] = (uint8_t)i;
    if (arg->kind == AMP__STRUCT_POINTER) schema->struct_pointers[schema->n_struct_pointers++] = (uint8_t)i;
    schema->takes_pointers |= arg->kind == AMP__POINTER && !(arg->flags & AMP__STATELESS);
}

/* Builds the arguments. The text is copied twice: as it is, and cut into names. The byte behind each name is free. */
static void build_args(const struct amp__parser *p, struct amp__schema *schema, char *names) {
    const char *text = p->lexer.text;
    char *const none = names + strlen(text);
    schema->n_args = p->n_args;
    schema->self_arg = -1;
    schema->ret = p->ret;
    schema->ret.name = none;
    schema->name = names + (p->name.at - text);
    names[p->name.at - text + (ptrdiff_t)p->name.length] = '\0';
    for (uint32_t i = 0; i < p->n_args; i++) {
        const struct amp__token *name = &p->names[i];
        struct amp__arg *arg = &schema->args[i];
        *arg = p->args[i];
        arg->name = name->length ? names + (name->at - text) : none;
        if (name->length) names[name->at - text + (ptrdiff_t)name->length] = '\0';
        sum_up(schema, i);
        if ((arg->kind == AMP__TENSOR || arg->kind == AMP__POINTER || arg->kind == AMP__STRUCT_POINTER)
            && !(arg->flags & (AMP__LIST | AMP__OUT_PARAMETER)) && amp__token_is(name, "self"))
            schema->self_arg = (int32_t)i;
    }
}

static amp_status build_schema(const struct amp__parser *p, struct amp__schema **out) {
    const struct parts parts = lay_out_schema(p);
    struct amp__schema *schema = amp__alloc(parts.end, 1);
    if (!schema) return amp__fail_memory();
    char *const base = (char *)schema;
    struct amp__struct *structs = (struct amp__struct *)(void *)(base + parts.structs);
    struct amp__expression *expressions = (struct amp__expression *)(void *)(base + parts.expressions);
    memcpy(base + parts.text, p->lexer.text, parts.names - parts.text);
    memcpy(base + parts.names, p->lexer.text, parts.names - parts.text);
    build_args(p, schema, base + parts.names);
    build_structs(p, structs, base + parts.strings);
    const amp_status status = build_extents(
        p, expressions, (struct amp__operation *)(void *)(base + parts.operations), base + parts.text);
    if (status != AMP_OK) {
        amp__free(schema);
        return status;
    }
    atomic_init(&schema->holders, 1);
    schema->text = base + parts.text;
    schema->n_structs = p->n_structs;
    schema->structs = structs;
    schema->expressions = expressions;
    *out = schema;
    return AMP_OK;
}

amp_status amp__schema_parse(const char *op, const char *text, const amp_struct *structs, size_t n_structs,
                             struct amp__schema **out) {
    struct amp__parser p = { .known = structs, .n_known = n_structs };
    if (!op) op = "op";
    AMP_RETURN_IF(!out, AMP_ERR_INVALID_ARGUMENT, "%.128s: nowhere to put the schema", op);
    AMP_RETURN_IF(!text, AMP_ERR_SCHEMA, "%.128s: it has no schema; write one as in %s", op,
                  "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
    AMP_RETURN_IF(n_structs && !structs, AMP_ERR_INVALID_ARGUMENT, "%.128s: structs is NULL, but n_structs is %zu", op,
                  n_structs);
    amp__lexer_start(&p.lexer, op, text);
    const amp_status status = amp__parser_take_schema(&p);
    return status == AMP_OK ? build_schema(&p, out) : amp__parser_fail_prototype(&p, status);
}

struct amp__schema *amp__schema_hold(struct amp__schema *schema) {
    atomic_fetch_add_explicit(&schema->holders, 1, memory_order_relaxed);
    return schema;
}

void amp__schema_release(struct amp__schema *schema) {
    if (schema && atomic_fetch_sub_explicit(&schema->holders, 1, memory_order_acq_rel) == 1) amp__free(schema);
}

static bool same_string(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* Equal texts name equal structs in equal order. */
uint32_t amp__arg_position(const struct amp__schema *schema, const char *name) {
    uint32_t i = 0;
    while (i < schema->n_args && (!schema->args[i].name || strcmp(schema->args[i].name, name) != 0)) i++;
    return i;
}

bool amp__schema_same(const struct amp__schema *a, const struct amp__schema *b) {
    if (strcmp(a->text, b->text) != 0) return false;
    for (uint32_t i = 0; i < a->n_structs; i++) {
        const struct amp__struct *x = &a->structs[i], *y = &b->structs[i];
        if (x->size != y->size || x->alignment != y->alignment || !same_string(x->members, y->members)) return false;
    }
    return true;
}
