/* SPDX-License-Identifier: Apache-2.0 */
/* Raw buffers, structs, pointers and out-parameters: what the parser reads of them, and what it says of what it cannot
 * read. */
#include "describe.h"

static const amp_struct table[] = {
    { sizeof(amp_struct), 0, "vec", 12, 4, 0, "float, float, int32" },
    { sizeof(amp_struct), 0, "layer", 1184, 8, 0, NULL },
    { sizeof(amp_struct), 0, "node", 0, 0, 0, NULL },
    { sizeof(amp_struct), 0, "small", 16, 8, 0, NULL },
    { sizeof(amp_struct), 0, "wrong", 16, 8, 0, "float, float" },
    { sizeof(amp_struct), 0, "bad", 8, 4, 0, "float, flot" },
    { sizeof(amp_struct), 0, "wide", 128, 32, 0, NULL },
};

/* ---- good schemas ---- */

static const struct good good[] = {
    { "f(float x[B*T, C], int B, int T, int C) -> void",
      "f(fp32* x[B*T, C], i32 B, i32 T, i32 C) -> void, self -1, tensors 0" },
    { "f(float(out a!) out[ M , N ], double(a!)? d[M], int M, int N) -> void",
      "f(fp32* out out[M, N], fp64*?! d[M], i32 M, i32 N) -> void, self -1, tensors 0" },
    { "f(float A[TA?K:M, TA?M:K : lda], bool TA, int K, int M, int64 lda) -> void",
      "f(fp32* A[TA?K:M, TA?M:K : lda], u8 TA, i32 K, i32 M, i64 lda) -> void, self -1, tensors 0" },
    { "f(int K, half h[K ? 1 : 2, K<3?4:K||0 : 5], bfloat16?(keep) b[?], float(seed) one[1]) -> void",
      "f(i32 K, fp16* h[K ? 1 : 2, K<3?4:K||0 : 5], bf16*? keep b[?], fp32* seed one[1]) -> void, self -1, tensors 0" },
    { "f(float(keep) labels[N], const float x[(N + 1)/2 - -N], int N) -> void",
      "f(fp32* keep labels[N], fp32* x[(N + 1)/2 - -N], i32 N) -> void, self -1, tensors 0" },
    { "f(float x[1,2,3,4,5,6,7,8], float y[9223372036854775807], float z[!N], bool N) -> void",
      "f(fp32* x[1, 2, 3, 4, 5, 6, 7, 8], fp32* y[9223372036854775807], fp32* z[!N], u8 N) -> void, self -1, tensors 0" },
    { "f(float x[((((((((((((((((1))))))))))))))))]) -> void",
      "f(fp32* x[((((((((((((((((1))))))))))))))))]) -> void, self -1, tensors 0" },
    { "f(float x[1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1]) -> void",
      "f(fp32* x[1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1]) -> void, self -1, tensors 0" },
    /* Integers with extents, and everything with a star, are pointers. */
    { "f(int32 targets[B], uint8(out a!) mask[B], bool? m[2], int B) -> void",
      "f(pointer targets, pointer mask, pointer m, i32 B) -> void, self -1, tensors 0" },
    { "f(fn forward, pointer p, void *v, char *s, const float *x, float const *const y, double *restrict *z) -> void *",
      "f(pointer forward, pointer p, pointer v, pointer s, pointer x, pointer y, pointer z) -> pointer, self -1, tensors 0" },
    { "f(half *h, bfloat16*, fn fn, pointer half, const int bfloat16) -> const char *",
      "f(pointer h, pointer, pointer fn, pointer half, i32 bfloat16) -> pointer, self -1, tensors 0" },
    { "f(void *self) -> float *", "f(pointer self) -> pointer, self 0, tensors 0" },
    { "f(Tensor[] xs, int *n_xs, int n) -> void", "f(Tensor[#2] xs, pointer n_xs, i32 n) -> void, self -1, tensors 1" },
    /* Structs are numbered as they appear. */
    { "f(struct layer l, struct vec) -> struct vec", "f(struct 0 l, struct 1) -> struct 1, self -1, tensors 0" },
    { "f(struct node *self, const struct node *p, struct wide *w) -> struct node *",
      "f(struct 0 * self, struct 0 * p, struct 1 * w) -> struct 0 *, self 0, tensors 0" },
    { "f(struct unknown **q, struct layer const *l, const struct vec v) -> void",
      "f(pointer q, struct 0 * l, struct 1 v) -> void, self -1, tensors 0" },
    /* Handles that the op writes. */
    { "f(Tensor(out a!)* out, Tensor(out a!)*? mask, Tensor(out a!)*[3] three) -> int",
      "f(Tensor* out out, Tensor*? out mask, Tensor*[3] out three) -> i32, self -1, tensors 3" },
    { "f(Tensor(out a!)[3] xs, Tensor?(out a!)[2] ys, Tensor(out a!)* self) -> void",
      "f(Tensor[3] out xs, Tensor?[2] out ys, Tensor* out self) -> void, self -1, tensors 3" },
    { "f(Tensor(out a!)*[] outs, int n_outs) -> void", "f(Tensor*[#1] out outs, i32 n_outs) -> void, self -1, tensors 1" },
};

