/* SPDX-License-Identifier: Apache-2.0 */
/* A C prototype where a schema is wanted: the schema that the message gives is one, or it says what cannot be. */
#include "schema/schema.h"
#include "suite.h"

#include <stdio.h>
#include <string.h>

static const amp_struct described[] = {
    { sizeof(amp_struct), 0, "layer", 1184, 8, 0, NULL },
    { sizeof(amp_struct), 0, "network", 200, 8, 0, NULL },
    { sizeof(amp_struct), 0, "image", 24, 8, 0, NULL }, /* small, and its members are not told */
};

static amp_status parse_described(const char *text, struct amp__schema **out) {
    return amp__schema_parse("op", text, described, AMP_COUNT(described), out);
}

/* The schema in the last error, which is parsed here; NULL: it holds none. */
static const char *handed_back(void) {
    static const char before[] = "C has the result first, a schema last: ";
    static char text[1024];
    struct amp__schema *schema = NULL;
    const char *found = strstr(amp_last_error(), before);
    if (!found) return NULL;
    snprintf(text, sizeof text, "%s", found + sizeof before - 1);
    ck_assert_msg(parse_described(text, &schema) == AMP_OK, "%s is handed back, but: %s", text, amp_last_error());
    amp__free(schema);
    return text;
}

static const struct {
    const char *prototype, *schema;
} prototypes[] = {
    { "void gemm(int TA, int M, float ALPHA, float *A, const float *B, int ldb);",
      "gemm(int TA, int M, float ALPHA, float *A, const float *B, int ldb) -> void" },
    { "tensor *linear(tensor *x, at_Tensor *w, tensor **out)", "linear(Tensor x, Tensor w, pointer out) -> Tensor" },
    { "Tensor *linear(Tensor *x, const Tensor *w, Tensor **out);",
      "linear(Tensor x, Tensor w, pointer out) -> Tensor" },
    { "void f(int n __attribute__((unused)), unsigned __int128 *p)", "f(int n, pointer p) -> void" },
    { "static inline unsigned long count( void )", "count() -> unsigned long" },
    { "float forward(layer l, const struct layer *of, network **net, char const *name)",
      "forward(struct layer l, const struct layer *of, pointer net, const char *name) -> float" },
    { "struct tensor *neg(struct tensor * const restrict)", "neg(Tensor) -> Tensor" },
    { "context_t *start(void);", "start() -> pointer" },
    /* darknet: its prototypes, and the slots of its layers */
    { "void (*forward)(struct layer, struct network)", "forward(struct layer, struct network) -> void" },
    { "void (*update) (struct layer, update_args *);", "update(struct layer, pointer) -> void" },
    { "float (*f)(float)", "f(float) -> float" },
    { "void activate_array(float *x, const int n, const enum ACTIVATION a);",
      "activate_array(float *x, int n, int a) -> void" },
    { "void forward_maxpool_layer(const layer l, network net) {",
      "forward_maxpool_layer(struct layer l, struct network net) -> void" },
    { "float *network_predict(network *net, float *input);",
      "network_predict(struct network *net, float *input) -> float *" },
    { "extern \"C\" void im2col_cpu(float* data_im, int channels, float* data_col);",
      "im2col_cpu(float *data_im, int channels, float *data_col) -> void" },
    /* llm.c */
    { "void encoder_forward(float* out,\n                   int* inp, float* wte, int B)",
      "encoder_forward(float *out, int *inp, float *wte, int B) -> void" },
    { "float* malloc_and_point_parameters(ParameterTensors* params, size_t* param_sizes)",
      "malloc_and_point_parameters(pointer params, size_t *param_sizes) -> float *" },
    { "__global__ void adamw_kernel2(floatX* params, long num_parameters, float beta1)",
      "adamw_kernel2(pointer params, long num_parameters, float beta1) -> void" },
    /* ggml */
    { "GGML_API struct ggml_tensor * ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor  * a, "
      "struct ggml_tensor  * b);",
      "ggml_mul_mat(pointer ctx, Tensor a, Tensor b) -> Tensor" },
    { "void ggml_vec_dot_f32(int n, float * GGML_RESTRICT s, size_t bs, const float * GGML_RESTRICT x)",
      "ggml_vec_dot_f32(int n, float *s, size_t bs, const float *x) -> void" },
    { "GGML_API GGML_CALL bool ggml_is_quantized(enum ggml_type type);", "ggml_is_quantized(int type) -> bool" },
    { "typedef void (*ggml_custom1_op_t)(struct ggml_tensor * dst , const struct ggml_tensor * a, int ith, "
      "void * userdata);",
      "ggml_custom1_op_t(Tensor dst, Tensor a, int ith, void *userdata) -> void" },
    { "GGML_ATTRIBUTE(2, 3) int64_t ggml_nelements(const struct ggml_tensor * tensor) __attribute__((pure));",
      "ggml_nelements(Tensor tensor) -> int64_t" },
    /* what C has beside that */
    { "_Bool f(_Bool a, bool b, unsigned c, long unsigned int d, int long long e, signed f, char signed g, "
      "short unsigned h)",
      "f(bool a, bool b, unsigned int c, unsigned long d, long long e, int f, signed char g, "
      "unsigned short h) -> bool" },
    { "void f(float x[], float a[3][4], char *argv[], const double row[static 3], tensor many[2], float (*rows)[4])",
      "f(float *x, float *a, char **argv, const double *row, pointer many, float *rows) -> void" },
    { "int qsort_r(void *base, int (*compare)(const void *, const void *), double inner(double, int), "
      "int (*)(void), void (*(*how)[2])(int))",
      NULL },
    { "int qsort_r(void *base, int (*compare)(const void *, const void *), double inner(double, int), int (*)(void))",
      "qsort_r(void *base, fn compare, fn inner, fn) -> int" },
    { "void f(float *__restrict__ a, volatile int *b, struct layer *restrict l, enum foo *e, union u *u, "
      "long double *q)",
      "f(float *a, int *b, struct layer *l, pointer e, pointer u, pointer q) -> void" },
    { "void f(void *pointer, float *half, int fn, float *Tensor)", "f(void *, float *half, int fn, float *) -> void" },
    { "Tensor linear(Tensor x, int n = 3)", "linear(Tensor x, int n) -> Tensor" },
    { "int (f)(int)", "f(int) -> int" },
    { "extern tensor *(neg)(const tensor *x);", "neg(Tensor x) -> Tensor" },
    { "void f(int n) noexcept;", "f(int n) -> void" },
    { "void f(int n) noexcept(true)", "f(int n) -> void" },
    { "void f(int n) throw();", "f(int n) -> void" },
    { "/* of a layer */ void f(float *x /* in */, // and\n int n /* its length) */);", "f(float *x, int n) -> void" },
};

