/* SPDX-License-Identifier: Apache-2.0 */
/* The schema parser: what it reads, and what it says of what it cannot read. */
#include "common/common.h"
#include "schema/schema.h"
#include "describe.h"

#include <stdio.h>
#include <string.h>

/* ---- good schemas ---- */

static const struct {
    const char *text, *means;
} good[] = {
    { "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
      "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor, self -1, tensors 3" },
    { "add_   (Tensor(a!) self, Tensor other, float alpha) -> void",
      "add_(Tensor! self, Tensor other, float alpha) -> void, self 0, tensors 2" },
    { "cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor",
      "cat(Tensor[#1] tensors, i32 n, i32 dim) -> Tensor, self -1, tensors 1" },
    { "step(pointer self) -> int32", "step(pointer self) -> i32, self 0, tensors 0" },
    { "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
      "aten::add_.Tensor(Tensor! self, Tensor other) -> Tensor!, self 0, tensors 2" },
    { "f()->void", "f() -> void, self -1, tensors 0" },
    { " \n\tf ( ) \r\n -> \v void \f ", "f() -> void, self -1, tensors 0" },
    { "f(Tensor,int,Tensor)->Tensor?", "f(Tensor, i32, Tensor) -> Tensor?, self -1, tensors 2" },
    { "f(Tensor(a)x,Tensor(keep) y,Tensor(seed)z, Tensor(out a!) w)->Tensor(a)",
      "f(Tensor x, Tensor keep y, Tensor seed z, Tensor out w) -> Tensor, self -1, tensors 4" },
    { "f(Tensor(a!)? x, Tensor?(a!) y, Tensor(out b!)?[2] z, Tensor[3](keep) k) -> void",
      "f(Tensor?! x, Tensor?! y, Tensor?[2] out z, Tensor[3] keep k) -> void, self -1, tensors 4" },
    { "f(Tensor[2] self, pointer p) -> pointer", "f(Tensor[2] self, pointer p) -> pointer, self -1, tensors 1" },
    { "f(int64 self, Tensor x) -> bool", "f(i64 self, Tensor x) -> u8, self -1, tensors 1" },
    { "f(int8 a, uint8 b, int16 c, uint16 d, int32 e, uint32 f, int64 g, uint64 h) -> int8",
      "f(i8 a, u8 b, i16 c, u16 d, i32 e, u32 f, i64 g, u64 h) -> i8, self -1, tensors 0" },
    { "f(int8_t a, uint8_t b, int16_t c, uint16_t d, int32_t e, uint32_t f, int64_t g, uint64_t h) -> uint16_t",
      "f(i8 a, u8 b, i16 c, u16 d, i32 e, u32 f, i64 g, u64 h) -> u16, self -1, tensors 0" },
    { "f(int a, unsigned b, unsigned int c, short d, unsigned short e, bool g, float h, double i) -> double",
      "f(i32 a, u32 b, u32 c, i16 d, u16 e, u8 g, float h, double i) -> double, self -1, tensors 0" },
    { "f(short int a, unsigned short int b, long long int c, unsigned long long int d, long long e) -> short",
      "f(i16 a, u16 b, i64 c, u64 d, i64 e) -> i16, self -1, tensors 0" },
    { "f(signed char, unsigned  char, long\tlong, unsigned long\nlong x) -> float",
      "f(i8, u8, i64, u64 x) -> float, self -1, tensors 0" },
#if defined(__x86_64__) /* sizes and signs of this ABI */
    { "f(long a, unsigned long b, size_t c, ptrdiff_t d, char e) -> char",
      "f(i64 a, u64 b, u64 c, i64 d, i8 e) -> i8, self -1, tensors 0" },
#endif
    /* Which integer counts a list: a name made of the list's, else the next argument or n. */
    { "f(Tensor[] a, Tensor[] b, int64 n) -> void",
      "f(Tensor[#2] a, Tensor[#2] b, i64 n) -> void, self -1, tensors 2" },
    { "f(int n_xs, Tensor[] xs, int dim) -> void", "f(i32 n_xs, Tensor[#0] xs, i32 dim) -> void, self -1, tensors 1" },
    { "f(Tensor[] xs, int dim, int num_xs) -> void",
      "f(Tensor[#2] xs, i32 dim, i32 num_xs) -> void, self -1, tensors 1" },
    { "f(Tensor?[] xs, bool b, size_t xs_count, int n) -> void",
      "f(Tensor?[#2] xs, u8 b, u64 xs_count, i32 n) -> void, self -1, tensors 1" },
    { "f(Tensor[] xs, bool keepdim, int n) -> void",
      "f(Tensor[#2] xs, u8 keepdim, i32 n) -> void, self -1, tensors 1" },
    { "f(Tensor[] , uint32 ) -> void", "f(Tensor[#1], u32) -> void, self -1, tensors 1" },
};

