/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_matmul against sums in double.
 *
 * The bound, after Higham, Accuracy and Stability of Numerical Algorithms, 3.1: let u = 2^-24 and
 * g(n) = n u / (1 - n u). A float sum of k products in any order, with or without fused operations, is off by at most
 * g(k) times the sum of |a||b|. Multiplying by alpha, then adding beta * c (itself one rounding) and the bias, adds at
 * most 4 more roundings to each term. So before the last rounding
 *     |error| <= g(k + 4) * (|alpha| * sum |a||b| + |beta c| + |bias|).
 * Rounding to d's type with p significant bits adds 2^-p of the result, or half of d's least subnormal. Subnormal
 * floats add half of 2^-149 an operation, far below what the operands here reach. The sums in double are off by 2^-29
 * of the same bound; one of the 4 has room for it, since beta * c and bias take part in fewer.
 */
#include "support.h"

#include "amp_kernels.h"
#include "common/common.h"

#include <math.h>
#include <string.h>

/* ---- one case ---- */

enum { A, B, C, D, BIAS, OPERANDS };

/* Guarded operands, and what they held. */
struct matmul_case {
    amp_matmul_args args;
    struct guard guard[OPERANDS];
    unsigned char *data[OPERANDS], *c_before;
    size_t bytes[OPERANDS];
    int64_t ld[OPERANDS]; /* as ld_x, never 0 */
};

/* Of a matrix that ends with its last element, not with its last row's distance. */
static size_t extent(int64_t rows, int64_t cols, int64_t ld) {
    return rows && cols ? (size_t)((rows - 1) * ld + cols) : 0;
}

static unsigned char *place(struct matmul_case *t, int operand, amp_dtype type, size_t n) {
    t->bytes[operand] = n * amp__dtype_size(type);
    t->guard[operand] = guard_new(t->bytes[operand] + GUARD_BORDER);
    t->data[operand] = guard_place(&t->guard[operand], t->bytes[operand], 0);
    fill(PATTERN_NORMAL, type, t->data[operand], n);
    return t->data[operand];
}

/* Allocates for g's sizes, types and flags; gaps: rows lie further apart than they need. */
static struct matmul_case make_case(amp_matmul_args g, bool with_c, bool with_bias, bool in_place, bool gaps) {
    struct matmul_case t = { .args = g };
    const int64_t a_rows = g.transpose_a ? g.k : g.m, a_cols = g.transpose_a ? g.m : g.k;
    const int64_t b_rows = g.transpose_b ? g.n : g.k, b_cols = g.transpose_b ? g.k : g.n;
    t.ld[A] = a_cols + gaps, t.ld[B] = b_cols + 3 * gaps, t.ld[D] = g.n + 5 * gaps;
    t.ld[C] = in_place ? t.ld[D] : g.n + gaps;
    if (in_place) t.args.c_dtype = g.d_dtype;
    t.args.a = place(&t, A, g.a_dtype, extent(a_rows, a_cols, t.ld[A]));
    t.args.b = place(&t, B, g.b_dtype, extent(b_rows, b_cols, t.ld[B]));
    t.args.d = place(&t, D, g.d_dtype, extent(g.m, g.n, t.ld[D]));
    if (with_bias) t.args.bias = place(&t, BIAS, g.bias_dtype, (size_t)g.n);
    if (with_c && in_place) t.args.c = t.args.d;
    else if (with_c) t.args.c = place(&t, C, g.c_dtype, extent(g.m, g.n, t.ld[C]));
    if (gaps) t.args.ld_a = t.ld[A], t.args.ld_b = t.ld[B], t.args.ld_c = t.ld[C], t.args.ld_d = t.ld[D];
    t.c_before = amp__alloc(t.bytes[D] + t.bytes[C], 1);
    const int c_place = in_place ? D : C;
    if (with_c) memcpy(t.c_before, t.data[c_place], t.bytes[c_place]);
    return t;
}

static void free_case(struct matmul_case *t) {
    for (int i = 0; i < OPERANDS; i++)
        if (t->guard[i].begin) guard_free(&t->guard[i]);
    amp__free(t->c_before);
}

static double at(amp_dtype type, const void *data, int64_t index) {
    return value_of_bits(type, get_bits(type, data, (size_t)index));
}

static int significant_bits(amp_dtype type) { return type == AMP_FLOAT32 ? 24 : type == AMP_FLOAT16 ? 11 : 8; }