TEST(prototypes_come_back_as_schemas) {
    for (size_t i = 0; i < AMP_COUNT(prototypes); i++) {
        struct amp__schema *schema = NULL;
        ck_assert_int_eq(parse_described(prototypes[i].prototype, &schema), AMP_ERR_SCHEMA);
        const char *text = handed_back();
        if (!prototypes[i].schema) ck_assert_msg(!text, "%s", text);
        else ck_assert_msg(text && !strcmp(text, prototypes[i].schema), "%s\n%s", prototypes[i].schema,
                                  amp_last_error());
    }
}

/* What has no form in a schema: which parameter, and what to do. */
static const struct {
    const char *prototype, *says, *points;
} inexpressible[] = {
    { "int printf(const char *format, ...);", "parameter 2 of this C prototype: variadic", "...);" },
    { "void f(int n, long double x)", "parameter 2 of this C prototype: long double", "long double x)" },
    { "double long f(void)", "the result of this C prototype: long double", "double long f(" },
    { "void f(unsigned __int128 x, int y)", "parameter 1 of this C prototype: long double, complex, 128-bit",
      "unsigned __int128 x" },
    { "unsigned __int128 f(int x)", "the result of this C prototype: long double, complex, 128-bit",
      "unsigned __int128 f(" },
    { "double __complex__ z1(int n)", "the result of this C prototype: long double, complex, 128-bit",
      "double __complex__ z1(" },
    { "void f(int n, float __attribute__((vector_size(16))) v)",
      "parameter 2 of this C prototype: long double, complex, 128-bit", "float __attribute__" },
    { "void f(float v __attribute__((vector_size(16))), int n)",
      "parameter 1 of this C prototype: long double, complex, 128-bit", "float v" },
    { "void f(int __attribute__((mode(DI))) x)", "parameter 1 of this C prototype: long double, complex, 128-bit",
      "int __attribute__" },
    { "void f(unsigned _BitInt(128) x)", "parameter 1 of this C prototype: long double, complex, 128-bit",
      "unsigned _BitInt" },
    { "void f(float _Complex z, int n)", "parameter 1 of this C prototype: long double, complex", "float _Complex z" },
    { "void f(int a, union u by)", "parameter 2 of this C prototype: a union", "union u by)" },
    { "void (*forward)(struct layer, struct net)", "describe struct net in structs, and write struct net",
      "struct net)" },
    { "void activate(float *x, ACTIVATION a)", "if ACTIVATION is a struct, describe it in structs", "ACTIVATION a)" },
    { "GGML_API ggml_fp16_t ggml_fp32_to_fp16(float x);", "if ggml_fp16_t is a struct", "GGML_API ggml" },
    { "void show(image im, int n)", "a struct of at most 64 bytes travels in registers", "struct image im" },
    { "void f(half x)", "a 16-bit float cannot be passed by value", "half x)" },
    { "void f(int n, ssize_t k)", "^ write ptrdiff_t", "ssize_t k)" },
    { "void f(intptr_t k)", "^ write ptrdiff_t", "intptr_t k)" },
    { "void f(uintptr_t k)", "^ write size_t", "uintptr_t k)" },
    { "void f(uint k)", "^ write unsigned int", "uint k)" },
    { "int vprintf(const char *format, va_list list);", "^ wire a function that takes no va_list", "va_list list" },
    { "linear(Tensor x, uint n) -> Tensor", "^ write unsigned int", "uint n)" },
    { "linear(Tensor x, ssize_t n) -> Tensor", "^ write ptrdiff_t", "ssize_t n)" },
    { "linear(Tensor x, va_list list) -> Tensor", "^ wire a function that takes no va_list", "va_list list" },
    { "linear(Tensor *x, Tensor w) -> Tensor", "^ write Tensor for tensor *", "*x, Tensor" },
};

