/* SPDX-License-Identifier: Apache-2.0 */
/* The schema parser: what it reads, and what it says of what it cannot read. */
#include "describe.h"

/* ---- good schemas ---- */

static const struct good good[] = {
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
    for (size_t i = 0; i < AMP_COUNT(good); i++) check_good(&good[i], NULL, 0);
}

/* ---- bad schemas ---- */

static const struct bad bad[] = {
    { "^", "expected the op's name", "as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "linear^", "expected '('", NULL },
    { "^(Tensor) -> Tensor", "expected the op's name", "as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "^3linear(Tensor) -> Tensor", "expected the op's name", "as in linear(Tensor input, Tensor weight) -> Tensor" },
    { "linear ^Tensor input -> Tensor", "expected '('", NULL },
    { "linear(^Tensro input) -> Tensor", "expected a type", "did you mean Tensor?" },
    { "linear(Tensor input, ^in32 n) -> Tensor", "expected a type", "did you mean int32, int8, uint32?" },
    { "linear(Tensor input, ^quaternion q) -> Tensor",
      "expected a type", "Tensor, pointer, int32, int64, float, double, bool, ..." },
    { "linear(Tensor input,^) -> Tensor", "expected a type", "an argument is missing after the comma" },
    { "linear(Tensor input ^Tensor weight) -> Tensor", "expected ',' or ')'", "a comma is missing before it" },
    { "linear(Tensor input, Tensor weight^", "expected ',' or ')'", NULL },
    { "linear(Tensor input, Tensor weight) ^- > Tensor", "expected '->'", "write -> void if it returns nothing" },
    { "linear(Tensor input, Tensor weight)^", "expected '->'", "write -> void if it returns nothing" },
    { "linear(Tensor input) -> ^", "expected a type", "Tensor, pointer, int32, int64, float, double, bool, ..." },
    { "linear(Tensor input) -> Tensor^;", "expected the end of the schema", NULL },
    { "linear(Tensor input) -> Tensor ^output more", "expected the end of the schema", NULL },
    { "linear(Tensor input) -> ^(Tensor, Tensor)", "expected a type", "a C function returns one value" },
    { "linear(Tensor input) -> ^Tensor[3]", "a list cannot be returned", "write pointer if libamp may ignore it" },
    { "linear(Tensor input) -> ^Tensor(out a!)", "a return is annotated with (a) or (a!) only", NULL },
    { "linear(Tensor input) -> ^Tensor(a!)",
      "no argument is written that could be returned", "annotate the argument that is returned: Tensor(a!) self" },
    { "linear(Tensor(a!) x, Tensor(b!) ^x) -> void", "two arguments have this name", NULL },
    { "linear(^void) -> void", "an argument cannot be void", "write () for no arguments" },
    { "linear(Tensor x, ^...) -> void",
      "variadic functions cannot be wrapped: their arguments are unknown", NULL },
    { "linear(Tensor x, ^*, float alpha=1) -> Tensor",
      "expected a type", "C has no keyword-only arguments: leave * out" },
    { "linear(Tensor x, float alpha^=1) -> Tensor", "expected ',' or ')'", "a C function has no default arguments" },
    { "linear(Tensor input, ^Scalar alpha, SymInt n) -> Tensor",
      "expected a type", "write the C type: float, double or int64" },
    { "linear(Tensor input, ^str mode) -> Tensor", "expected a type", "write pointer" },
    { "linear(Tensor(a! ^input) -> Tensor", "expected ')'", "(a), (a!), (out a!), (keep) or (seed)" },
    { "linear(Tensor(^) input) -> Tensor", "expected an annotation", "(a), (a!), (out a!), (keep) or (seed)" },
    { "linear(Tensor(out a^) input) -> Tensor", "expected '!'", "write (out a!)" },
    { "linear(Tensor(a)^(b) input) -> Tensor", "one annotation is all that a type takes", NULL },
    { "linear(Tensor(a)?^(b) input) -> Tensor", "one annotation is all that a type takes", NULL },
    { "linear(Tensor[]^? input, int n) -> Tensor",
      "a list cannot be optional", "write Tensor?[] for a list with entries that may be NULL" },
    { "linear(Tensor[^0] input) -> Tensor", "a list has 1 to 65535 entries", NULL },
    { "linear(Tensor[^65536] input) -> Tensor", "a list has 1 to 65535 entries", NULL },
    { "linear(Tensor[^99999999999999999999] input) -> Tensor", "a list has 1 to 65535 entries", NULL },
    { "linear(Tensor[^n] input, int n) -> Tensor", "expected ']'", "write Tensor[] or Tensor[3]" },
    { "linear(Tensor[] ^tensors) -> Tensor",
      "no argument counts this list",
      "name the integer argument that counts it n_tensors, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] ^tensors, float x, int dim) -> Tensor",
      "no argument counts this list",
      "name the integer argument that counts it n_tensors, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] ^tensors, int dim, int n) -> Tensor",
      "several arguments could count this list",
      "name the integer argument that counts it n_tensors, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] ^xs, int n_xs, int num_xs) -> Tensor",
      "several arguments could count this list",
      "name the integer argument that counts it n_xs, or write Tensor[3] if it is always 3 long" },
    { "linear(^Tensor[], bool b) -> void",
      "no argument counts this list",
      "name both as in Tensor[] xs, int n_xs, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] ^xs, bool keepdim) -> void",
      "no argument counts this list",
      "name the integer argument that counts it n_xs, or write Tensor[3] if it is always 3 long" },
    { "linear(Tensor[] ^xs, pointer n_xs) -> void",
      "no argument counts this list",
      "name the integer argument that counts it n_xs, or write Tensor[3] if it is always 3 long" },
    { "linear(^half x) -> void",
      "expected a type", "a 16-bit float cannot be passed by value; uint16 carries its bits" },
    { "linear(^tensor x) -> void", "expected a type", "did you mean Tensor?" },
    { "linear(Tensor? x, unsigned ^float y) -> void", "expected ',' or ')'", "a comma is missing before it" },
    { "linear(long ^double x) -> void",
      "expected ',' or ')'", "a comma is missing before it (long double is not in this version)" },
    { "linear(unsigned ^float x) -> void", "expected ',' or ')'", "a comma is missing before it" },
    { "linear(Tensor x, Tensor ^\xc3\xa9" ") -> void", "expected ',' or ')'", NULL },
    { "linear(int n, Tensor[]) -> ^Tensor[]", "a list cannot be returned", "write pointer if libamp may ignore it" },
    { "linear(long ^double) -> void",
      "expected ',' or ')'", "a comma is missing before it (long double is not in this version)" },
    { "linear(Tensor ^Tensor) -> void", "expected ',' or ')'", "a comma is missing before it" },
};

TEST(bad_schemas_are_refused_with_a_caret) {
    for (size_t i = 0; i < AMP_COUNT(bad); i++) check_bad(&bad[i], NULL, 0);
}

TEST(null_arguments) {
    struct amp__schema *schema = NULL;
    ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("linear", NULL, NULL, 0, &schema));
    ck_assert_str_eq(amp_last_error(), "linear: it has no schema; write one as in linear(Tensor input, Tensor weight, "
                                       "Tensor? bias) -> Tensor");
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__schema_parse("linear", "f() -> void", NULL, 0, NULL));
    ck_refused(AMP_ERR_SCHEMA, "op: expected the op's name", amp__schema_parse(NULL, "", NULL, 0, &schema));
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
    ck_refused(AMP_ERR_SCHEMA, "more than 64 arguments", amp__schema_parse("op", text, NULL, 0, &schema));
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

TEST(damaged_schemas_get_an_answer) {
    size_t refused = 0;
    for (size_t i = 0; i < AMP_COUNT(good); i++) refused += check_damaged(&good[i], "(),[]?!.:->a9 \x01\xff", NULL, 0);
    ck_assert_uint_gt(refused, 1000);
}
