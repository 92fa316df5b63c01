/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schemas from anywhere: they are parsed or refused, never more. An input is up to three texts with a NUL between them:
 * the schema, the members of struct s, and bytes for its size and the values of arguments. What parses must hold
 * together: the same when parsed again, extents that multiply up, a signature that libffi takes.
 */
#include "fuzz.h"

#include "intercept/intercept.h"
#include "intercept/signature.h"

#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

struct input {
    char *schema, *members;
    const unsigned char *values;
    size_t n_values;
};

/* The next of the value bytes, round and round. */
static uint64_t next_value(const struct input *input, size_t *at) {
    uint64_t value = 0;
    for (int i = 0; i < 8 && input->n_values; i++) value = value << 8 | input->values[(*at)++ % input->n_values];
    return value;
}

static void check_extents(const struct amp__call *call, uint32_t arg) {
    struct amp__extents x;
    if (amp__buffer_extents(call, arg, &x) != AMP_OK) {
        MUST(*amp_last_error());
        return;
    }
    int64_t count = 1;
    MUST(x.ndim >= 1 && x.ndim <= AMP__MAX_DIMS);
    for (int32_t i = 0; i < x.ndim; i++) {
        MUST(x.shape[i] >= 0);
        if (x.count) count *= x.shape[i];
    }
    MUST(!x.count || count == x.count);
    MUST(x.span >= x.count && (x.span > 0) == (x.count > 0));
}

static void check_schema(const struct amp__schema *schema, const struct input *input) {
    static unsigned char struct_bytes[8];
    uint64_t values[AMP__MAX_ARGS];
    void *args[AMP__MAX_ARGS];
    size_t at = 0;
    MUST(schema->n_args <= AMP__MAX_ARGS && schema->n_structs <= AMP__MAX_ARGS + 1);
    for (uint32_t i = 0; i < schema->n_args; i++) {
        const struct amp__arg *arg = &schema->args[i];
        values[i] = next_value(input, &at);
        args[i] = arg->kind == AMP__STRUCT ? (void *)struct_bytes : &values[i];
        MUST(amp__arg_size(schema, arg) > 0);
        MUST(arg->count_arg < (int)schema->n_args && arg->struct_index < (int)schema->n_structs);
    }
    const struct amp__call call = { .schema = schema, .args = args };
    for (uint32_t i = 0; i < schema->n_args; i++)
        if (schema->args[i].kind == AMP__BUFFER) check_extents(&call, i);
    struct amp__signature *signature;
    if (amp__signature_new(schema, &signature) == AMP_OK) amp__free(signature);
}

static void run(const struct input *input) {
    amp_struct structs[] = { { sizeof(amp_struct), 0, "s", 0, 0, 0, input->members },
                             { sizeof(amp_struct), 0, "vec", 12, 4, 0, "float, float, int32" },
                             { sizeof(amp_struct), 0, "layer", 1184, 8, 0, NULL } };
    struct amp__schema *schema = NULL, *again = NULL;
    if (input->n_values >= 2) {
        structs[0].size = input->values[0];
        structs[0].alignment = input->values[1];
    }
    if (amp__schema_parse("op", input->schema, structs, AMP_COUNT(structs), &schema) != AMP_OK) {
        MUST(!schema && *amp_last_error() && strlen(amp_last_error()) < 1024);
        return;
    }
    check_schema(schema, input);
    MUST(amp__schema_parse("op", schema->text, structs, AMP_COUNT(structs), &again) == AMP_OK);
    MUST(amp__schema_same(schema, again));
    amp__free(again);
    amp__free(schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = calloc(size + 3, 1); /* so that all three are there */
    if (!text) return 0;
    if (size) memcpy(text, data, size);
    struct input input = { .schema = text };
    const size_t schema = strlen(text) + 1;
    const size_t members = schema < size ? strlen(text + schema) + 1 : 0;
    input.members = members > 1 ? text + schema : NULL;
    if (schema + members < size) {
        input.values = data + schema + members;
        input.n_values = size - schema - members;
    }
    run(&input);
    free(text);
    return 0;
}