TEST(good_schemas_are_understood) {
    for (size_t i = 0; i < AMP_COUNT(good); i++) {
        struct amp__schema *schema = NULL;
        char text[512];
        amp__text means = { text, sizeof text, 0 };
        ck_ok(amp__schema_parse("op", good[i].text, NULL, 0, &schema));
        ck_assert_str_eq(schema->text, good[i].text);
        ck_assert_ptr_ne(schema->text, good[i].text);
        describe(schema, &means);
        ck_assert_str_eq(text, good[i].means);
        amp__free(schema);
    }
}

/* ---- bad schemas: the message behind "linear: " ---- */

static const struct {
    const char *text, *message;
} bad[] = {
    { "",
      "expected the op's name" "\n"
      "  " "\n"
      "  ^ as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "linear",
      "expected '('" "\n"
      "  linear" "\n"
      "        ^" },
    { "(Tensor) -> Tensor",
      "expected the op's name" "\n"
      "  (Tensor) -> Tensor" "\n"
      "  ^ as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "3linear(Tensor) -> Tensor",
      "expected the op's name" "\n"
      "  3linear(Tensor) -> Tensor" "\n"
      "  ^ as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "linear Tensor input -> Tensor",
      "expected '('" "\n"
      "  linear Tensor input -> Tensor" "\n"
      "         ^" },
    { "linear(Tensro input) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensro input) -> Tensor" "\n"
      "         ^ did you mean Tensor?" },
    { "linear(Tensor input, in32 n) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor input, in32 n) -> Tensor" "\n"
      "                       ^ did you mean int32, int8, uint32?" },
    { "linear(Tensor input, quaternion q) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor input, quaternion q) -> Tensor" "\n"
      "                       ^ Tensor, pointer, int32, int64, float, double, bool, ..." },
    { "linear(Tensor input,) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor input,) -> Tensor" "\n"
      "                      ^ an argument is missing after the comma" },
    { "linear(Tensor input Tensor weight) -> Tensor",
      "expected ',' or ')'" "\n"
      "  linear(Tensor input Tensor weight) -> Tensor" "\n"
      "                      ^ a comma is missing before it" },
    { "linear(Tensor input, Tensor weight",
      "expected ',' or ')'" "\n"
      "  linear(Tensor input, Tensor weight" "\n"
      "                                    ^" },
    { "linear(Tensor input, Tensor weight) - > Tensor",
      "expected '->'" "\n"
      "  linear(Tensor input, Tensor weight) - > Tensor" "\n"
      "                                      ^ write -> void if it returns nothing" },
    { "linear(Tensor input, Tensor weight)",
      "expected '->'" "\n"
      "  linear(Tensor input, Tensor weight)" "\n"
      "                                     ^ write -> void if it returns nothing" },
    { "linear(Tensor input) -> ",
      "expected a type" "\n"
      "  linear(Tensor input) -> " "\n"
      "                          ^ Tensor, pointer, int32, int64, float, double, bool, ..." },
    { "linear(Tensor input) -> Tensor;",
      "expected the end of the schema" "\n"
      "  linear(Tensor input) -> Tensor;" "\n"
      "                                ^" },
    { "linear(Tensor input) -> Tensor output more",
      "expected the end of the schema" "\n"
      "  linear(Tensor input) -> Tensor output more" "\n"
      "                                 ^" },
    { "linear(Tensor input) -> (Tensor, Tensor)",
      "expected a type" "\n"
      "  linear(Tensor input) -> (Tensor, Tensor)" "\n"
      "                          ^ a C function returns one value" },
    { "linear(Tensor input) -> Tensor[3]",
      "a list cannot be returned" "\n"
      "  linear(Tensor input) -> Tensor[3]" "\n"
      "                          ^ write pointer if libamp may ignore it" },
    { "linear(Tensor input) -> Tensor(out a!)",
      "a return is annotated with (a) or (a!) only" "\n"
      "  linear(Tensor input) -> Tensor(out a!)" "\n"
      "                          ^" },
    { "linear(Tensor input) -> Tensor(a!)",
      "no argument is written that could be returned" "\n"
      "  linear(Tensor input) -> Tensor(a!)" "\n"
      "                          ^ annotate the argument that is returned: Tensor(a!) self" },
    { "linear(Tensor(a!) x, Tensor(b!) x) -> void",
      "two arguments have this name" "\n"
      "  linear(Tensor(a!) x, Tensor(b!) x) -> void" "\n"
      "                                  ^" },
    { "linear(void) -> void",
      "an argument cannot be void" "\n"
      "  linear(void) -> void" "\n"
      "         ^ write () for no arguments" },
    { "linear(Tensor x, ...) -> void",
      "variadic functions cannot be wrapped: what a call passes cannot be known" "\n"
      "  linear(Tensor x, ...) -> void" "\n"
      "                   ^" },
    { "linear(Tensor x, *, float alpha=1) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor x, *, float alpha=1) -> Tensor" "\n"
      "                   ^ C has no keyword-only arguments: leave * out" },
    { "linear(Tensor x, float alpha=1) -> Tensor",
      "expected ',' or ')'" "\n"
      "  linear(Tensor x, float alpha=1) -> Tensor" "\n"
      "                              ^ a C function has no default arguments" },
    { "linear(Tensor input, Scalar alpha, SymInt n) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor input, Scalar alpha, SymInt n) -> Tensor" "\n"
      "                       ^ write the C type: float, double or int64" },
    { "linear(Tensor input, str mode) -> Tensor",
      "expected a type" "\n"
      "  linear(Tensor input, str mode) -> Tensor" "\n"
      "                       ^ write pointer" },
    { "linear(Tensor(a! input) -> Tensor",
      "expected ')'" "\n"
      "  linear(Tensor(a! input) -> Tensor" "\n"
      "                   ^ (a), (a!), (out a!), (keep) or (seed)" },
    { "linear(Tensor() input) -> Tensor",
      "expected an annotation" "\n"
      "  linear(Tensor() input) -> Tensor" "\n"
      "                ^ (a), (a!), (out a!), (keep) or (seed)" },
    { "linear(Tensor(out a) input) -> Tensor",
      "expected '!'" "\n"
      "  linear(Tensor(out a) input) -> Tensor" "\n"
      "                     ^ write (out a!)" },
    { "linear(Tensor(a)(b) input) -> Tensor",
      "one annotation is all that a type takes" "\n"
      "  linear(Tensor(a)(b) input) -> Tensor" "\n"
      "                  ^" },
    { "linear(Tensor(a)?(b) input) -> Tensor",
      "one annotation is all that a type takes" "\n"
      "  linear(Tensor(a)?(b) input) -> Tensor" "\n"
      "                   ^" },
    { "linear(Tensor[]? input, int n) -> Tensor",
      "a list cannot be optional" "\n"
      "  linear(Tensor[]? input, int n) -> Tensor" "\n"
      "                 ^ write Tensor?[] for a list whose entries may be NULL" },
    { "linear(Tensor[0] input) -> Tensor",
      "a list has 1 to 65535 entries" "\n"
      "  linear(Tensor[0] input) -> Tensor" "\n"
      "                ^" },
    { "linear(Tensor[65536] input) -> Tensor",
      "a list has 1 to 65535 entries" "\n"
      "  linear(Tensor[65536] input) -> Tensor" "\n"
      "                ^" },
    { "linear(Tensor[99999999999999999999] input) -> Tensor",
      "a list has 1 to 65535 entries" "\n"
      "  linear(Tensor[99999999999999999999] input) -> Tensor" "\n"
      "                ^" },
    { "linear(Tensor[n] input, int n) -> Tensor",
      "expected ']'" "\n"
      "  linear(Tensor[n] input, int n) -> Tensor" "\n"
      "                ^ write Tensor[] or Tensor[3]" },
    { "linear(Tensor[] tensors) -> Tensor",
      "no argument counts this list" "\n"
      "  linear(Tensor[] tensors) -> Tensor" "\n"
      "                  ^ name the integer argument that counts it n_tensors, or write "
      "Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] tensors, float x, int dim) -> Tensor",
      "no argument counts this list" "\n"
      "  linear(Tensor[] tensors, float x, int dim) -> Tensor" "\n"
      "                  ^ name the integer argument that counts it n_tensors, or write "
      "Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] tensors, int dim, int n) -> Tensor",
      "several arguments could count this list" "\n"
      "  linear(Tensor[] tensors, int dim, int n) -> Tensor" "\n"
      "                  ^ name the integer argument that counts it n_tensors, or write "
      "Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] xs, int n_xs, int num_xs) -> Tensor",
      "several arguments could count this list" "\n"
      "  linear(Tensor[] xs, int n_xs, int num_xs) -> Tensor" "\n"
      "                  ^ name the integer argument that counts it n_xs, or write Tensor[3] if "
      "it is always 3 long" },
    { "linear(Tensor[], bool b) -> void",
      "no argument counts this list" "\n"
      "  linear(Tensor[], bool b) -> void" "\n"
      "         ^ name both as in Tensor[] xs, int n_xs, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] xs, bool keepdim) -> void",
      "no argument counts this list" "\n"
      "  linear(Tensor[] xs, bool keepdim) -> void" "\n"
      "                  ^ name the integer argument that counts it n_xs, or write Tensor[3] if "
      "it is always 3 long" },
    { "linear(Tensor[] xs, pointer n_xs) -> void",
      "no argument counts this list" "\n"
      "  linear(Tensor[] xs, pointer n_xs) -> void" "\n"
      "                  ^ name the integer argument that counts it n_xs, or write Tensor[3] if "
      "it is always 3 long" },
    { "linear(half x) -> void",
      "expected a type" "\n"
      "  linear(half x) -> void" "\n"
      "         ^ a 16-bit float cannot be passed by value; uint16 carries its bits" },
    { "linear(tensor x) -> void",
      "expected a type" "\n"
      "  linear(tensor x) -> void" "\n"
      "         ^ did you mean Tensor?" },
    { "linear(Tensor? x, unsigned float y) -> void",
      "expected ',' or ')'" "\n"
      "  linear(Tensor? x, unsigned float y) -> void" "\n"
      "                             ^ a comma is missing before it" },
    { "linear(long double x) -> void",
      "expected ',' or ')'" "\n"
      "  linear(long double x) -> void" "\n"
      "              ^ a comma is missing before it (long double is not in this version)" },
    { "linear(unsigned float x) -> void",
      "expected ',' or ')'" "\n"
      "  linear(unsigned float x) -> void" "\n"
      "                  ^ a comma is missing before it" },
    { "linear(Tensor x, Tensor \xc3\xa9" ") -> void",
      "expected ',' or ')'" "\n"
      "  linear(Tensor x, Tensor \?\?) -> void" "\n"
      "                          ^" },
    { "linear(int n, Tensor[]) -> Tensor[]",
      "a list cannot be returned" "\n"
      "  linear(int n, Tensor[]) -> Tensor[]" "\n"
      "                             ^ write pointer if libamp may ignore it" },
    { "linear(long double) -> void",
      "expected ',' or ')'" "\n"
      "  linear(long double) -> void" "\n"
      "              ^ a comma is missing before it (long double is not in this version)" },
    { "linear(Tensor Tensor) -> void",
      "expected ',' or ')'" "\n"
      "  linear(Tensor Tensor) -> void" "\n"
      "                ^ a comma is missing before it" },
};

