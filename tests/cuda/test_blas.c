/* SPDX-License-Identifier: Apache-2.0 */
/* What of products needs no CUDA at all: how they are laid out for cuBLASLt, and what is remembered of shapes. */
#include "kernels/cuda/blas_cache.h"
#include "kernels/cuda/blas_plan.h"
#include "test.h"

#include <string.h>

/* ---- the plan ---- */

static uint16_t memory[4]; /* whatever addresses point to */

static amp_matmul_args args_of(int64_t m, int64_t n, int64_t k) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.m = m, g.n = n, g.k = k, g.batch = 1;
    g.a_dtype = g.b_dtype = g.c_dtype = g.d_dtype = g.bias_dtype = AMP_BFLOAT16;
    g.a = &memory[0], g.b = &memory[1], g.c = &memory[2], g.d = &memory[3];
    g.ld_a = 100, g.ld_b = 200, g.ld_c = 300, g.ld_d = 400;
    g.stride_a = 1000, g.stride_b = 2000, g.stride_c = 3000, g.stride_d = 4000;
    return g;
}

static void expect_matrix(const struct blas_matrix *x, uint64_t rows, uint64_t cols, int64_t ld, int64_t stride,
                          const void *data) {
    ck_assert_uint_eq(x->rows, rows);
    ck_assert_uint_eq(x->cols, cols);
    ck_assert_int_eq(x->ld, ld);
    ck_assert_int_eq(x->stride, stride);
    ck_assert_ptr_eq(x->data, data);
}

/* The transpose of d is that of op(b) times that of op(a): what lies row by row lies column by column, the other way
 * round. */
TEST_TIMES(test_layouts, 4) {
    const amp_device_epilogue e = AMP_DEVICE_EPILOGUE_INIT;
    amp_matmul_args g = args_of(3, 5, 7);
    struct blas_plan plan;
    g.transpose_a = _i & 1, g.transpose_b = _i >> 1, g.beta = 2.0f, g.alpha = 3.0f;
    ck_assert_ptr_null(cuda_blas_plan(&g, &e, true, &plan));
    ck_assert_int_eq(plan.transpose_a, g.transpose_b);
    ck_assert_int_eq(plan.transpose_b, g.transpose_a);
    expect_matrix(&plan.a, g.transpose_b ? 7 : 5, g.transpose_b ? 5 : 7, 200, 2000, g.b);
    expect_matrix(&plan.b, g.transpose_a ? 3 : 7, g.transpose_a ? 7 : 3, 100, 1000, g.a);
    expect_matrix(&plan.c, 5, 3, 300, 3000, g.c);
    expect_matrix(&plan.d, 5, 3, 400, 4000, g.d);
    ck_assert(plan.alpha == 3.0f && plan.beta == 2.0f && plan.multiplies);
    ck_assert_uint_eq(plan.left, 0);
}

TEST(test_scratch) {
    const amp_device_epilogue e = AMP_DEVICE_EPILOGUE_INIT;
    amp_matmul_args g = args_of(3, 5, 7);
    struct blas_plan plan;
    struct cuda_finish finish;
    g.beta = 1.0f, g.c_dtype = AMP_FLOAT32, g.batch = 2; /* an fp32 c cannot be added to bf16 but after fp32 sums */
    ck_assert_ptr_null(cuda_blas_plan(&g, &e, true, &plan));
    ck_assert_uint_eq(plan.scratch, 2 * 3 * 5 * 4);
    expect_matrix(&plan.d, 5, 3, 5, 15, NULL);
    ck_assert_int_eq(plan.d.type, AMP_FLOAT32);
    ck_assert_uint_eq(plan.left, BLAS_CONVERT); /* cuBLASLt adds it to those */
    ck_assert(cuda_blas_finish(&g, &e, &plan, memory, &finish));
    ck_assert_ptr_eq(finish.sides[CUDA_SUMS].data, (unsigned char *)memory);
    ck_assert_int_eq(finish.sides[CUDA_SUMS].ld, 20);
    ck_assert_int_eq(finish.sides[CUDA_SUMS].stride, 60);
    ck_assert_int_eq(finish.sides[CUDA_D].ld, 800);
    g.a_dtype = AMP_FLOAT16;
    ck_assert_ptr_nonnull(cuda_blas_plan(&g, &e, true, &plan));
    g.a_dtype = AMP_BFLOAT16, g.batch = INT64_C(1) << 31;
    ck_assert_ptr_nonnull(cuda_blas_plan(&g, &e, true, &plan));
}