static void check_element(const struct matmul_case *t, int64_t i, int64_t j) {
    const amp_matmul_args *g = &t->args;
    const double u = 0x1p-24, roundings = (double)(g->k + 4);
    double sum = 0.0, magnitude = 0.0;
    for (int64_t p = 0; p < g->k && g->alpha != 0.0f; p++) {
        const double a = at(g->a_dtype, g->a, g->transpose_a ? p * t->ld[A] + i : i * t->ld[A] + p);
        const double b = at(g->b_dtype, g->b, g->transpose_b ? j * t->ld[B] + p : p * t->ld[B] + j);
        sum += (double)g->alpha * a * b;
        magnitude += fabs((double)g->alpha * a * b);
    }
    const double c = g->c && g->beta != 0.0f ? (double)g->beta * at(g->c_dtype, t->c_before, i * t->ld[C] + j) : 0.0;
    const double bias = g->bias ? at(g->bias_dtype, g->bias, j) : 0.0;
    const double want = sum + c + bias, got = at(g->d_dtype, g->d, i * t->ld[D] + j);
    const double before = roundings * u / (1 - roundings * u) * (magnitude + fabs(c) + fabs(bias));
    const double least = value_of_bits(g->d_dtype, 1);
    const double bound = before + fmax(ldexp(fabs(want) + before, -significant_bits(g->d_dtype)), least / 2);
    CHECK_THAT(fabs(got - want) <= bound,
                  "%lldx%lldx%lld types %d %d %d %d %d transposes %d %d alpha %g beta %g: [%lld][%lld] is %g, want %g, "
                  "bound %g",
                  (long long)g->m, (long long)g->n, (long long)g->k, g->a_dtype, g->b_dtype, g->c_dtype, g->d_dtype,
                  g->bias_dtype, g->transpose_a, g->transpose_b, (double)g->alpha, (double)g->beta, (long long)i,
                  (long long)j, got, want, bound);
}

/* Runs the case and checks it; elements: of large ones, about so many. */
static void check_case(struct matmul_case *t, int64_t elements) {
    const amp_matmul_args *g = &t->args;
    unsigned char *d_before = amp__alloc(t->bytes[D], 1);
    memcpy(d_before, t->data[D], t->bytes[D]);
    ck_assert_msg(amp_matmul(g) == AMP_OK, "%s", amp_last_error());
    const int64_t step = g->m * g->n > elements ? g->m * g->n / elements : 1;
    for (int64_t e = 0; e < g->m * g->n; e += step) check_element(t, e / g->n, e % g->n);
    for (size_t e = 0; e < t->bytes[D] / amp__dtype_size(g->d_dtype); e++) /* between the rows */
        CHECK_THAT((int64_t)e % t->ld[D] < g->n || get_bits(g->d_dtype, g->d, e) == get_bits(g->d_dtype, d_before, e),
                   "wrote between the rows of d");
    for (int i = 0; i < OPERANDS; i++)
        if (t->guard[i].begin) CHECK_THAT(guard_intact(&t->guard[i], t->bytes[i], 0), "wrote outside operand %d", i);
    amp__free(d_before);
    free_case(t);
}

static amp_matmul_args random_args(int64_t m, int64_t n, int64_t k) {
    static const float factors[] = { 0.0f, 1.0f, -0.37f };
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.m = m, g.n = n, g.k = k;
    g.a_dtype = all_types[random_below(3)], g.b_dtype = all_types[random_below(3)];
    g.c_dtype = all_types[random_below(3)], g.d_dtype = all_types[random_below(3)];
    g.bias_dtype = all_types[random_below(3)];
    g.transpose_a = (int32_t)random_below(2), g.transpose_b = (int32_t)random_below(2);
    g.alpha = factors[random_below(8) % 3], g.beta = factors[random_below(3)];
    return g;
}

/* ---- tests ---- */

static const int64_t sizes[] = { 0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 100 };

TEST_TIMES(every_size, AMP_COUNT(sizes)) { /* one run per m */
    random_restart();
    for (size_t n = 0; n < AMP_COUNT(sizes); n++)
        for (size_t k = 0; k < AMP_COUNT(sizes); k++) {
            const amp_matmul_args g = random_args(sizes[_i], sizes[n], sizes[k]);
            const bool with_c = random_below(2), with_bias = random_below(2), in_place = random_below(3) == 0;
            struct matmul_case t = make_case(g, with_c, with_bias, in_place, random_below(2));
            check_case(&t, 200);
        }
}

