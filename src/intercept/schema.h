/* SPDX-License-Identifier: Apache-2.0 */
/* An op's schema: PyTorch operator-schema notation with C types, parsed into plain data. docs/schema.md has the
 * grammar. */
#ifndef AMP_SCHEMA_H
#define AMP_SCHEMA_H

#include "common/common.h"

enum amp__kind {
    AMP__VOID, /* returns only */
    AMP__INT8, AMP__UINT8, AMP__INT16, AMP__UINT16, AMP__INT32, AMP__UINT32, AMP__INT64, AMP__UINT64,
    AMP__FLOAT, AMP__DOUBLE,
    AMP__POINTER, /* anything that is passed on untouched: strings, contexts, callbacks, scalar arrays */
    AMP__TENSOR   /* a handle, or with AMP__LIST a pointer to an array of handles */
};

enum {
    AMP__OPTIONAL = 1u << 0,   /* Tensor?: may be NULL; Tensor?[]: its entries may */
    AMP__LIST = 1u << 1,       /* Tensor[] */
    AMP__READ_WRITE = 1u << 2, /* (a!); of a return: it is one of the written arguments, handed back */
    AMP__WRITE = 1u << 3,      /* (out a!) */
    AMP__KEEP = 1u << 4,       /* (keep): never cast */
    AMP__SEED = 1u << 5        /* (seed) */
};

#define AMP__MAX_ARGS 64

struct amp__arg {
    const char *name; /* in the schema's own memory; "" for a return and for an argument without a name */
    uint8_t kind; /* enum amp__kind */
    uint8_t flags;
    int16_t count_arg;    /* lists: index of the integer argument that counts them, or -1 */
    uint32_t fixed_count; /* lists: Tensor[3] */
};

/* Immutable once parsed; one allocation. */
struct amp__schema {
    const char *text; /* as given, for messages and for comparing */
    const char *name; /* of the op inside the schema text, e.g. "linear" */
    uint32_t n_args;
    int32_t self_arg;   /* index of the argument named self if it is a pointer or Tensor, else -1 */
    uint32_t n_tensors; /* arguments of kind AMP__TENSOR; a list is one */
    struct amp__arg ret;
    struct amp__arg args[];
};

/*
 * AMP_ERR_SCHEMA with a message of the form
 *     linear: expected a type
 *       linear(Tensro input) -> Tensor
 *              ^ did you mean Tensor?
 * where `op` is the op's name, for the first line. Long schemas are shown around the fault, so that the message always
 * fits amp_last_error. *out is freed with amp__free.
 */
amp_status amp__schema_parse(const char *op, const char *text, struct amp__schema **out);

#endif
