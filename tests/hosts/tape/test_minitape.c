/* SPDX-License-Identifier: Apache-2.0 */
/* minitape without its operators: conversions, tape, memory, optimizers. */
#include "minitape.h"

#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static mt_ops *ops;

static mt_tensor *vector(mt_dtype dtype, int n, const float *values) {
    mt_tensor *t = mt_tensor_new(dtype, 1, &n, MT_MEM_PARAMETER);
    ck_assert_ptr_nonnull(t);
    mt_write(t, values);
    return t;
}

static mt_tensor *leaf(mt_dtype dtype, int n, const float *values) {
    mt_tensor *t = vector(dtype, n, values);
    t->requires_grad = 1;
    return t;
}

static void check_values(const mt_tensor *t, const double *expected) {
    ck_assert_ptr_nonnull(t);
    for (size_t i = 0; i < mt_numel(t); i++) ck_assert_double_eq_tol(mt_get(t, i), expected[i], 1e-6);
}

/* After each test. */
static void check_nothing_held(void) {
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
}
TEST_FIXTURE(NULL, check_nothing_held)

/* What ends with its block; an optimizer after the parameters that it has. */
static void tensor_end(mt_tensor **t) { mt_release(*t); }
static void optimizer_end(mt_optimizer **optimizer) { mt_optimizer_free(*optimizer); }
#define OWN __attribute__((cleanup(tensor_end))) mt_tensor
#define OWN_OPTIMIZER __attribute__((cleanup(optimizer_end))) mt_optimizer

static void ck_refused(int refused, const char *part) {
    ck_assert_msg(refused && strstr(mt_error(), part) != NULL, "\"%s\" lacks \"%s\"", mt_error(), part);
    mt_clear_error();
}

/* ---- conversions ---- */

/* The value of 16 bits, from the definition of the formats. */
static double value_of(uint16_t h, int exponent_bits) {
    int mantissa_bits = 15 - exponent_bits, exponent = (h & 0x7fff) >> mantissa_bits;
    int mantissa = h & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double m = ldexp(mantissa, -mantissa_bits);
    double v = exponent ? ldexp(1.0 + m, exponent - bias) : ldexp(m, 1 - bias);
    return h & 0x8000 ? -v : v;
}

static uint16_t to_16(mt_dtype dtype, float f) {
    uint16_t h;
    mt_convert(dtype, &h, MT_F32, &f, 1);
    return h;
}

static float from_16(mt_dtype dtype, uint16_t h) {
    float f;
    mt_convert(MT_F32, &f, dtype, &h, 1);
    return f;
}

/* Every finite number, and what lies at and next to the middle between it and the next one; the last "next one" is
 * where infinity begins. */
static void check_format(mt_dtype dtype, int exponent_bits, uint16_t infinity) {
    for (uint16_t h = 0; h < infinity; h++) {
        double value = value_of(h, exponent_bits);
        double next = value_of((uint16_t)(h + 1), exponent_bits);
        float middle = (float)((value + next) / 2);
        uint16_t even = (uint16_t)(h + (h & 1));
        ck_assert_double_eq((double)from_16(dtype, h), value);
        ck_assert_double_eq((double)from_16(dtype, h | 0x8000), -value);
        ck_assert_uint_eq(to_16(dtype, (float)value), h);
        ck_assert_uint_eq(to_16(dtype, (float)-value), h | 0x8000);
        if (isinf(middle)) continue; /* past the largest float */
        ck_assert_uint_eq(to_16(dtype, middle), even);
        ck_assert_uint_eq(to_16(dtype, nextafterf(middle, 0.0f)), h);
        ck_assert_uint_eq(to_16(dtype, nextafterf(middle, INFINITY)), h + 1);
        ck_assert_uint_eq(to_16(dtype, -middle), even | 0x8000);
    }
    for (uint16_t h = (uint16_t)(infinity + 1); h < 0x8000; h++) {
        ck_assert(isnan(from_16(dtype, h)));
        ck_assert(isnan(from_16(dtype, to_16(dtype, from_16(dtype, h)))));
    }
    ck_assert_uint_eq(to_16(dtype, INFINITY), infinity);
    ck_assert_uint_eq(to_16(dtype, -INFINITY), infinity | 0x8000);
    ck_assert_float_eq(from_16(dtype, infinity), INFINITY);
    ck_assert(isnan(from_16(dtype, to_16(dtype, NAN))));
}