TEST_TIMES(every_type, 3) { /* one run per type of a */
    random_restart();
    for (int code = 0; code < 81; code++)
        for (int flags = 0; flags < 16; flags++) {
            amp_matmul_args g = random_args(5, 11, 6);
            g.a_dtype = all_types[_i], g.b_dtype = all_types[code % 3], g.c_dtype = all_types[code / 3 % 3];
            g.d_dtype = all_types[code / 9 % 3], g.bias_dtype = all_types[code / 27];
            g.transpose_a = flags & 1, g.transpose_b = flags >> 1 & 1;
            struct matmul_case t = make_case(g, true, flags & 4, false, flags & 8);
            check_case(&t, 200);
        }
}

/* Beyond one block in each direction: see BLOCK_M, BLOCK_N, BLOCK_K in matmul.c. */
TEST(several_blocks) {
    static const int64_t shapes[][3] = {
        { 261, 5, 7 }, { 3, 523, 9 }, { 6, 7, 1030 }, { 130, 259, 258 }, { 257, 513, 513 },
    };
    random_restart();
    for (size_t i = 0; i < AMP_COUNT(shapes); i++)
        for (int flags = 0; flags < 4; flags++) {
            amp_matmul_args g = random_args(shapes[i][0], shapes[i][1], shapes[i][2]);
            g.transpose_a = flags & 1, g.transpose_b = flags >> 1, g.alpha = 1.0f;
            struct matmul_case t = make_case(g, true, true, flags == 3, flags & 1);
            check_case(&t, 2000);
        }
}

/* An element depends on its row and column alone, not on where they lie in the matrix. */
TEST(blocking_changes_no_bit) {
    enum { M = 140, N = 270, K = 300 };
    static float a[M * K], b[K * N], whole[M * N], one;
    random_restart();
    fill(PATTERN_NORMAL, AMP_FLOAT32, a, M * K);
    fill(PATTERN_NORMAL, AMP_FLOAT32, b, K * N);
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32;
    g.backend = AMP_MATMUL_BUILTIN; /* nobody promises it for the others */
    g.m = M, g.n = N, g.k = K, g.a = a, g.b = b, g.d = whole;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    g.m = g.n = 1, g.ld_b = N, g.d = &one;
    for (size_t e = 0; e < M * N; e += 97) {
        g.a = a + e / N * K, g.b = b + e % N;
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
        ck_assert_mem_eq(&one, &whole[e], sizeof one);
    }
}

TEST(zero_factors_read_nothing) {
    float nan[4] = { NAN, NAN, NAN, NAN }, one[4] = { 1, 1, 1, 1 }, bias[2] = { 0.5f, -1.0f }, d[4];
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.c_dtype = g.d_dtype = g.bias_dtype = AMP_FLOAT32;
    g.m = g.n = g.k = 2, g.a = one, g.b = one, g.c = nan, g.d = d, g.bias = bias;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK); /* beta 0 */
    ck_assert_mem_eq(d, ((float[]){ 2.5f, 1.0f, 2.5f, 1.0f }), sizeof d);
    g.a = g.b = nan, g.c = one, g.alpha = 0.0f, g.beta = 3.0f;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_mem_eq(d, ((float[]){ 3.5f, 2.0f, 3.5f, 2.0f }), sizeof d);
    g.a = g.b = NULL;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_mem_eq(d, ((float[]){ 3.5f, 2.0f, 3.5f, 2.0f }), sizeof d);
    g.k = 0, g.alpha = INFINITY; /* an empty sum is 0 whatever alpha is */
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_mem_eq(d, ((float[]){ 3.5f, 2.0f, 3.5f, 2.0f }), sizeof d);
}

TEST(low_results_overflow_to_infinity) {
    const uint16_t a[2] = { 0x7bff, 0x7bff }, b[2] = { 0x3c00, 0x3c00 };
    uint16_t d = 0;
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT16;
    g.m = g.n = 1, g.k = 2, g.a = a, g.b = b, g.d = &d;
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_uint_eq(d, 0x7c00);
    g.alpha = 0.5f; /* the sum itself is a float */
    ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    ck_assert_uint_eq(d, 0x7bff);
}

/* ---- errors ---- */

