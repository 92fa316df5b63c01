/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's structs: looked up by name in its descriptors (amp.h: amp_struct), checked, and given to libffi. Private
 * to this room.
 *
 * Which registers a struct travels in depends on its members: that of a struct of at most AMP__STRUCT_SMALL bytes must
 * be known. Larger ones go through memory in the calling conventions of x86-64 and arm64, whatever is in them: size and
 * alignment are enough.
 */
#ifndef AMP_STRUCTS_H
#define AMP_STRUCTS_H

#include "amp_raw.h"
#include "schema/schema.h"

#include <ffi.h>

#define AMP__STRUCT_SMALL 64u
#define AMP__STRUCT_LARGEST (1u << 20) /* by value: it lies on the stack three times during a wrapped call */
#define AMP__STRUCT_ALIGNMENT 16u      /* largest alignment by value, that of libffi's stack */

/* Copies the descriptor that the lexer's token names; its strings stay the caller's. */
amp_status amp__struct_find(const struct amp__lexer *lexer, const amp_struct *structs, size_t n_structs,
                            struct amp__struct *out);
/* Does a descriptor have this name? */
bool amp__struct_is_known(const struct amp__token *token, const amp_struct *structs, size_t n_structs);
/* May it be passed by value? `at`: where the schema names it. */
amp_status amp__struct_check_value(const struct amp__lexer *lexer, const char *at, const struct amp__struct *type);

/* Finds the integer member named by the token of the lexer. The struct must have members. */
amp_status amp__struct_member(const struct amp__lexer *lexer, const struct amp__struct *type, uint32_t *offset,
                              uint8_t *kind);

/* Of any kind but AMP__STRUCT. */
ffi_type *amp__ffi_type(uint8_t kind);
/* The number of types and of pointers to types that libffi needs for one struct. */
struct amp__struct_needs {
    size_t types, pointers;
};
/* Of a struct that amp__struct_check_value has passed. */
void amp__struct_measure(const struct amp__struct *type, struct amp__struct_needs *needs);
/* Builds the type of a struct for libffi, from *types and *pointers, which it advances. NULL: libffi has another
 * layout. */
ffi_type *amp__struct_build(const struct amp__struct *type, ffi_type **types, ffi_type ***pointers);

#endif
