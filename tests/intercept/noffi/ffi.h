/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libffi that can do nothing, for registers.c: no closures (as on a system that denies them), no calls, no structs by
 * value. It lets src/intercept/ be compiled for a machine whose libffi is not at hand. Names and types are libffi's.
 */
#ifndef TEST_NOFFI_H
#define TEST_NOFFI_H

#include <stddef.h>
#include <stdlib.h>

typedef struct ffi_type {
    size_t size;
    unsigned short alignment, type;
    struct ffi_type **elements;
} ffi_type;
typedef struct {
    unsigned nargs;
    ffi_type **arg_types, *rtype;
} ffi_cif;
typedef struct {
    int unused;
} ffi_closure;
typedef unsigned long ffi_arg;
typedef enum { FFI_OK, FFI_BAD_TYPEDEF } ffi_status;
enum { FFI_DEFAULT_ABI = 1, FFI_TYPE_FLOAT = 2, FFI_TYPE_DOUBLE = 3, FFI_TYPE_STRUCT = 13 };

#define NOFFI_TYPE(name, bytes) static ffi_type ffi_type_##name __attribute__((unused)) = { bytes, bytes, 0, NULL }
NOFFI_TYPE(void, 1);
NOFFI_TYPE(sint8, 1);
NOFFI_TYPE(uint8, 1);
NOFFI_TYPE(sint16, 2);
NOFFI_TYPE(uint16, 2);
NOFFI_TYPE(sint32, 4);
NOFFI_TYPE(uint32, 4);
NOFFI_TYPE(sint64, 8);
NOFFI_TYPE(uint64, 8);
NOFFI_TYPE(float, 4);
NOFFI_TYPE(double, 8);
NOFFI_TYPE(pointer, 8);

#define NOFFI static inline __attribute__((unused))
NOFFI ffi_status ffi_get_struct_offsets(int abi, ffi_type *type, size_t *offsets) {
    return (void)abi, (void)type, (void)offsets, FFI_BAD_TYPEDEF;
}
NOFFI ffi_status ffi_prep_cif(ffi_cif *cif, int abi, unsigned n, ffi_type *ret, ffi_type **types) {
    return (void)abi, *cif = (ffi_cif){ n, types, ret }, FFI_OK;
}
NOFFI void *ffi_closure_alloc(size_t size, void **code) { return (void)size, (void)code, NULL; }
NOFFI void ffi_closure_free(void *closure) { (void)closure; }
NOFFI ffi_status ffi_prep_closure_loc(ffi_closure *closure, ffi_cif *cif, void (*f)(ffi_cif *, void *, void **, void *),
                                      void *user, void *code) {
    return (void)closure, (void)cif, (void)f, (void)user, (void)code, FFI_BAD_TYPEDEF;
}
NOFFI void ffi_call(ffi_cif *cif, void (*f)(void), void *ret, void **args) {
    (void)cif, (void)f, (void)ret, (void)args, abort();
}

#endif
