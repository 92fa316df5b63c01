/* SPDX-License-Identifier: Apache-2.0 */
/* amp_matmul within the bound of product.c, where it divides its work; what it reads, and what it refuses. */
#include "product.h"

#include "common/common.h"

#include <math.h>
#include <string.h>

static void run_wish(const struct wish *wish, int64_t elements) {
    struct product product = product_new(wish);
    product_check(&product, elements);
    product_free(&product);
}

/* ---- tests ---- */

static const int64_t sizes[] = { 0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 100 };

TEST_TIMES(every_size, AMP_COUNT(sizes)) { /* one run per m */
    random_restart();
    for (size_t n = 0; n < AMP_COUNT(sizes); n++)
        for (size_t k = 0; k < AMP_COUNT(sizes); k++) {
            const struct wish w = random_wish(sizes[_i], sizes[n], sizes[k]);
            run_wish(&w, 200);
        }
}

TEST_TIMES(every_type, 3) { /* one run per type of a */
    random_restart();
    for (int code = 0; code < 81; code++)
        for (int flags = 0; flags < 16; flags++) {
            struct wish w = random_wish(5, 11, 6);
            amp_matmul_args *g = &w.args;
            g->a_dtype = all_types[_i], g->b_dtype = all_types[code % 3], g->c_dtype = all_types[code / 3 % 3];
            g->d_dtype = all_types[code / 9 % 3], g->bias_dtype = all_types[code / 27];
            g->transpose_a = flags & 1, g->transpose_b = flags >> 1 & 1;
            w.with_c = true, w.with_bias = flags & 4, w.in_place = false, w.gaps = flags & 8;
            run_wish(&w, 200);
        }
}

/* Beyond one block in each direction: see BLOCK_M, BLOCK_N, BLOCK_K in matmul.c. */
TEST(several_blocks) {
    static const int64_t shapes[][3] = {
        { 261, 5, 7 }, { 3, 523, 9 }, { 6, 7, 1030 }, { 130, 259, 258 }, { 257, 513, 513 },
    };
    random_restart();
    for (size_t i = 0; i < AMP_COUNT(shapes); i++)
        for (int flags = 0; flags < 4; flags += sweep_step()) {
            struct wish w = random_wish(shapes[i][0], shapes[i][1], shapes[i][2]);
            w.args.transpose_a = flags & 1, w.args.transpose_b = flags >> 1, w.args.alpha = 1.0f, w.args.batch = 1;
            w.with_c = w.with_bias = true, w.in_place = flags == 3, w.gaps = flags & 1;
            run_wish(&w, 2000);
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