TEST(good_schemas_are_understood) {
    for (size_t i = 0; i < AMP_COUNT(good); i++) check_good(&good[i], table, AMP_COUNT(table));
}

/* ---- bad schemas ---- */

static const struct bad bad[] = {
    { "linear(float x[^B*T, C], int n) -> void", "no argument has this name", "did you mean n?" },
    { "linear(float^[] x, int n) -> void", "a raw buffer has its extents behind its name", "as in float x[B*T, C]" },
    { "linear(float? x^) -> void",
      "a raw buffer needs its extents", "as in float(a!) x[M, N], or float(a!) x[?] for a registered buffer" },
    { "linear(struct layer l, struct ^network net) -> void",
      "structs does not describe it", "describe it in structs; a pointer that libamp may ignore is a pointer" },
    { "linear(^half x) -> void",
      "expected a type", "a 16-bit float cannot be passed by value; uint16 carries its bits" },
    { "linear(^struct node n) -> void",
      "to pass this struct by value libamp must know its size", "give sizeof and _Alignof" },
    { "linear(^struct small n) -> void",
      "a struct of at most 64 bytes travels in registers that depend on its members",
      "describe them in its amp_struct, as in \"float, float, int32\"" },
    { "linear(struct wrong n) -> void",
      "members of struct wrong: they make a struct of 8 bytes aligned to 4, but it is declared with 16 bytes"
      " aligned to 8: give sizeof and _Alignof, and every member in its order (packed structs cannot be described)",
      NULL },
    { "linear(struct bad n) -> void",
      "members of struct bad: expected a type\n  float, flot\n         ^ did you mean float?", NULL },
    { "linear(^struct wide n) -> void",
      "a struct aligned to more than 16 bytes cannot be passed by value", "pass a pointer to it" },
    { "linear(const ^layer l, int n) -> void", "expected a type", "write struct layer l" },
    { "linear(^node *n) -> void", "expected a type", "write struct node *n" },
    { "linear(struct ^layr n) -> void", "structs does not describe it", "did you mean layer?" },
    { "linear(struct layer^? l) -> void", "only a Tensor or a raw buffer can be optional", NULL },
    { "linear(struct layer l^[3]) -> void", "extents belong to numbers only", "write pointer" },
    { "linear(struct layer^(a!) l) -> void", "only a Tensor or a raw buffer takes an annotation", NULL },
    { "linear(struct^) -> void", "expected the struct's name", "as in struct layer l" },
    { "linear(float x[n.^out_w], int n) -> void",
      "only a struct has members", "write struct layer l, and describe the struct" },
    { "linear(float x[n.^], int n) -> void", "expected a member's name", "as in l.n or net->batch" },
    { "linear(float x[^N], float N) -> void", "an extent is made of integer arguments and integer members", NULL },
    { "linear(float x[^n], int *n) -> void", "an extent is made of integer arguments and integer members",
      "write '*' before it, as in C" },
    { "linear(float x[*^n], int n) -> void", "it points to no integer", "as *m of an int *m" },
    { "linear(float x[*^n], float *n) -> void", "it points to no integer", "as *m of an int *m" },
    { "linear(float x[*^n], int **n) -> void", "it points to no integer", "as *m of an int *m" },
    { "linear(float x[*^m], int *n) -> void", "no argument has this name", NULL },
    { "linear(float x[*^3], int *n) -> void", "expected an argument's name", "as in *m, of int *m" },
    { "linear(float x[^Nn], int N, int nN) -> void", "no argument has this name", "did you mean N?" },
    { "linear(float x[^]) -> void", "expected an extent", "an integer, an integer argument, or an expression of them" },
    { "linear(float x[M]^[N], int M, int N) -> void",
      "a buffer has one pair of brackets", "write x[M, N] for x[M][N]" },
    { "linear(float x[N ^: 3], int N) -> void",
      "a row stride needs two dimensions", "it is the distance between the rows of x[M, N : ld]" },
    { "linear(float x[M, N : 3 ^: 4], int N, int M) -> void", "expected ',' or ']'", NULL },
    { "linear(float x[?^, N], int N) -> void", "expected ']'", "[?] takes the registered buffer's length" },
    { "linear(float x[?^:3]) -> void", "expected ']'", "[?] takes the registered buffer's length" },
    { "linear(float x[N?^], int N) -> void",
      "expected an extent", "an integer, an integer argument, or an expression of them" },
    { "linear(float x[N ? 1^], int N) -> void", "expected ':'", "as in TA ? K : M" },
    { "linear(float x[N+^], int N) -> void",
      "expected an extent", "an integer, an integer argument, or an expression of them" },
    { "linear(float x[(N^], int N) -> void", "expected ')'", NULL },
    { "linear(float x[N, int ^N) -> void", "expected ',' or ']'", NULL },
    { "linear(float x[1,2,3,4,5,6,7,8,^9]) -> void", "a buffer has at most 8 dimensions", NULL },
    { "linear(float x[^010]) -> void",
      "a constant begins with 0, which is octal in C", "write it in decimal without zeros before it" },
    { "linear(float x[^9223372036854775808]) -> void", "a constant does not fit 64 bits", NULL },
    { "linear(float x[(((((((((((((((((^1)))))))))))))))))]) -> void", "an extent nests at most 16 deep", NULL },
    { "linear(float x[-----------------^1]) -> void", "an extent nests at most 16 deep", NULL },
    { "linear(float x[1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1^]) -> void",
      "an extent has at most 64 operations", "have the caller compute it and pass the result" },
    { "linear(^const float(a!) x[3]) -> void", "a const buffer is not written", NULL },
    { "linear(pointer x^[3]) -> void", "extents belong to numbers only", "write pointer" },
    { "linear(Tensor x^[3]) -> void", "extents belong to numbers only", "write Tensor[3] xs for a list" },
    { "linear(pointer^? x) -> void", "only a Tensor or a raw buffer can be optional", "a pointer may always be NULL" },
    { "linear(void ^(*f)(int)) -> void",
      "only a Tensor or a raw buffer takes an annotation", "write fn for a function pointer" },
    { "linear(^void x) -> void", "an argument cannot be void", "write () for no arguments" },
    { "linear(Tensor^* out) -> void",
      "a pointer to a handle is written by the op, or a list",
      "write Tensor for tensor *, or Tensor(out a!)* out for a handle that the op makes" },
    { "linear(Tensor?(out a!)^* out) -> void",
      "'?' stands behind '*'", "write Tensor(out a!)*? if the pointer may be NULL" },
    { "linear(Tensor(out a!)*^* out) -> void", "an out-parameter has one '*'", "Tensor is a pointer already" },
    { "linear(int n) -> ^float(a!)", "a raw buffer cannot be returned", "write pointer" },
    { "linear(int n) -> ^half",
      "expected a type", "a 16-bit float cannot be passed by value; uint16 carries its bits" },
    { "linear(float(a!) x^) -> void",
      "a raw buffer needs its extents", "as in float(a!) x[M, N], or float(a!) x[?] for a registered buffer" },
    { "linear(half? x^) -> void",
      "a raw buffer needs its extents", "as in float(a!) x[M, N], or float(a!) x[?] for a registered buffer" },
    { "linear(float x[N ^& 1], int N) -> void", "expected ',' or ']'", NULL },
    { "linear(float x[a ^= 1], int a) -> void", "expected ',' or ']'", NULL },
    { "linear(^enum mode m) -> void", "expected a type", "write int, which an enum is" },
    { "linear(float *x^[3]) -> void", "extents belong to numbers only", "write pointer" },
    { "linear(int32 x[^Q]) -> void", "no argument has this name", NULL },
    { "linear(int n ^float x[3]) -> void", "expected ',' or ')'", "a comma is missing before it" },
};

