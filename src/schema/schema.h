/* SPDX-License-Identifier: Apache-2.0 */
/* An op's schema: PyTorch operator-schema notation with C types, parsed into plain data. docs/reference/schema.md has
 * the grammar. */
#ifndef AMP_SCHEMA_H
#define AMP_SCHEMA_H

#include "amp_raw.h"
#include "common/common.h"
#include "schema/expression.h"

#include <stdatomic.h>

enum amp__kind {
    AMP__VOID, /* returns only */
    AMP__INT8, AMP__UINT8, AMP__INT16, AMP__UINT16, AMP__INT32, AMP__UINT32, AMP__INT64, AMP__UINT64,
    AMP__FLOAT, AMP__DOUBLE,
    AMP__POINTER,       /* anything that is passed on untouched: strings, contexts, callbacks, arrays of integers */
    AMP__TENSOR,        /* a handle, or with AMP__LIST a pointer to an array of handles */
    AMP__BUFFER,        /* a pointer to floating elements of type `dtype`, with extents */
    AMP__STRUCT,        /* schema->structs[struct_index] by value */
    AMP__STRUCT_POINTER /* a pointer to one */
};

static inline bool amp__is_integer(uint8_t kind) { return kind >= AMP__INT8 && kind <= AMP__UINT64; }

enum {
    AMP__OPTIONAL = 1u << 0,       /* Tensor?, float? x[N]: may be NULL; Tensor?[]: its entries may */
    AMP__LIST = 1u << 1,           /* Tensor[] */
    AMP__READ_WRITE = 1u << 2,     /* (a!); of a return: it is one of the written arguments, handed back */
    AMP__WRITE = 1u << 3,          /* (out a!) */
    AMP__KEEP = 1u << 4,           /* (keep): never cast */
    AMP__SEED = 1u << 5,           /* (seed) */
    AMP__OUT_PARAMETER = 1u << 6,  /* Tensor(out a!)*: points to a handle (with AMP__LIST: to handles) that the op
                                      writes; AMP__WRITE is set too. AMP__OPTIONAL: the pointer may be NULL */
    AMP__EXTENT_UNKNOWN = 1u << 7, /* float w[?]: as long as the registered buffer that it points into */
    AMP__STRIDED = 1u << 8,        /* a buffer with a row stride: x[M, N : ld] */
    AMP__STATELESS = 1u << 9       /* a pointer to const, or to integers with extents */
};

/* May the policy cast a Tensor argument with these flags? */
static inline bool amp__may_cast(uint16_t flags) { return !(flags & (AMP__WRITE | AMP__KEEP | AMP__SEED)); }

#define AMP__MAX_ARGS 64

struct amp__arg {
    const char *name; /* in the memory of the schema ("" for a return and for an argument without a name) */
    uint8_t kind;     /* enum amp__kind */
    uint8_t dtype;    /* buffers: amp_dtype of an element */
    uint16_t flags;
    int16_t count_arg;     /* lists: index of the integer argument that counts them, or -1 */
    int16_t struct_index;  /* structs and pointers to them: index in schema->structs (others: -1) */
    uint32_t fixed_count;  /* lists: Tensor[3] */
    uint16_t ndim;         /* buffers: number of dimensions (0 with AMP__EXTENT_UNKNOWN) */
    uint16_t first_extent; /* buffers: schema->expressions[first_extent + i] is extent i, then comes the row stride */
    uint8_t pointed;       /* pointers to an integer, which extents may read: its kind (others: 0) */
};

/* A copy of an amp_struct. */
struct amp__struct {
    const char *name;
    const char *members; /* NULL: unknown */
    uint64_t size;       /* 0: unknown, for a struct behind pointers only */
    uint32_t alignment;
};

/* Immutable once parsed, in one allocation. */
struct amp__schema {
    _Atomic(uint32_t) holders; /* an op, and the closure that its slot got, which outlives it */
    const char *text; /* as given, for messages and for comparing */
    const char *name; /* of the op inside the schema text, e.g. "linear" */
    uint32_t n_args;
    int32_t self_arg;   /* index of the argument named self if it is a pointer or Tensor, else -1 */
    uint32_t n_tensors; /* arguments of kind AMP__TENSOR (a list is one) */
    uint32_t n_buffers; /* arguments of kind AMP__BUFFER */
    uint32_t n_structs; /* that the schema names */
    uint16_t operand_flags; /* of all Tensor arguments that the policy may cast */
    bool takes_structs;     /* an argument is a struct, or points to one */
    bool takes_pointers;    /* an argument is a pointer behind which the op may keep state */
    uint8_t n_numbers, n_struct_args, n_struct_pointers;
    uint8_t numbers[AMP__MAX_ARGS];     /* indices of the arguments that are numbers by value */
    uint8_t struct_args[AMP__MAX_ARGS]; /* indices of the arguments that are structs by value */
    uint8_t struct_pointers[AMP__MAX_ARGS]; /* and of those that point to one */
    const struct amp__struct *structs;
    const struct amp__expression *expressions;
    struct amp__arg ret;
    struct amp__arg args[];
};

/*
 * `structs`: what `struct x` may name (amp.h: amp_struct; the stride is structs[0].struct_size). NULL and 0: nothing.
 * What the schema uses of it is copied. AMP_ERR_SCHEMA with a message of the form
 *     linear: expected a type
 *       linear(Tensro input) -> Tensor
 *              ^ did you mean Tensor?
 * where `op` is the op's name, for the first line. Long schemas are shown around the fault, so that the message always
 * fits amp_last_error. AMP_ERR_ABI_MISMATCH for a struct_size. *out is held once.
 */
amp_status amp__schema_parse(const char *op, const char *text, const amp_struct *structs, size_t n_structs,
                             struct amp__schema **out);

/* Adds a holder. Each releases it in the end. Releasing NULL has no effect. */
struct amp__schema *amp__schema_hold(struct amp__schema *schema);
void amp__schema_release(struct amp__schema *schema);

/* The same text over the same structs: may both describe one function? */
bool amp__schema_same(const struct amp__schema *a, const struct amp__schema *b);

/* Returns the bytes of a value as passed to the op: for all kinds of pointers those of a pointer, for void 0. */
size_t amp__arg_size(const struct amp__schema *schema, const struct amp__arg *arg);

/* Returns the index of the first argument with this name, or the number of arguments. */
uint32_t amp__arg_position(const struct amp__schema *schema, const char *name);

#endif
