/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schema parser's state, and the part of it that reads arguments. Private to the schema parser. The grammar:
 *
 *   schema      = op-name '(' [ argument { ',' argument } ] ')' '->' return
 *   op-name     = word { word | digits | ':' | '.' }               -- no spaces inside
 *   argument    = tensor [ name ] | buffer | other [ name ]         -- at most 64
 *   return      = 'Tensor' [ annotation ] [ '?' ] [ annotation ] | other | 'void'
 *
 *   tensor      = 'Tensor' [ annotation ] [ '?' ] [ annotation ] [ '*' [ '?' ] ] [ '[' [ digits ] ']' ] [ annotation ]
 *                                                                   -- at most one annotation; '*' with (out a!) only
 *   annotation  = '(' ( 'keep' | 'seed' | 'out' word '!' | word [ '!' ] ) ')'
 *
 *   buffer      = [ 'const' ] element [ 'const' ] [ annotation ] [ '?' ] [ annotation ] name '[' extents ']'
 *   element     = number | 'half' | 'bfloat16'                      -- integers make a pointer
 *   extents     = '?' | conditional { ',' conditional } [ ':' conditional ]              -- at most 8 before the ':'
 *   conditional = or [ '?' conditional ':' conditional ]
 *   or          = and { '||' and }
 *   and         = equal { '&&' equal }
 *   equal       = less { ( '==' | '!=' ) less }
 *   less        = sum { ( '<' | '<=' | '>' | '>=' ) sum }
 *   sum         = product { ( '+' | '-' ) product }
 *   product     = unary { ( '*' | '/' | '%' ) unary }
 *   unary       = { '-' | '!' } ( digits | word [ ( '.' | '->' ) word ] | '(' conditional ')' )
 *                                              -- digits: no 0 before others; word: an argument, a member
 *
 *   other       = [ 'const' ] ( 'pointer' | 'fn' | number | struct | pointed stars ) [ 'const' ]
 *   pointed     = ( number | 'half' | 'bfloat16' | 'void' | 'pointer' | 'fn' | struct ) [ 'const' ]
 *   stars       = '*' { '*' | 'const' | 'restrict' | '__restrict' | '__restrict__' }
 *   struct      = 'struct' word
 *   number      = 'float' | 'double' | 'bool' | '_Bool' | fixed | [ 'signed' | 'unsigned' ] 'char'
 *               | [ 'unsigned' ] ( 'short' | 'long' | 'long' 'long' ) [ 'int' ] | [ 'unsigned' ] 'int' | 'unsigned'
 *               | 'size_t' | 'ptrdiff_t'
 *   fixed       = [ 'u' ] 'int' ( '8' | '16' | '32' | '64' ) [ '_t' ]     -- one word
 *   name        = word            -- but for the first word of a type; fn, half, bfloat16 are allowed
 *   word        = ( letter | '_' ) { letter | digit | '_' }         -- ASCII
 *   digits      = digit { digit }
 *
 *   members     = member { ( ',' | ';' ) member } [ ',' | ';' ]     -- of an amp_struct
 *   member      = ( '{' members '}' | [ 'const' ] ( number | 'pointer' | 'fn' )
 *                 | [ 'const' ] pointed '*' { '*' | 'const' } ) [ word ] { '[' digits ']' }
 *
 * White space between tokens has no meaning, line breaks included.
 */
#ifndef AMP_PARSER_H
#define AMP_PARSER_H

#include "amp_raw.h"
#include "schema/lexer.h"
#include "schema/schema.h"

/* Names are tokens of the caller's text. Extents are read over while arguments are read and compiled once all of these
 * are known. */
struct amp__parser {
    struct amp__lexer lexer;
    const amp_struct *known; /* the caller's */
    size_t n_known;
    struct amp__token name; /* the op's */
    struct amp__token names[AMP__MAX_ARGS];
    struct amp__arg args[AMP__MAX_ARGS], ret;
    struct amp__token extents[AMP__MAX_ARGS]; /* the first token of the argument's extents (length 0: it has none) */
    struct amp__struct structs[AMP__MAX_ARGS + 1]; /* that the schema names; strings are the caller's */
    uint32_t n_args, n_structs;
    uint32_t n_expressions, n_operations; /* of all buffers */
    uint64_t countable;                   /* bit i: argument i may count a list */
};

amp_status amp__parser_take_argument(struct amp__parser *p);
/* The whole: p->lexer at its beginning. */
amp_status amp__parser_take_schema(struct amp__parser *p);
/* prototype.c: `status`, which the schema failed with; if its text is a C prototype, with the schema for that as the
 * message. */
amp_status amp__parser_fail_prototype(const struct amp__parser *p, amp_status status);
/* The type of a return. */
amp_status amp__parser_take_return(struct amp__parser *p);
/* The extents behind the name of an argument of `type` (NULL: no number), the lexer at '['. `const_at`: the word const
 * before it, or NULL. */
struct amp__type;
amp_status amp__parser_take_buffer(struct amp__parser *p, struct amp__arg *arg, const struct amp__type *type,
                                   const char *const_at);
/* Reads the extents of an argument once more, from p->extents[arg] on, this time looking names up. `expressions` and
 * `operations` are moved on. NULL: only checks. */
amp_status amp__parser_compile(const struct amp__parser *p, uint32_t arg, struct amp__expression **expressions,
                               struct amp__operation **operations);

#endif
