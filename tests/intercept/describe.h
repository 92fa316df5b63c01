/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed schema in words, to compare it with what it should mean. */
#ifndef TEST_INTERCEPT_DESCRIBE_H
#define TEST_INTERCEPT_DESCRIBE_H

#include "schema/schema.h"
#include "suite.h"

static inline void describe_type(amp__text *text, const struct amp__arg *arg) {
    static const char *const kinds[] = { "void", "i8",  "u8",  "i16",     "u16",     "i32",   "u32",
                                         "i64",  "u64", "float", "double", "pointer", "Tensor" };
    if (arg->kind < AMP_COUNT(kinds)) amp__text_add(text, "%s", kinds[arg->kind]);
    else if (arg->kind == AMP__BUFFER) amp__text_add(text, "%s*", amp__dtype_name(arg->dtype));
    else amp__text_add(text, "struct %d%s", arg->struct_index, arg->kind == AMP__STRUCT_POINTER ? " *" : "");
    if (arg->flags & AMP__OUT_PARAMETER) amp__text_add(text, "*");
    if (arg->flags & AMP__OPTIONAL) amp__text_add(text, "?");
    if (arg->flags & AMP__LIST) {
        if (arg->fixed_count) amp__text_add(text, "[%u]", arg->fixed_count);
        else amp__text_add(text, "[#%d]", arg->count_arg);
    }
    if (arg->flags & AMP__READ_WRITE) amp__text_add(text, "!");
    if (arg->flags & AMP__WRITE) amp__text_add(text, " out");
    if (arg->flags & AMP__KEEP) amp__text_add(text, " keep");
    if (arg->flags & AMP__SEED) amp__text_add(text, " seed");
    ck_assert((arg->kind == AMP__STRUCT || arg->kind == AMP__STRUCT_POINTER) == (arg->struct_index >= 0));
    ck_assert(arg->count_arg == -1 || (arg->flags & AMP__LIST));
}

/* The expressions as messages quote them. */
static inline void describe_extents(const struct amp__schema *schema, const struct amp__arg *arg, amp__text *text) {
    const struct amp__expression *expression = &schema->expressions[arg->first_extent];
    amp__text_add(text, "%s", arg->flags & AMP__EXTENT_UNKNOWN ? "[?" : "[");
    ck_assert_int_eq(!arg->ndim, (arg->flags & AMP__EXTENT_UNKNOWN) != 0);
    for (uint32_t i = 0; i < arg->ndim; i++, expression++)
        amp__text_add(text, "%s%.*s", i ? ", " : "", (int)expression->length, expression->text);
    if (arg->flags & AMP__STRIDED) amp__text_add(text, " : %.*s", (int)expression->length, expression->text);
    amp__text_add(text, "]");
}

static inline void describe(const struct amp__schema *schema, amp__text *text) {
    amp__text_add(text, "%s(", schema->name);
    for (uint32_t i = 0; i < schema->n_args; i++) {
        amp__text_add(text, "%s", i ? ", " : "");
        describe_type(text, &schema->args[i]);
        if (*schema->args[i].name) amp__text_add(text, " %s", schema->args[i].name);
        if (schema->args[i].kind == AMP__BUFFER) describe_extents(schema, &schema->args[i], text);
    }
    amp__text_add(text, ") -> ");
    describe_type(text, &schema->ret);
    amp__text_add(text, ", self %d, tensors %u", schema->self_arg, schema->n_tensors);
}

#endif