TEST(bad_schemas_are_refused_with_a_caret) {
    for (size_t i = 0; i < AMP_COUNT(bad); i++) check_bad(&bad[i], table, AMP_COUNT(table));
}

/* ---- struct descriptors ---- */

static const struct {
    const char *members;
    uint64_t size;
    uint32_t alignment;
    const char *says; /* NULL: it is right */
} layouts[] = {
    { "float, float, int32", 12, 4, NULL },
    { "float x, float y; int n;", 12, 4, NULL },
    { "char", 1, 1, NULL },
    { "double, char", 16, 8, NULL },
    { "{char, int16}, char", 6, 2, NULL },
    { "{float, float} corners[3], float w[2][2]", 40, 4, NULL },
    { "void *, const char *name, pointer, struct node *next", 32, 8, NULL },
    { "struct node next", 32, 8, "a member cannot be of this type" },
    { "{{{{{{{{char}}}}}}}}", 1, 1, NULL },
    { "char[64]", 64, 1, NULL },
    { "float[1000], double", 4008, 8, NULL },
    { "char[65536][16]", 1048576, 1, NULL },
    { "double, char", 9, 1, "they make a struct of 16 bytes aligned to 8, but it is declared with 9 bytes" },
    { "float", 8, 4, "they make a struct of 4 bytes" },
    { "{{{{{{{{{char}}}}}}}}}", 1, 1, "braces nest at most 8 deep" },
    { "", 8, 8, "expected a type" },
    { "{}", 8, 8, "expected a type" },
    { "float,,float", 8, 4, "expected a type" },
    { "float float", 8, 4, "expected ',' or the end of the members" },
    { "{float", 4, 4, "expected ',' or '}'" },
    { "float}", 4, 4, "expected ',' or the end of the members" },
    { "float[0]", 4, 4, "expected a number of elements" },
    { "float[n]", 4, 4, "expected a number of elements" },
    { "char[1048577]", 4, 4, "expected a number of elements" },
    { "char[65536][65536]", 4, 4, "expected a number of elements" },
    { "char[99999999999999999999999999]", 4, 4, "expected a number of elements" },
    { "double[1048576]", 8, 8, "the members take more than 1048576 bytes" },
    { "float[2", 8, 4, "expected ']'" },
    { "half", 2, 2, "a member cannot be of this type" },
    { "void", 2, 2, "a member cannot be of this type" },
    { NULL, 12, 8, "12 bytes aligned to 8 cannot be" },
    { NULL, 12, 3, "12 bytes aligned to 3 cannot be" },
    { NULL, 12, 0, "12 bytes aligned to 0 cannot be" },
    { NULL, UINT64_C(1) << 40, 8, "a struct by value has at most 1048576 bytes" },
    { NULL, 64, 8, "travels in registers" },
    { NULL, 72, 8, NULL },
};