/* 16 bytes at a time where every row of every product begins on such a boundary. */
TEST(test_width) {
    static unsigned char room[64] __attribute__((aligned(16)));
    const amp_device_epilogue e = AMP_DEVICE_EPILOGUE_INIT;
    amp_matmul_args g = args_of(3, 16, 7);
    struct blas_plan plan;
    struct cuda_finish finish;
    static const struct {
        int shift;
        int64_t ld, stride;
        bool wide;
    } cases[] = {
        { 0, 16, 48, true }, { 2, 16, 48, false }, { 0, 20, 64, false }, { 0, 16, 50, false }, { 16, 24, 72, true }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        g.c = NULL, g.d = room + cases[i].shift, g.ld_d = cases[i].ld, g.stride_d = cases[i].stride, g.batch = 2;
        g.activation = AMP_ACTIVATION_RELU;
        ck_assert_ptr_null(cuda_blas_plan(&g, &e, false, &plan));
        ck_assert(cuda_blas_finish(&g, &e, &plan, NULL, &finish));
        ck_assert_msg(CUDA_WIDE(finish.shape, CUDA_D) == cases[i].wide, "case %zu", i);
    }
}

/* ---- division without dividing ---- */

TEST(test_divisor) {
    static const uint32_t bys[] = { 1,     2,     3,          5,          7,          9,         641,
                                    65535, 65536, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff };
    for (size_t i = 0; i < sizeof bys / sizeof *bys; i++) {
        const struct cuda_divisor by = cuda_divisor_of(bys[i]);
        const uint64_t steps = UINT32_MAX / bys[i] + 1, stride = steps / 4096 + 1; /* around multiples of it */
        for (uint64_t k = 0; k <= steps; k += stride)
            for (uint32_t n = (uint32_t)(k * bys[i]) - 2, end = n + 5; n != end; n++)
                ck_assert_msg(cuda_quotient(n, &by) == n / bys[i], "%u / %u", n, bys[i]);
    }
}

TEST(test_more_groups_than_are_counted) {
    const amp_device_epilogue e = AMP_DEVICE_EPILOGUE_INIT;
    amp_matmul_args g = args_of(1 << 20, 1 << 15, 7);
    struct blas_plan plan;
    g.c = NULL, g.activation = AMP_ACTIVATION_RELU, g.batch = 1;
    ck_assert_ptr_nonnull(cuda_blas_plan(&g, &e, false, &plan)); /* 2^32 of them */
    g.n--, g.m--;
    ck_assert_ptr_null(cuda_blas_plan(&g, &e, false, &plan));
    g.batch = INT32_MAX;
    ck_assert_ptr_nonnull(cuda_blas_plan(&g, &e, false, &plan));
    g.activation = AMP_ACTIVATION_NONE;
    ck_assert_ptr_null(cuda_blas_plan(&g, &e, false, &plan)); /* cuBLASLt does it all */
    g.k = 0;
    ck_assert_ptr_nonnull(cuda_blas_plan(&g, &e, false, &plan));
}

/* ---- what is remembered ---- */

static struct blas_key key_of(uint64_t i) {
    struct blas_key key = { { 0 } };
    key.words[1] = 8 * i, key.words[3] = 64;
    return key;
}

TEST(test_cache) {
    enum { MANY = 10000 };
    static struct blas_cache cache;
    struct blas_choice choice;
    for (uint64_t i = 0; i < MANY; i++) {
        const struct blas_key key = key_of(i), pinned = key_of(0);
        ck_assert(!cuda_blas_find(&cache, &key, &choice));
        choice = (struct blas_choice){ .workspace = i };
        cuda_blas_add(&cache, &key, &choice);
        ck_assert(cuda_blas_find(&cache, &key, &choice) && choice.workspace == i);
        ck_assert_msg(cuda_blas_find(&cache, &pinned, &choice) && choice.workspace == 0,
                      "used often, and forgotten: %d", (int)i);
    }
    size_t known = 0;
    for (uint64_t i = 0; i < MANY; i++) {
        const struct blas_key key = key_of(i);
        if (cuda_blas_find(&cache, &key, &choice)) known++, ck_assert(choice.workspace == i);
    }
    ck_assert_uint_eq(known, BLAS_SETS * BLAS_WAYS);
    const struct blas_key last = key_of(MANY - 1);
    choice.workspace = 7;
    cuda_blas_add(&cache, &last, &choice); /* in its place */
    ck_assert(cuda_blas_find(&cache, &last, &choice) && choice.workspace == 7);
}

/* The shapes of one network spread over the sets. */
TEST(test_spread) {
    static struct blas_cache cache;
    struct blas_choice choice = { .status = 0 };
    size_t known = 0;
    for (uint64_t i = 0; i < 256; i++) {
        const struct blas_key key = key_of(i);
        cuda_blas_add(&cache, &key, &choice);
    }
    for (uint64_t i = 0; i < 256; i++) {
        const struct blas_key key = key_of(i);
        known += cuda_blas_find(&cache, &key, &choice);
    }
    ck_assert_uint_ge(known, 230);
}
