/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, and the call functions for handlers. Return values as in libffi: an integer narrower than a register is
 * widened to a whole ffi_arg, sign- or zero-extended, other types have their own size. ffi_call writes that form and
 * the return slot of a closure takes it, so a result passes through unchanged.
 */
#include "intercept/signature.h"
#include "common/thread.h"
#include "schema/structs.h"

#include <string.h>

size_t amp__arg_size(const struct amp__schema *schema, const struct amp__arg *arg) {
    if (arg->kind == AMP__VOID) return 0; /* libffi says 1 */
    return arg->kind == AMP__STRUCT ? (size_t)schema->structs[arg->struct_index].size : amp__ffi_type(arg->kind)->size;
}

/* An array parameter is passed as a pointer: AMP__LIST changes nothing here. */
static ffi_type *type_of(const struct amp__arg *arg, ffi_type *const *structs) {
    return arg->kind == AMP__STRUCT ? structs[arg->struct_index] : amp__ffi_type(arg->kind);
}

/* Is the struct passed or returned by value? Those behind pointers only are none of libffi's business. */
static bool is_value(const struct amp__schema *schema, uint32_t index) {
    if (schema->ret.kind == AMP__STRUCT && schema->ret.struct_index == (int)index) return true;
    for (uint32_t i = 0; i < schema->n_args; i++)
        if (schema->args[i].kind == AMP__STRUCT && schema->args[i].struct_index == (int)index) return true;
    return false;
}

amp_status amp__signature_new(const struct amp__schema *schema, struct amp__signature **out) {
    struct amp__struct_needs needs = { 0, 2 * schema->n_args + 1 };
    ffi_type *structs[AMP__MAX_ARGS + 1] = { NULL };
    for (uint32_t i = 0; i < schema->n_structs; i++) {
        struct amp__struct_needs one = { 0, 0 };
        if (is_value(schema, i)) amp__struct_measure(&schema->structs[i], &one);
        needs.types += one.types;
        needs.pointers += one.pointers;
    }
    /* Types behind pointers: neither needs padding. */
    struct amp__signature *signature =
        amp__alloc(1, sizeof *signature + needs.pointers * sizeof(ffi_type *) + needs.types * sizeof(ffi_type));
    if (!signature) return amp__fail_memory();
    ffi_type **split = signature->types + schema->n_args, **pointers = split + schema->n_args + 1;
    ffi_type *types = (ffi_type *)(void *)(signature->types + needs.pointers);
    for (uint32_t i = 0; i < schema->n_structs; i++) {
        if (!is_value(schema, i)) continue;
        structs[i] = amp__struct_build(&schema->structs[i], &types, &pointers);
        if (structs[i]) continue;
        amp__free(signature);
        return amp__fail(AMP_ERR_SCHEMA, "libffi lays struct %.64s out in another way than its descriptor says",
                         schema->structs[i].name);
    }
    for (uint32_t i = 0; i < schema->n_args; i++) signature->types[i] = type_of(&schema->args[i], structs);
    amp__register_map_find(schema, &signature->map);
    if (ffi_prep_cif(&signature->cif, FFI_DEFAULT_ABI, schema->n_args, type_of(&schema->ret, structs), signature->types)
            != FFI_OK
        || !amp__split_prepare(signature, split)) {
        amp__free(signature);
        return amp__fail(AMP_ERR_UNSUPPORTED, "libffi cannot call a function of this signature");
    }
    *out = signature;
    return AMP_OK;
}

/* An integer of `kind` at `value`, sign or zero extended to 64 bits. */
static uint64_t load_integer(uint8_t kind, const void *value) {
    union {
        int8_t i8;
        uint8_t u8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        uint64_t u64;
    } x;
    switch (kind) {
#define AMP_LOAD(kind_, member)                                                                                        \
    case kind_: memcpy(&x.member, value, sizeof x.member); return (uint64_t)x.member;
        AMP_LOAD(AMP__INT8, i8)
        AMP_LOAD(AMP__UINT8, u8)
        AMP_LOAD(AMP__INT16, i16)
        AMP_LOAD(AMP__UINT16, u16)
        AMP_LOAD(AMP__INT32, i32)
        AMP_LOAD(AMP__UINT32, u32)
        AMP_LOAD(AMP__INT64, u64)
        AMP_LOAD(AMP__UINT64, u64)
#undef AMP_LOAD
    default: return 0;
    }
}

