/* SPDX-License-Identifier: Apache-2.0 */
/* The names of types in a schema. Private to the schema parser. */
#ifndef AMP_SCHEMA_TYPES_H
#define AMP_SCHEMA_TYPES_H

#include "schema/lexer.h"
#include "schema/schema.h"

struct amp__type {
    const char *name; /* one or more words, single spaces between */
    uint8_t kind;     /* enum amp__kind; AMP__BUFFER: a type of elements that is not passed by value */
    bool counts;      /* a number that may count a list, as bool and char are not */
    uint8_t dtype;    /* amp_dtype of a buffer of it (0: no floating type) */
    bool soft;        /* a word that may be an argument's name as well */
};

/* Reads a type's name, the longest that fits; NULL, with the lexer where it was, if there is none. */
const struct amp__type *amp__type_take(struct amp__lexer *lexer);

/* Returns the schema type for a word of another notation, or NULL. */
const char *amp__type_foreign(const struct amp__token *token);
/* Fails for a token that is no type, with the likely type. */
amp_status amp__type_unknown(const struct amp__lexer *lexer);

#endif
