/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed schema in words, to compare it with what it should mean; and tables of good texts and bad ones. */
#ifndef TEST_INTERCEPT_DESCRIBE_H
#define TEST_INTERCEPT_DESCRIBE_H

#include "common/common.h"
#include "schema/schema.h"
#include "suite.h"

#include <ctype.h>
#include <stdio.h>

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

struct good {
    const char *text, *means;
};

static inline void check_good(const struct good *row, const amp_struct *structs, size_t n_structs) {
    struct amp__schema *schema = NULL;
    char words[512];
    amp__text means = { words, sizeof words, 0 };
    ck_ok(amp__schema_parse("op", row->text, structs, n_structs, &schema));
    ck_assert_str_eq(schema->text, row->text);
    ck_assert_ptr_ne(schema->text, row->text);
    describe(schema, &means);
    ck_assert_str_eq(words, row->means);
    amp__free(schema);
}

/* A '^' in the text is the message's, which quotes the text and points there: it is no part of the schema. */
struct bad {
    const char *text, *says, *hint;
};

/* Copies a text without its '^' and returns where that was; -1: nowhere. */
static inline int take_caret(char *dst, size_t size, const char *text) {
    const char *caret = strchr(text, '^');
    const int at = caret ? (int)(caret - text) : -1;
    snprintf(dst, size, "%.*s%s", caret ? at : 0, text, caret ? caret + 1 : text);
    return at;
}

static inline void check_bad(const struct bad *row, const amp_struct *structs, size_t n_structs) {
    struct amp__schema *schema = (struct amp__schema *)&schema, *const before = schema;
    char text[512], shown[512], expected[1024];
    amp__text message = { expected, sizeof expected, 0 };
    const int caret = take_caret(text, sizeof text, row->text);
    for (size_t i = 0; i <= strlen(text); i++) shown[i] = text[i] && !isprint((unsigned char)text[i]) ? '?' : text[i];
    amp__text_add(&message, "linear: %s", row->says);
    if (caret >= 0) amp__text_add(&message, "\n  %s\n%*s^", shown, caret + 2, "");
    if (row->hint) amp__text_add(&message, " %s", row->hint);
    ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("linear", text, structs, n_structs, &schema));
    ck_assert_str_eq(amp_last_error(), expected);
    ck_assert_ptr_eq(schema, before); /* untouched */
}

/* A good schema with every byte removed or replaced: an answer, in bounds (the sanitizers watch). How many are bad. */
static inline size_t check_damaged(const struct good *row, const char *bytes, const amp_struct *structs,
                                   size_t n_structs) {
    const size_t length = strlen(row->text);
    size_t refused = 0;
    for (size_t i = 0; i < length * (strlen(bytes) + 1); i++) {
        const size_t at = i % length;
        struct amp__schema *schema = NULL;
        char *text = strdup(row->text); /* with nothing beyond its end */
        if (bytes[i / length]) text[at] = bytes[i / length];
        else memmove(text + at, text + at + 1, length - at);
        const amp_status status = amp__schema_parse("op", text, structs, n_structs, &schema);
        ck_assert(status == AMP_OK || status == AMP_ERR_SCHEMA);
        ck_assert((status == AMP_OK) == (schema != NULL));
        refused += status != AMP_OK;
        amp__free(schema);
        free(text);
    }
    return refused;
}

#endif