/* As it lies in a register. */
static uint64_t load_word(uint8_t kind, const void *value) {
    uint64_t word = 0;
    if (kind >= AMP__INT8 && kind <= AMP__UINT64) return load_integer(kind, value);
    if (kind == AMP__FLOAT) memcpy(&word, value, sizeof(float));
    else memcpy(&word, value, sizeof word);
    return word;
}

/* With an image of the arguments in `argv`. Those that are a stub's caller's own go on as they came. Not
 * inlined: its arrays would cost every call a canary. */
static __attribute__((noinline)) void run_in_registers(const struct amp__call *call, amp_fn function,
                                                       void *const *argv) {
    const struct amp__register_map *map = &call->signature->map;
    struct amp__registers image;
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        const uint8_t at = map->argument[i];
        image.argument[at] = call->registers && argv[i] == call->args[i]
            ? call->registers->argument[at]
            : load_word(call->schema->args[i].kind, argv[i]);
    }
    amp__registers_call(&image, function, map->n_vector);
    if (call->schema->ret.kind != AMP__VOID) memcpy(call->ret, &image.result[map->result], sizeof image.result[0]);
}

void amp__call_run(const struct amp__call *call, amp_fn function, void *const *argv) {
    const struct amp__register_map *map = &call->signature->map;
    if (call->registers && argv == call->args) amp__registers_call(call->registers, function, map->n_vector);
    else if (map->fit) run_in_registers(call, function, argv);
    else amp__split_call(call->signature, function, call->ret, argv);
}

void amp__call_rehearse(const struct amp__call *call, amp_fn function, void *const *argv) {
    const struct amp__scope_state scope = call->thread->scope;
    call->thread->scope.inside = call->thread->scope.rehearses = true;
    amp__call_run(call, function, argv);
    call->thread->scope = scope;
}

void *amp__call_returned(const struct amp__call *call) {
    void *pointer;
    memcpy(&pointer, call->ret, sizeof pointer);
    return pointer;
}

void amp__call_return_pointer(const struct amp__call *call, void *pointer) {
    memcpy(call->ret, &pointer, sizeof pointer);
}

void amp__call_return(const struct amp__call *call, const void *value) {
    const uint8_t kind = call->schema->ret.kind;
    const size_t bytes = amp__arg_size(call->schema, &call->schema->ret);
    if (kind >= AMP__INT8 && kind <= AMP__UINT64) {
        const ffi_arg wide = value ? (ffi_arg)load_integer(kind, value) : 0;
        memcpy(call->ret, &wide, bytes < sizeof wide ? sizeof wide : bytes);
    } else if (value) memcpy(call->ret, value, bytes);
    else if (bytes) memset(call->ret, 0, bytes);
}

const void *amp__call_value(const struct amp__call *call, uint32_t arg) { return call->args[arg]; }

int64_t amp__integer_at(uint8_t kind, const void *address) {
    const uint64_t value = load_integer(kind, address);
    if (kind == AMP__UINT64 && value > INT64_MAX) return INT64_MAX;
    return (int64_t)value;
}

size_t amp__call_list_length(const struct amp__call *call, uint32_t arg) {
    const struct amp__arg *list = &call->schema->args[arg];
    const int64_t n = list->count_arg >= 0 ? amp__call_integer(call, (uint32_t)list->count_arg) : list->fixed_count;
    return n > 0 ? (size_t)n : 0;
}

int64_t amp__call_integer(const struct amp__call *call, uint32_t arg) {
    return amp__integer_at(call->schema->args[arg].kind, call->args[arg]);
}