TEST(what_no_schema_can_say_is_named) {
    for (size_t i = 0; i < AMP_COUNT(inexpressible); i++) {
        struct amp__schema *schema = NULL;
        ck_assert_int_eq(parse_described(inexpressible[i].prototype, &schema), AMP_ERR_SCHEMA);
        ck_assert_msg(!handed_back() && strstr(amp_last_error(), inexpressible[i].says), "%s\n%s",
                                  inexpressible[i].says,
                      amp_last_error());
        /* the caret stands below what it is about */
        const char *line = strchr(amp_last_error(), '\n') + 1, *below = strchr(line, '\n') + 1;
        ck_assert_msg(!strncmp(line + strcspn(below, "^"), inexpressible[i].points, strlen(inexpressible[i].points)),
                                  "%s",
                      amp_last_error());
    }
}

/* Every type with every declarator: a schema that is one, or the parameter that cannot be. */
TEST(no_hint_is_wrong) {
    static const char *const types[] = {
        "int", "unsigned", "long int unsigned long", "short", "char", "unsigned char", "float", "double",
        "long double", "_Bool",
        "bool", "size_t", "uint8_t", "ptrdiff_t", "half", "bfloat16", "_Complex double", "struct layer", "layer",
        "struct image",
        "image", "struct other", "other", "enum e", "union u", "tensor", "struct at_tensor", "Tensor", "pointer",
        "fn", "void",
        "MACRO int", "MACRO struct layer", "const float", "float const volatile", "register int", "va_list", "__int128",
    };
    static const char *const declarators[] = {
        "x", "", "*x", "*", "**x", "*const x", "* restrict x", "*__restrict__", "x[]", "x[3]", "x[3][4]", "*x[]",
        "(*x)(int)",
        "(*x)[3]", "(*)(void)", "x(float, int)", "*(*x)(int (*)(int))", "* MACRO x", "*pointer", "*Tensor", "half",
        "x = 3",
    };
    size_t schemas = 0;
    for (size_t i = 0; i < AMP_COUNT(types); i++)
        for (size_t j = 0; j < 2 * AMP_COUNT(declarators); j++) {
            char text[256];
            struct amp__schema *schema = NULL;
            snprintf(text, sizeof text, j % 2 ? "int f(char c, %s %s)" : "extern %s %s(int last);", types[i],
                     j % 2 ? declarators[j / 2] : j < 10 ? "f" : "*f");
            ck_assert_int_eq(parse_described(text, &schema), AMP_ERR_SCHEMA);
            const bool handed = handed_back() != NULL;
            schemas += handed;
            ck_assert_msg(handed || strstr(amp_last_error(), "of this C prototype: ") ||
                          strstr(amp_last_error(), "16-bit float") || strstr(amp_last_error(),
                                            "struct of at most 64") ||
                          strstr(amp_last_error(), "argument cannot be void"), "%s: %s", text, amp_last_error());
        }
    ck_assert_uint_gt(schemas, AMP_COUNT(types) * AMP_COUNT(declarators));
}