TEST(layouts_of_structs_are_checked) {
    for (size_t i = 0; i < AMP_COUNT(layouts); i++) {
        amp_struct type = AMP_STRUCT_INIT;
        struct amp__schema *schema = NULL;
        type.name = "s";
        type.members = layouts[i].members;
        type.size = layouts[i].size;
        type.alignment = layouts[i].alignment;
        const amp_status status = amp__schema_parse("op", "f(struct s x) -> void", &type, 1, &schema);
        ck_assert_msg((status == AMP_OK) == !layouts[i].says, "%zu: %s", i, amp_last_error());
        if (layouts[i].says) {
            ck_assert_int_eq(status, AMP_ERR_SCHEMA);
            ck_says(layouts[i].says);
        } else {
            ck_assert_uint_eq(schema->structs[0].size, layouts[i].size);
            ck_assert_uint_eq(amp__arg_size(schema, &schema->args[0]), layouts[i].size);
            ck_assert_ptr_ne(schema->structs[0].name, type.name); /* a copy */
            ck_assert_str_eq(schema->structs[0].name, type.name);
            if (type.members) ck_assert_str_eq(schema->structs[0].members, type.members);
        }
        amp__free(schema);
    }
}

TEST(descriptors_are_checked) {
    struct amp__schema *schema = NULL;
    amp_struct two[2] = { AMP_STRUCT_INIT, AMP_STRUCT_INIT };
    two[0].name = NULL; /* passed over */
    two[1].name = "s";
    ck_ok(amp__schema_parse("op", "f(struct s *x) -> void", two, 2, &schema));
    amp__free(schema);
    two[1].flags = 1;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__schema_parse("op", "f(struct s *x) -> void", two, 2, &schema));
    ck_says("flags and reserved must be 0");
    two[1].flags = 0;
    two[1].struct_size += 8;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp__schema_parse("op", "f(struct s *x) -> void", two, 2, &schema));
    ck_says("all elements of an array have one size");
    two[0].struct_size = 0;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp__schema_parse("op", "f(struct s *x) -> void", two, 1, &schema));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__schema_parse("op", "f() -> void", NULL, 1, &schema));
    ck_refused(AMP_ERR_SCHEMA, "there are none", amp__schema_parse("op", "f(struct s *x) -> void", NULL, 0, &schema));
}

