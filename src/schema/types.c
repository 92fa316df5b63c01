/* SPDX-License-Identifier: Apache-2.0 */
/* The type names of the schema notation as a table, and hints for unknown words. */
#include "schema/types.h"

#include <limits.h>
#include <string.h>

/* The kinds of integers lie in the order signed, unsigned, by size. */
#define INTEGER(type)                                                                                                  \
    (uint8_t)(AMP__INT8 + (sizeof(type) == 1 ? 0 : sizeof(type) == 2 ? 2 : sizeof(type) == 4 ? 4 : 6)                  \
              + ((type)-1 > (type)0))

/* In order of preference: a name of several words comes before the name that it begins with. */
static const struct amp__type types[] = {
    { "Tensor", AMP__TENSOR, false, 0, false },
    { "pointer", AMP__POINTER, false, 0, false },
    { "fn", AMP__POINTER, false, 0, true },
    { "float", AMP__FLOAT, false, AMP_FLOAT32, false },
    { "double", AMP__DOUBLE, false, AMP_FLOAT64, false },
    { "half", AMP__BUFFER, false, AMP_FLOAT16, true },
    { "bfloat16", AMP__BUFFER, false, AMP_BFLOAT16, true },
    { "bool", AMP__UINT8, false, 0, false },
    { "_Bool", AMP__UINT8, false, 0, false },
    { "int8", AMP__INT8, true, 0, false },
    { "int16", AMP__INT16, true, 0, false },
    { "int32", AMP__INT32, true, 0, false },
    { "int64", AMP__INT64, true, 0, false },
    { "uint8", AMP__UINT8, true, 0, false },
    { "uint16", AMP__UINT16, true, 0, false },
    { "uint32", AMP__UINT32, true, 0, false },
    { "uint64", AMP__UINT64, true, 0, false },
    { "int8_t", AMP__INT8, true, 0, false },
    { "int16_t", AMP__INT16, true, 0, false },
    { "int32_t", AMP__INT32, true, 0, false },
    { "int64_t", AMP__INT64, true, 0, false },
    { "uint8_t", AMP__UINT8, true, 0, false },
    { "uint16_t", AMP__UINT16, true, 0, false },
    { "uint32_t", AMP__UINT32, true, 0, false },
    { "uint64_t", AMP__UINT64, true, 0, false },
    { "size_t", INTEGER(size_t), true, 0, false },
    { "ptrdiff_t", INTEGER(ptrdiff_t), true, 0, false },
    { "char", CHAR_MIN < 0 ? AMP__INT8 : AMP__UINT8, false, 0, false }, /* unsigned on arm64 */
    { "signed char", AMP__INT8, false, 0, false },
    { "short int", INTEGER(short), true, 0, false },
    { "short", INTEGER(short), true, 0, false },
    { "int", INTEGER(int), true, 0, false },
    { "long long int", INTEGER(long long), true, 0, false },
    { "long long", INTEGER(long long), true, 0, false },
    { "long int", INTEGER(long), true, 0, false },
    { "long", INTEGER(long), true, 0, false },
    { "unsigned char", AMP__UINT8, false, 0, false },
    { "unsigned short int", INTEGER(unsigned short), true, 0, false },
    { "unsigned short", INTEGER(unsigned short), true, 0, false },
    { "unsigned int", INTEGER(unsigned int), true, 0, false },
    { "unsigned long long int", INTEGER(unsigned long long), true, 0, false },
    { "unsigned long long", INTEGER(unsigned long long), true, 0, false },
    { "unsigned long int", INTEGER(unsigned long), true, 0, false },
    { "unsigned long", INTEGER(unsigned long), true, 0, false },
    { "unsigned", INTEGER(unsigned), true, 0, false },
    { "void", AMP__VOID, false, 0, false },
};

/* Common words of C and PyTorch with their type in a schema. */
static const struct {
    const char *word, *hint;
} foreign[] = {
    { "enum", "write int, which an enum is" },
    { "union", "unions by value are not in this version; write pointer for a pointer to one" },
    { "str", "write pointer" },
    { "uint", "write unsigned int" },
    { "ssize_t", "write ptrdiff_t, which has its size" },
    { "intptr_t", "write ptrdiff_t, which has its size" },
    { "uintptr_t", "write size_t, which has its size" },
    { "va_list", "wire a function that takes no va_list, and calls this one" },
    { "Scalar", "write the C type: float, double or int64" },
    { "SymInt", "write int64" },
    { ")", "an argument is missing after the comma" },
    { "*", "C has no keyword-only arguments: leave * out" },
    { "(", "a C function returns one value" },
};

const char *amp__type_foreign(const struct amp__token *token) {
    for (size_t i = 0; i < AMP_COUNT(foreign); i++)
        if (amp__token_is(token, foreign[i].word)) return foreign[i].hint;
    return NULL;
}

amp_status amp__type_unknown(const struct amp__lexer *lexer) {
    const struct amp__token *token = &lexer->token;
    char word[64] = "", hint[128] = "";
    const char *names[AMP_COUNT(types)];
    amp__text text = { hint, sizeof hint, 0 };

    const char *known = amp__type_foreign(token);
    if (known) return amp__lexer_fault(lexer, token->at, known, "expected a type");
    if (token->kind == AMP__TOKEN_WORD && token->length < sizeof word) {
        memcpy(word, token->at, token->length);
        for (size_t i = 0; i < AMP_COUNT(types); i++) names[i] = types[i].name;
        amp__text_add(&text, "did you mean ");
        const size_t empty = text.length;
        amp__nearest_names(&text, word, names, AMP_COUNT(names));
        if (text.length > empty) {
            amp__text_add(&text, "?");
            return amp__lexer_fault(lexer, token->at, hint, "expected a type");
        }
    }
    return amp__lexer_fault(lexer, token->at, "Tensor, pointer, int32, int64, float, double, bool, ...",
                            "expected a type");
}

const struct amp__type *amp__type_take(struct amp__lexer *lexer) {
    for (size_t i = 0; i < AMP_COUNT(types); i++) {
        struct amp__lexer ahead = *lexer;
        const char *word = types[i].name;
        for (size_t length; *word; word += length + (word[length] == ' ')) {
            length = strcspn(word, " ");
            if (ahead.token.length != length || memcmp(ahead.token.at, word, length) != 0) break;
            amp__lexer_advance(&ahead);
        }
        if (*word) continue;
        *lexer = ahead;
        return &types[i];
    }
    return NULL;
}