TEST(bad_schemas_are_refused_with_a_caret) {
    for (size_t i = 0; i < AMP_COUNT(bad); i++) {
        struct amp__schema *schema = (struct amp__schema *)&schema, *const before = schema;
        char expected[1024];
        snprintf(expected, sizeof expected, "linear: %s", bad[i].message);
        ck_assert_int_eq(amp__schema_parse("linear", bad[i].text, NULL, 0, &schema), AMP_ERR_SCHEMA);
        ck_assert_str_eq(amp_last_error(), expected);
        ck_assert_ptr_eq(schema, before);
    }
}

TEST(null_arguments) {
    struct amp__schema *schema = NULL;
    ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("linear", NULL, NULL, 0, &schema));
    ck_assert_str_eq(amp_last_error(), "linear: it has no schema; write one as in linear(Tensor input, Tensor weight, "
                                       "Tensor? bias) -> Tensor");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__schema_parse("linear", "f() -> void", NULL, 0, NULL));
    ck_fails(AMP_ERR_SCHEMA, amp__schema_parse(NULL, "", NULL, 0, &schema));
    ck_says("op: expected the op's name");
    ck_assert_ptr_null(schema);
}

/* ---- limits and hostile input ---- */

static char *repeat(const char *head, const char *unit, size_t n, const char *tail) {
    const size_t before = strlen(head), each = strlen(unit), after = strlen(tail);
    char *text = malloc(before + n * each + after + 1);
    ck_assert_ptr_nonnull(text);
    memcpy(text, head, before);
    for (size_t i = 0; i < n; i++) memcpy(text + before + i * each, unit, each);
    memcpy(text + before + n * each, tail, after + 1);
    return text;
}