static float operand[4], result[4];

/* A call that is right but for one thing. */
#define REFUSALS(X)                                                                                                    \
    X(g.m = -1, "none may be negative")                                                                                \
    X(g.n = -1, "none may be negative")                                                                                \
    X(g.k = INT64_MIN, "none may be negative")                                                                         \
    X(g.a = NULL, "a is NULL")                                                                                         \
    X(g.b = NULL, "b is NULL")                                                                                         \
    X(g.d = NULL, "d is NULL")                                                                                         \
    X(g.ld_a = 1, "ld_a is 1, less than the 2")                                                                        \
    X(g.ld_b = -2, "ld_b is -2")                                                                                       \
    X(g.ld_d = 1, "ld_d")                                                                                              \
    X((g.c = operand, g.c_dtype = AMP_FLOAT32, g.ld_c = 1), "ld_c")                                                    \
    X((g.c = operand, g.c_dtype = AMP_FLOAT64), "c is fp64")                                                           \
    X((g.c = result, g.c_dtype = AMP_FLOAT32, g.ld_c = 2, g.ld_d = 3), "same memory")                                  \
    X(g.a_dtype = AMP_FLOAT64, "a is fp64")                                                                            \
    X(g.b_dtype = AMP_DTYPE_DEFAULT, "b is default")                                                                   \
    X(g.d_dtype = 77, "d is unknown")                                                                                  \
    X(g.bias = operand, "bias is default")                                                                             \
    X(g.transpose_a = 2, "transpose_a is 2")                                                                           \
    X(g.transpose_b = -1, "transpose_b is -1")                                                                         \
    X((g.m = INT64_MAX / 4, g.k = 16), "larger than memory")                                                           \
    X((g.n = INT64_MAX / 4, g.k = 16), "larger than memory")                                                           \
    X(g.batch = -1, "batch is -1")                                                                                     \
    X(g.batch = 2, "stride_d is 0")                                                                                    \
    X((g.batch = 2, g.stride_d = 3), "stride_d is 3: the products of the batch overlap")                               \
    X((g.batch = 2, g.stride_d = 2, g.ld_d = 3), "overlap")                                                            \
    X((g.batch = 2, g.stride_d = 4, g.stride_a = -1), "stride_a is -1")                                                \
    X((g.batch = 1 << 20, g.stride_d = 4, g.stride_b = INT64_MAX >> 10), "stride_b")                                   \
    X((g.batch = 2, g.stride_d = 4, g.c = result, g.c_dtype = AMP_FLOAT32), "different strides")                       \
    X(g.activation = -1, "activation is -1")                                                                           \
    X(g.activation = 4, "activation is 4")                                                                             \
    X(g.backend = -1, "backend is -1")                                                                                 \
    X(g.backend = 3, "backend is 3")                                                                                   \
    X((g.m = INT64_C(1) << 40, g.n = INT64_C(1) << 40, g.k = 0), "larger than memory")

static amp_matmul_args good_args(void) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32;
    g.m = g.n = g.k = 2, g.a = operand, g.b = operand, g.d = result;
    return g;
}

static void expect_refusal(const amp_matmul_args *g, amp_status status, const char *says) {
    result[0] = 7.0f;
    ck_assert_int_eq(amp_matmul(g), status);
    ck_assert_msg(strstr(amp_last_error(), says) != NULL, "\"%s\" does not say \"%s\"", amp_last_error(), says);
    ck_assert(result[0] == 7.0f);
}

TEST(bad_arguments_are_refused) {
    amp_matmul_args g = good_args();
    ck_assert_int_eq(amp_matmul(&g), AMP_OK); /* so that each refusal is for its change alone */
#define CHECK_REFUSAL(change, says) g = good_args(), change, expect_refusal(&g, AMP_ERR_INVALID_ARGUMENT, says);
    REFUSALS(CHECK_REFUSAL)
#undef CHECK_REFUSAL
    expect_refusal(NULL, AMP_ERR_INVALID_ARGUMENT, "NULL");
    g = good_args(), g.struct_size = 0;
    expect_refusal(&g, AMP_ERR_ABI_MISMATCH, "struct_size is 0");
    g = good_args(), g.struct_size = offsetof(amp_matmul_args, batch) - 8; /* the first release ended at batch */
    expect_refusal(&g, AMP_ERR_ABI_MISMATCH, "struct_size");
}