/* A table of larger descriptors, as a newer host has them. */
TEST(the_stride_is_the_callers) {
    struct wider {
        amp_struct base;
        uint64_t more;
    } wider[2];
    struct amp__schema *schema = NULL;
    memset(wider, 0, sizeof wider);
    for (int i = 0; i < 2; i++) wider[i].base = table[i];
    for (int i = 0; i < 2; i++) wider[i].base.struct_size = sizeof(struct wider);
    ck_ok(amp__schema_parse("op", "f(struct layer x) -> void", &wider[0].base, 2, &schema));
    ck_assert_uint_eq(schema->structs[0].size, 1184);
    amp__free(schema);
    wider[1].more = 1;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp__schema_parse("op", "f(struct layer x) -> void", &wider[0].base, 2, &schema));
}

TEST(sameness_is_of_text_and_structs) {
    static const char *const texts[] = { "f(struct vec v) -> void", "f(struct vec v)-> void" };
    amp_struct other = table[0];
    struct amp__schema *a = NULL, *b = NULL;
    ck_ok(amp__schema_parse("op", texts[0], table, AMP_COUNT(table), &a));
    for (int i = 0; i < 4; i++) {
        other.members = i == 1 ? "float, float, float" : "float, float, int32";
        other.size = i == 2 ? 0 : 12;
        if (i == 2) other.members = NULL;
        const char *text = i == 3 ? texts[1] : texts[0];
        if (i == 2) { /* by pointer the size may be unknown; the text differs then anyway */
            ck_fails(AMP_ERR_SCHEMA, amp__schema_parse("op", text, &other, 1, &b));
            continue;
        }
        ck_ok(amp__schema_parse("op", text, &other, 1, &b));
        ck_assert_int_eq(amp__schema_same(a, b), i == 0);
        amp__free(b);
    }
    amp__free(a);
}

TEST(damaged_schemas_get_an_answer) {
    size_t refused = 0;
    for (size_t i = 0; i < AMP_COUNT(good); i++)
        refused += check_damaged(&good[i], "(),[]?!*:->&|9 N\x01", table, AMP_COUNT(table));
    ck_assert_uint_gt(refused, 1000);
}