TEST(conversions_round_to_nearest_even) {
    check_format(MT_F16, 5, 0x7c00);
    check_format(MT_BF16, 8, 0x7f80);
}

TEST(conversions_overflow_to_infinity) {
    ck_assert_uint_eq(to_16(MT_F16, 65504.0f), 0x7bff);
    ck_assert_uint_eq(to_16(MT_F16, 65519.0f), 0x7bff);
    ck_assert_uint_eq(to_16(MT_F16, 65520.0f), 0x7c00);
    ck_assert_uint_eq(to_16(MT_F16, -1e30f), 0xfc00);
    ck_assert_uint_eq(to_16(MT_BF16, 3.4028235e38f), 0x7f80);
    /* A nan whose payload lies in the lost bits stays a nan. */
    uint32_t bits = 0x7f800001;
    float nan;
    memcpy(&nan, &bits, sizeof(nan));
    ck_assert_uint_eq(to_16(MT_BF16, nan), 0x7fc0);
}

/* ---- tensors and memory ---- */

TEST(memory_is_accounted_by_category) {
    mt_storage *s = mt_storage_new(100, MT_MEM_OTHER);
    mt_mem_reset_peak();
    mt_storage_retag(s, MT_MEM_GRADIENT);
    ck_assert_uint_eq(mt_mem_now(MT_MEM_OTHER), 0);
    ck_assert_uint_eq(mt_mem_peak(MT_MEM_OTHER), 100);
    ck_assert_uint_eq(mt_mem_now(MT_MEM_GRADIENT), 100);
    mt_storage_free(s);
    ck_assert_uint_eq(mt_mem_peak(MT_MEM_GRADIENT), 100);
}

TEST(swap_storage_keeps_the_tensor) {
    OWN *t = leaf(MT_F32, 2, (float[]){ 1, 2 });
    mt_storage *half = mt_storage_new(4, MT_MEM_PARAMETER);
    uint64_t id = t->id, version = t->version;
    mt_storage *old;
    ck_refused(!mt_tensor_swap_storage(t, half, MT_F32), "too small");
    mt_convert(MT_F16, half->data, MT_F32, t->storage->data, 2);
    old = mt_tensor_swap_storage(t, half, MT_F16);
    ck_assert_ptr_nonnull(old);
    mt_storage_free(old);
    check_values(t, (double[]){ 1, 2 });
    ck_assert_uint_eq(t->id, id);
    ck_assert_uint_eq(t->version, version);
    ck_assert_uint_eq(mt_mem_now(MT_MEM_PARAMETER), 4);
}

TEST(bad_arguments_leave_a_message) {
    OWN *a = vector(MT_F32, 2, (float[]){ 1, 2 }), *b = vector(MT_F16, 2, (float[]){ 1, 2 });
    OWN *i = vector(MT_I32, 2, (float[]){ 0, 5 }), *m = mt_tensor_new(MT_F32, 2, (int[]){ 2, 3 }, MT_MEM_OTHER);
    ck_refused(!ops->add(a, b), "add: input 0 is f32 but input 1 is f16");
    ck_refused(!ops->relu(i), "i32");
    ck_refused(!ops->add(a, m), "shapes");
    ck_refused(!ops->linear(m, a, NULL), "weight has 1 dim");
    ck_refused(!ops->nll_loss(m, i), "no class");
    ck_refused(!ops->cat((mt_tensor *[]){ a, m }, 2, 0), "does not fit");
    ck_refused(!ops->batch_norm(m, b, b, b, b, 1, 0.1f, 1e-5f), "parameters");
    ck_refused(ops->add_(a, b, 1.0f) == -1, "f16");
    ck_refused(!mt_tensor_new(MT_F32, 1, (int[]){ -1 }, MT_MEM_OTHER), "-1");
    /* The first message survives a chain that goes on with NULL. */
    ck_refused(!ops->relu(ops->relu(ops->add(a, b))), "add:");
}