TEST(sixty_four_arguments_and_no_more) {
    struct amp__schema *schema;
    char *text = repeat("f(int8", ",Tensor", 63, ")->void");
    ck_ok(amp__schema_parse("op", text, NULL, 0, &schema));
    ck_assert_uint_eq(schema->n_args, 64);
    ck_assert_uint_eq(schema->n_tensors, 63);
    amp__free(schema);
    free(text);
    text = repeat("f(int8", ",Tensor", 64, ")->void");
    ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("op", text, NULL, 0, &schema));
    ck_says("more than 64 arguments");
    free(text);
}

/* The caret's column in the schema's line, and the byte that stands above it. */
static char above_caret(const char *message) {
    const char *line = strchr(message, '\n') + 1, *carets = strchr(line, '\n') + 1;
    ck_assert_ptr_nonnull(strchr(carets, '^'));
    return line[strchr(carets, '^') - carets];
}

TEST(long_schemas_are_shown_around_the_fault) {
    struct amp__schema *schema;
    char op[5000];
    memset(op, 'o', sizeof op - 1);
    op[sizeof op - 1] = '\0';
    for (size_t n = 1; n < 60; n++) {
        char *text = repeat("f(int8", ", Tensor", n, ", %int8, Tensor, Tensor, Tensor, Tensor, Tensor) -> void");
        ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("op", text, NULL, 0, &schema));
        ck_assert_int_eq(above_caret(amp_last_error()), '%');
        ck_fails(AMP_ERR_SCHEMA, amp__schema_parse(op, text, NULL, 0, &schema));
        ck_assert_int_eq(above_caret(amp_last_error()), '%');
        ck_assert_uint_lt(strlen(amp_last_error()), 500);
        free(text);
    }
}

