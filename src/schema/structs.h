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
#define AMP__STRUCT_ALIGNMENT 16u      /* by value: what libffi keeps on the stack */

/* Copies the descriptor that the lexer's token names; its strings stay the caller's. */
amp_status amp__struct_find(const struct amp__lexer *lexer, const amp_struct *structs, size_t n_structs,
                            struct amp__struct *out);
/* Does a descriptor have this name? */
bool amp__struct_is_known(const struct amp__token *token, const amp_struct *structs, size_t n_structs);
/* May it be passed by value? `at`: where the schema names it. */
amp_status amp__struct_check_value(const struct amp__lexer *lexer, const char *at, const struct amp__struct *type);

/* Where the integer member lies that the lexer's token names. The struct must tell its members. */
amp_status amp__struct_member(const struct amp__lexer *lexer, const struct amp__struct *type, uint32_t *offset,
                              uint8_t *kind);

/* Of any kind but AMP__STRUCT. */
ffi_type *amp__ffi_type(uint8_t kind);
/* What libffi is told of one struct takes so many types and pointers to types. */
struct amp__struct_needs {
    size_t types, pointers;
};
/* Of a struct that amp__struct_check_value has passed. */
void amp__struct_measure(const struct amp__struct *type, struct amp__struct_needs *needs);
/* Takes what it needs from *types and *pointers, moving them on. NULL: libffi lays the struct out differently. */
ffi_type *amp__struct_build(const struct amp__struct *type, ffi_type **types, ffi_type ***pointers);

#endif
