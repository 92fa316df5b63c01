/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86-64 passes a struct of 9 to 16 bytes in two registers, one for each half. ffi_call before libffi 3.4.7 copies the
 * whole struct to the register of the first half, and behind the last general register is the first vector register: an
 * integer half in the last general register followed by a floating half overwrites the first floating argument. So such
 * a struct is passed to ffi_call as two numbers, which is the same call.
 */
#include "intercept/signature.h"

#include <string.h>

#if AMP__GENERAL == 6

/* Marks the halves that hold anything but floats. */
static void mark_integers(const ffi_type *type, size_t at, bool integer[2]) {
    if (type->type != FFI_TYPE_STRUCT) {
        if (type->type != FFI_TYPE_FLOAT && type->type != FFI_TYPE_DOUBLE) integer[at / 8] = true;
        return;
    }
    for (ffi_type *const *element = type->elements; *element; element++) {
        const size_t alignment = (*element)->alignment;
        at = (at + alignment - 1) / alignment * alignment;
        mark_integers(*element, at, integer);
        at += (*element)->size;
    }
}

/* Returns the argument with halves in the last general register and in a vector register other than the first. nargs:
 * none. */
static uint32_t find_split_argument(const ffi_cif *cif) {
    uint32_t general = cif->rtype->type == FFI_TYPE_STRUCT && cif->rtype->size > 16, vector = 0;
    for (uint32_t i = 0; i < cif->nargs; i++) {
        const ffi_type *type = cif->arg_types[i];
        bool integer[2] = { false, false };
        if (type->size > 16) continue; /* in memory */
        mark_integers(type, 0, integer);
        const uint32_t n = type->size > 8 ? 2 : 1, n_general = (uint32_t)integer[0] + (uint32_t)integer[1];
        if (general + n_general > AMP__GENERAL || vector + n - n_general > AMP__VECTOR) continue; /* on the stack */
        general += n_general;
        if (n == 2 && integer[0] && !integer[1] && general == AMP__GENERAL && vector > 0) return i;
        vector += n - n_general;
    }
    return cif->nargs;
}

bool amp__split_prepare(struct amp__signature *signature, ffi_type **types) {
    const ffi_cif *cif = &signature->cif;
    const uint32_t n = cif->nargs, at = find_split_argument(cif);
    signature->split = at;
    if (at == n) return true;
    memcpy(types, cif->arg_types, at * sizeof *types);
    types[at] = &ffi_type_uint64;
    types[at + 1] = cif->arg_types[at]->size == 12 ? &ffi_type_float : &ffi_type_double;
    memcpy(types + at + 2, cif->arg_types + at + 1, (n - at - 1) * sizeof *types);
    return ffi_prep_cif(&signature->split_cif, FFI_DEFAULT_ABI, n + 1, cif->rtype, types) == FFI_OK;
}

#else

bool amp__split_prepare(struct amp__signature *signature, ffi_type **types) {
    (void)types;
    signature->split = signature->cif.nargs;
    return true;
}

#endif

void amp__split_call(const struct amp__signature *signature, amp_fn function, void *result, void *const *argv) {
    /* ffi_call replaces pointers by pointers to copies of large structs, which end with it, and argv may be used again.
     * It only reads the cif, although its prototype is not const. */
    void *values[AMP__MAX_ARGS + 1];
    const uint32_t n = signature->cif.nargs, at = signature->split;
    if (at == n) {
        memcpy(values, argv, n * sizeof *values);
        ffi_call((ffi_cif *)&signature->cif, function, result, values);
        return;
    }
    memcpy(values, argv, (at + 1) * sizeof *values);
    values[at + 1] = (char *)argv[at] + 8;
    memcpy(values + at + 2, argv + at + 1, (n - at - 1) * sizeof *values);
    ffi_call((ffi_cif *)&signature->split_cif, function, result, values);
}
