/* SPDX-License-Identifier: Apache-2.0 */
/* Raw buffers: the extents behind an argument's name. */
#include "schema/parser.h"
#include "schema/types.h"

#include <string.h>

/* '[' ( '?' | expression { ',' expression } [ ':' expression ] ) ']', with the lexer behind the '['. With `expressions`
 * it writes the result and looks names up. */
static amp_status take_extents(struct amp__lexer *lexer, const struct amp__scope_of_names *names, struct amp__arg *arg,
                               struct amp__expression **expressions, struct amp__operation **operations,
                               uint32_t *n_operations) {
    struct amp__operation scratch[AMP__MAX_OPERATIONS];
    bool stride = false;
    if (amp__lexer_take(lexer, "?")) arg->flags |= AMP__EXTENT_UNKNOWN;
    for (bool more = !(arg->flags & AMP__EXTENT_UNKNOWN); more;) {
        const char *at = lexer->token.at;
        uint32_t n;
        if (!stride && arg->ndim == AMP__MAX_DIMS)
            return amp__lexer_fault(lexer, at, NULL, "a buffer has at most %d dimensions", AMP__MAX_DIMS);
        AMP_TRY(amp__expression_take(lexer, names, scratch, &n));
        if (expressions) {
            /* up to the next token; trailing white space is cut off when the text is copied */
            *(*expressions)++ = (struct amp__expression){ at, *operations, (uint32_t)(lexer->token.at - at), n };
            memcpy(*operations, scratch, n * sizeof scratch[0]);
            *operations += n;
        }
        *n_operations += n;
        if (stride) arg->flags |= AMP__STRIDED;
        else arg->ndim++;
        at = lexer->token.at;
        more = !stride && (amp__lexer_take(lexer, ",") || (stride = amp__lexer_take(lexer, ":")));
        if (stride && arg->ndim < 2)
            return amp__lexer_fault(lexer, at, "it is the distance between the rows of x[M, N : ld]",
                                    "a row stride needs two dimensions");
    }
    if (amp__lexer_take(lexer, "]")) return AMP_OK;
    if (arg->flags & AMP__EXTENT_UNKNOWN)
        return amp__lexer_fault(lexer, lexer->token.at, "[?] takes the registered buffer's length", "expected ']'");
    return amp__lexer_fault(lexer, lexer->token.at, NULL, "expected ',' or ']'");
}

amp_status amp__parser_compile(const struct amp__parser *p, uint32_t arg, struct amp__expression **expressions,
                               struct amp__operation **operations) {
    const struct amp__scope_of_names names = { p->names, p->args, p->structs, p->n_args };
    struct amp__arg again = { .ndim = 0 };
    struct amp__lexer lexer = p->lexer;
    uint32_t n = 0;
    lexer.token = p->extents[arg];
    return take_extents(&lexer, &names, &again, expressions, operations, &n);
}

/* Extents behind the name make a buffer of a number: a pointer if libamp does not cast its elements. */
amp_status amp__parser_take_buffer(struct amp__parser *p, struct amp__arg *arg, const struct amp__type *type,
                                   const char *const_at) {
    struct amp__lexer *lexer = &p->lexer;
    uint32_t n = 0;
    if (!type || type->kind == AMP__POINTER || type->kind == AMP__TENSOR)
        return amp__lexer_fault(lexer, lexer->token.at,
                                type && type->kind == AMP__TENSOR ? "write Tensor[3] xs for a list" : "write pointer",
                                "extents belong to numbers only");
    if (const_at && (arg->flags & (AMP__READ_WRITE | AMP__WRITE)))
        return amp__lexer_fault(lexer, const_at, NULL, "a const buffer is not written");
    amp__lexer_advance(lexer); /* [ */
    p->extents[p->n_args] = lexer->token;
    arg->kind = AMP__BUFFER;
    arg->dtype = type->dtype;
    AMP_TRY(take_extents(lexer, NULL, arg, NULL, NULL, &n));
    if (amp__token_is(&lexer->token, "["))
        return amp__lexer_fault(lexer, lexer->token.at, "write x[M, N] for x[M][N]",
                                "a buffer has one pair of brackets");
    if (!arg->dtype) {
        *arg = (struct amp__arg){ .kind = AMP__POINTER, .flags = AMP__STATELESS, .count_arg = -1, .struct_index = -1 };
        return AMP_OK;
    }
    arg->first_extent = (uint16_t)p->n_expressions;
    p->n_expressions += arg->ndim + (arg->flags & AMP__STRIDED ? 1u : 0u);
    p->n_operations += n;
    return AMP_OK;
}