/* The address alone does not say how long a buffer is, and policy is for those whose length is known. */
TEST(a_buffer_is_told_how_to_be_one) {
    static const struct {
        const char *prototype;
        bool told;
    } cases[] = {
        { "void f(float *x, int n)", true },
        { "void f(int n, const float *x)", true },
        { "float *f(int n)", false },
        { "void f(int *x, Tensor y)", false },
    };
    struct amp__schema *schema = NULL;
    for (size_t i = 0; i < AMP_COUNT(cases); i++) {
        ck_assert_int_eq(parse_described(cases[i].prototype, &schema), AMP_ERR_SCHEMA);
        ck_assert_msg(handed_back() != NULL, "%s", amp_last_error());
        ck_assert_int_eq(parse_described(cases[i].prototype, &schema), AMP_ERR_SCHEMA);
        ck_assert_msg(!!strstr(amp_last_error(), "write float x[N]") == cases[i].told, "%s", amp_last_error());
    }
    ck_assert_int_eq(parse_described("f(float x[N], int N /* elements */) -> void // a schema", &schema), AMP_OK);
    amp__free(schema);
}

/* What is no prototype either gets no such hint. One that does not fit into a message is said to be one. */
TEST(other_texts_are_not_rewritten) {
    static const char *const texts[] = {
        "void f", "void f(int", "void (*f)", "f g(int a) -> void", "a b(,)", "* f()", "int f(int) x", "(*f)(int)",
        "f(int a)", "aten::add(int a)", "void f(const Tensor &x)", "void f(int a,)", "void f(int a, int (b))",
        "int f(int a[)", "void f(struct)",
    };
    struct amp__schema *schema = NULL;
    for (size_t i = 0; i < AMP_COUNT(texts); i++) {
        ck_assert_int_eq(parse_described(texts[i], &schema), AMP_ERR_SCHEMA);
        ck_assert_msg(!strstr(amp_last_error(), "C prototype"), "%s", amp_last_error());
    }
    char lengthy[1024] = "void f(int a0";
    for (int i = 1; strlen(lengthy) < 900; i++) snprintf(lengthy + strlen(lengthy), 40, ", int argument_number_%d", i);
    strcat(lengthy, ")");
    ck_assert_int_eq(parse_described(lengthy, &schema), AMP_ERR_SCHEMA);
    ck_assert_msg(strstr(amp_last_error(), "this is a C prototype") && !handed_back(), "%s", amp_last_error());
}