/* ---- the tape ---- */

TEST(gradients_accumulate) {
    OWN *x = leaf(MT_F32, 2, (float[]){ 1, -2 });
    for (int i = 1; i <= 2; i++) {
        /* Used three times in one graph: x * x + x. */
        mt_tensor *y = ops->mul(x, x);
        y = mt_then(y, ops->add(y, x));
        ck_assert_int_eq(mt_backward(y), 0);
        mt_release(y);
        check_values(x->grad, (double[]){ 3.0 * i, -3.0 * i });
        ck_assert_uint_eq(mt_mem_now(MT_MEM_ACTIVATION), 0);
        ck_assert_uint_eq(mt_mem_now(MT_MEM_GRADIENT), 8);
    }
}

TEST(leaves_do_not_share_a_gradient) {
    OWN *a = leaf(MT_F32, 1, (float[]){ 1 }), *b = leaf(MT_F32, 1, (float[]){ 2 }), *y = ops->add(a, b);
    ck_assert_int_eq(mt_backward_seed(y, 8.0f), 0);
    ck_assert_ptr_ne(a->grad, b->grad);
    mt_fill(a->grad, 0.0);
    check_values(b->grad, (double[]){ 8 });
}

TEST(cast_returns_the_gradient_in_the_source_type) {
    OWN *x = leaf(MT_F32, 1, (float[]){ 0.3f }), *h = ops->cast(x, MT_F16), *y = ops->scale(h, 3.0f);
    mt_tensor *same = ops->cast(x, MT_F32);
    ck_assert_ptr_eq(same, x);
    mt_release(same);
    ck_assert_int_eq(y->dtype, MT_F16);
    ck_assert_int_eq(mt_backward(y), 0);
    ck_assert_int_eq(x->grad->dtype, MT_F32);
    check_values(x->grad, (double[]){ 3 });
}

TEST(backward_refuses_what_it_cannot_do) {
    OWN *x = leaf(MT_F32, 1, (float[]){ 2 }), *y = ops->mul(x, x);
    ck_assert_int_eq(mt_backward(y), 0);
    ck_refused(mt_backward(y) == -1, "freed");
    y = mt_then(y, ops->mul(x, x));
    mt_set(x, 0, 5.0);
    ck_refused(mt_backward(y) == -1, "changed in place");
    ck_refused(mt_backward(x) == -1, "no graph");
    ck_refused(ops->add_(x, x, 1.0f) == -1, "requires a gradient");
}

TEST(nothing_is_recorded_when_disabled) {
    OWN *x = leaf(MT_F32, 1, (float[]){ 2 });
    int before = mt_set_grad_enabled(0);
    OWN *y = ops->mul(x, x);
    ck_assert_int_eq(before, 1);
    ck_assert_int_eq(y->requires_grad, 0);
    ck_assert_int_eq(ops->add_(x, y, 0.5f), 0);
    check_values(x, (double[]){ 4 });
    mt_set_grad_enabled(before);
}

TEST(discard_frees_what_the_graph_kept) {
    OWN *x = leaf(MT_F32, 2, (float[]){ 1, 2 }), *y = ops->mul(x, x);
    y = mt_then(y, ops->mul(y, y));
    ck_assert_uint_eq(mt_mem_now(MT_MEM_ACTIVATION), 16);
    mt_discard_graph(y);
    ck_assert_uint_eq(mt_mem_now(MT_MEM_ACTIVATION), 8);
    check_values(y, (double[]){ 1, 16 });
}

TEST(a_deep_graph_needs_no_deep_stack) {
    OWN *x = leaf(MT_F32, 1, (float[]){ 1 });
    for (int pass = 0; pass < 2; pass++) {
        mt_tensor *y = ops->relu(x);
        for (int i = 0; i < 200000; i++) y = mt_then(y, ops->relu(y));
        if (pass == 0) ck_assert_int_eq(mt_backward(y), 0);
        mt_release(y);
    }
    check_values(x->grad, (double[]){ 1 });
}

