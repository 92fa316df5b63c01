/* SPDX-License-Identifier: Apache-2.0 */
/* A schema as libffi sees it. Private to this room. */
#ifndef AMP_SIGNATURE_H
#define AMP_SIGNATURE_H

#include "intercept/intercept.h"
#include "intercept/registers.h"
#include "schema/structs.h"

#include <ffi.h>

/* Must live as long as any closure made with it: the cif points into types, and they at each other. */
struct amp__signature {
    struct amp__register_map map;
    ffi_cif cif;
    ffi_cif split_cif; /* for ffi_call, with this argument as two: split.c */
    uint32_t split;    /* cif.nargs: none */
    ffi_type *types[]; /* types of the arguments, then those for structs and split_cif */
};

/* *out is freed with amp__free. */
amp_status amp__signature_new(const struct amp__schema *schema, struct amp__signature **out);

/* Prepares the split call of a signature with a prepared cif. `types`: room for one type more than it has arguments,
 * kept. False: libffi refuses. */
bool amp__split_prepare(struct amp__signature *signature, ffi_type **types);
/* ffi_call, right. */
void amp__split_call(const struct amp__signature *signature, amp_fn function, void *result, void *const *argv);

#endif