TEST(hostile_texts_are_read_to_their_end_or_refused) {
    static const struct {
        const char *head, *unit, *tail;
        bool ok;
    } texts[] = {
        { "f(", " ", ")->void", true },      { "f(Tensor ", "x", ") -> void", true }, { "", "f", "() -> void", true },
        { "f", "(", "", false },             { "f(", "Tensor(", "", false },          { "", "\xff\x80", "", false },
        { "f(", "\xc3\xa9", "", false },     { "f(", "unsigned ", "", false },        { "f(", "Tensro", "", false },
        { "f(Tensor[", "9", "]) ->", false }, { "f(", ",", "", false },               { "f() -> ", "-", "", false },
        { "f(Tensor[] ", "y", ") -> void", false },
    };
    for (size_t i = 0; i < AMP_COUNT(texts); i++) {
        struct amp__schema *schema = NULL;
        char *text = repeat(texts[i].head, texts[i].unit, (size_t)1 << 20, texts[i].tail);
        const amp_status status = amp__schema_parse("op", text, NULL, 0, &schema);
        ck_assert_int_eq(status, texts[i].ok ? AMP_OK : AMP_ERR_SCHEMA);
        ck_assert_uint_lt(strlen(amp_last_error()), 700);
        if (status != AMP_OK) above_caret(amp_last_error());
        amp__free(schema);
        free(text);
    }
}

/* Every good schema with every byte removed, doubled or replaced: an answer, in bounds (the sanitizers watch). */
TEST(damaged_schemas_get_an_answer) {
    static const char bytes[] = "(),[]?!.:->a9 \x01\xff";
    size_t refused = 0;
    for (size_t i = 0; i < AMP_COUNT(good); i++) {
        const size_t length = strlen(good[i].text);
        for (size_t at = 0; at < length; at++) {
            for (size_t b = 0; b < sizeof bytes; b++) {
                struct amp__schema *schema = NULL;
                char *text = repeat("", good[i].text, 1, "");
                if (bytes[b]) text[at] = bytes[b];
                else memmove(text + at, text + at + 1, length - at);
                const amp_status status = amp__schema_parse("op", text, NULL, 0, &schema);
                ck_assert(status == AMP_OK || status == AMP_ERR_SCHEMA);
                ck_assert((status == AMP_OK) == (schema != NULL));
                refused += status != AMP_OK;
                amp__free(schema);
                free(text);
            }
        }
    }
    ck_assert_uint_gt(refused, 1000);
}