/* ---- optimizers ---- */

static void give_grad(mt_tensor *param, mt_dtype dtype, const float *values) {
    mt_tensor *g = vector(dtype, param->shape[0], values);
    mt_set_grad(param, g);
    mt_release(g);
}

TEST(sgd_matches_hand_computed_steps) {
    mt_tensor *p[] = { leaf(MT_F32, 2, (float[]){ 1, -1 }), leaf(MT_F32, 1, (float[]){ 7 }) };
    mt_optimizer *opt = mt_sgd_new(p, 2, 0.1f, 0.5f, 0.1f);
    uint64_t version = p[0]->version;
    give_grad(p[0], MT_F32, (float[]){ 1, 2 });
    ck_assert_int_eq(opt->step(opt), 1);
    /* v = g + 0.1 p = (1.1, 1.9); p -= 0.1 v */
    check_values(p[0], (double[]){ 0.89, -1.19 });
    ck_assert_uint_gt(p[0]->version, version);
    opt->lr = 1.0f;
    ck_assert_int_eq(opt->step(opt), 2);
    /* v = 0.5 v + g + 0.1 p = (1.639, 2.831) */
    check_values(p[0], (double[]){ -0.749, -4.021 });
    ck_assert_float_eq_tol(mt_optimizer_state(opt, p[0], 0)[1], 2.831f, 1e-6f);
    /* No gradient: left alone, and without state. */
    check_values(p[1], (double[]){ 7 });
    ck_assert_ptr_null(mt_optimizer_state(opt, p[1], 0));
    ck_assert_uint_eq(mt_mem_now(MT_MEM_OPTIMIZER), 8);
    opt->zero_grad(opt);
    ck_assert_ptr_null(p[0]->grad);
    mt_optimizer_free(opt);
    mt_release(p[0]);
    mt_release(p[1]);
}

TEST(adam_matches_hand_computed_steps) {
    OWN *p = leaf(MT_F32, 2, (float[]){ 1, -1 });
    OWN_OPTIMIZER *opt = mt_adam_new(NULL, 0, 0.1f, 0.9f, 0.99f, 0.0f, 0.0f);
    ck_assert_int_eq(mt_optimizer_add_params(opt, &p, 1), 0);
    give_grad(p, MT_F32, (float[]){ 4, -0.5f });
    ck_assert_int_eq(opt->step(opt), 1);
    /* The corrected moments are g and g^2: a step of lr by the sign. */
    check_values(p, (double[]){ 0.9, -0.9 });
    give_grad(p, MT_F32, (float[]){ -4, -0.5f });
    ck_assert_int_eq(opt->step(opt), 2);
    /* m = (0.9 * 0.4 - 0.4) / 0.19, v = 16; the second goes on. */
    check_values(p, (double[]){ 0.9 + 0.1 * 0.04 / 0.19 / 4, -0.8 });
}

TEST(optimizers_round_16_bit_parameters_once) {
    OWN *p = leaf(MT_BF16, 1, (float[]){ 1 });
    OWN_OPTIMIZER *opt = mt_sgd_new(&p, 1, 1.0f, 0.0f, 0.0f);
    mt_storage *wide;
    give_grad(p, MT_F16, (float[]){ 0.00390625f * 1.5f });
    ck_assert_int_eq(opt->step(opt), 1);
    /* 1 - 1.5 / 256 lies in the middle; the even neighbour is 1 - 2/256, whose last bit is 0: 0.9921875. */
    check_values(p, (double[]){ 0.9921875 });
    /* The type is read afresh on every step. */
    wide = mt_storage_new(sizeof(float), MT_MEM_PARAMETER);
    mt_storage_free(mt_tensor_swap_storage(p, wide, MT_F32));
    mt_set(p, 0, 1.0);
    ck_assert_int_eq(opt->step(opt), 2);
    check_values(p, (double[]){ 1.0 - 1.5 / 256 });
}

int main(void) {
    ops = mt_ops_default();
    return suite_run();
}
