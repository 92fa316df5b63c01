/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of raw buffers: integer expressions over the arguments of a call, as in C. The schema parser compiles them to
 * a postfix program, which runs at each call that needs it. Arithmetic is int64, and an overflow is an error.
 */
#ifndef AMP_EXPRESSION_H
#define AMP_EXPRESSION_H

#include "schema/lexer.h"

#define AMP__MAX_DIMS 8
#define AMP__MAX_OPERATIONS 64 /* of one expression */
#define AMP__MAX_NESTING 16    /* parentheses, signs and ?: inside each other */

enum amp__operation_code {
    AMP__OP_CONSTANT, /* push value */
    AMP__OP_ARGUMENT, /* push argument number `value` */
    AMP__OP_FIELD,    /* push an integer that an argument points to, or of its struct; see amp__member */
    AMP__OP_NEGATE, AMP__OP_NOT, AMP__OP_BOOLEAN, /* of the top; BOOLEAN: !!x */
    AMP__OP_MULTIPLY, AMP__OP_DIVIDE, AMP__OP_REMAINDER, AMP__OP_ADD, AMP__OP_SUBTRACT,
    AMP__OP_LESS, AMP__OP_LESS_EQUAL, AMP__OP_GREATER, AMP__OP_GREATER_EQUAL, AMP__OP_EQUAL, AMP__OP_NOT_EQUAL,
    /* `value` is the next operation. Operands that C does not evaluate are not evaluated, so that K && N/K is safe. */
    AMP__OP_AND,    /* zero: leave 0 and jump, else pop */
    AMP__OP_OR,     /* not zero: leave 1 and jump, else pop */
    AMP__OP_BRANCH, /* pop; zero: jump */
    AMP__OP_JUMP
};

struct amp__operation {
    int64_t value;
    uint8_t code; /* enum amp__operation_code */
};

/* The value of AMP__OP_FIELD. */
struct amp__member {
    uint32_t offset; /* bytes, in the struct */
    uint8_t kind;    /* enum amp__kind: an integer */
    uint8_t argument;
};
static inline int64_t amp__member_pack(struct amp__member f) {
    return (int64_t)((uint64_t)f.offset << 16 | (uint64_t)f.kind << 8 | f.argument);
}
static inline struct amp__member amp__member_unpack(int64_t value) {
    return (struct amp__member){ (uint32_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value };
}

struct amp__expression {
    const char *text; /* in the schema's own memory, `length` bytes, for messages */
    const struct amp__operation *operations;
    uint32_t length, n;
};

/* The names for an expression: arguments, with their kinds to find integers, and members of structs. */
struct amp__arg;
struct amp__struct;
struct amp__scope_of_names {
    const struct amp__token *names;
    const struct amp__arg *args;
    const struct amp__struct *structs;
    uint32_t n;
};

/* Reads one expression into `operations`, with room for AMP__MAX_OPERATIONS, and moves the lexer behind it. names NULL:
 * names are not looked up (arguments may be used before they are declared), but the length is right. */
amp_status amp__expression_take(struct amp__lexer *lexer, const struct amp__scope_of_names *names,
                                struct amp__operation *operations, uint32_t *n);

#endif
