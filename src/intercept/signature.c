/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, and what a handler does with a call. libffi's rule for returns: an integer narrower than a register is
 * widened to a whole ffi_arg, sign or zero extended; everything else has its own size. ffi_call writes that form and a
 * closure's return slot takes it, so a result passes from the original to the caller without being looked at.
 */
#include "intercept/signature.h"

#include <string.h>

static ffi_type *ffi_type_of(uint8_t kind) {
    static ffi_type *const types[] = {
        [AMP__VOID] = &ffi_type_void,     [AMP__INT8] = &ffi_type_sint8,      [AMP__UINT8] = &ffi_type_uint8,
        [AMP__INT16] = &ffi_type_sint16,  [AMP__UINT16] = &ffi_type_uint16,   [AMP__INT32] = &ffi_type_sint32,
        [AMP__UINT32] = &ffi_type_uint32, [AMP__INT64] = &ffi_type_sint64,    [AMP__UINT64] = &ffi_type_uint64,
        [AMP__FLOAT] = &ffi_type_float,   [AMP__DOUBLE] = &ffi_type_double,   [AMP__POINTER] = &ffi_type_pointer,
        [AMP__TENSOR] = &ffi_type_pointer,
    };
    return types[kind];
}

amp_status amp__signature_new(const struct amp__schema *schema, struct amp__signature **out) {
    struct amp__signature *signature = amp__alloc(1, sizeof *signature + schema->n_args * sizeof(ffi_type *));
    if (!signature) return amp__fail_memory();
    for (uint32_t i = 0; i < schema->n_args; i++)
        /* Tensor[] is an array parameter, which C passes as a pointer: the flag changes nothing here. */
        signature->types[i] = ffi_type_of(schema->args[i].kind);
    if (ffi_prep_cif(&signature->cif, FFI_DEFAULT_ABI, schema->n_args, ffi_type_of(schema->ret.kind), signature->types)
        != FFI_OK) {
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

void amp__call_run(const struct amp__call *call, amp_fn function, void *const *argv) {
    /* libffi reads both and writes neither, but its prototype does not say so. */
    ffi_call((ffi_cif *)&call->signature->cif, function, call->ret, (void **)argv);
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
    static const uint64_t zeros;
    if (!value) value = &zeros;
    switch (call->schema->ret.kind) {
    case AMP__VOID: return;
    case AMP__FLOAT: memcpy(call->ret, value, sizeof(float)); return;
    case AMP__DOUBLE:
    case AMP__INT64:
    case AMP__UINT64: memcpy(call->ret, value, sizeof(uint64_t)); return;
    case AMP__POINTER:
    case AMP__TENSOR: memcpy(call->ret, value, sizeof(void *)); return;
    default: {
        const ffi_arg wide = (ffi_arg)load_integer(call->schema->ret.kind, value);
        memcpy(call->ret, &wide, sizeof wide);
    }
    }
}

void *amp__call_pointer(const struct amp__call *call, uint32_t arg) {
    void *pointer;
    memcpy(&pointer, call->args[arg], sizeof pointer);
    return pointer;
}

int64_t amp__call_integer(const struct amp__call *call, uint32_t arg) {
    const uint8_t kind = call->schema->args[arg].kind;
    const uint64_t value = load_integer(kind, call->args[arg]);
    if (kind == AMP__UINT64 && value > INT64_MAX) return INT64_MAX;
    return (int64_t)value;
}
