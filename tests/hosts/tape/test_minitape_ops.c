/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operator, by a table of cases: its f32 gradient against finite differences, and its 16-bit results against
 * the f32 ones, rounded. With TEST_ON_DEVICE (tests/cuda) the same on a device, a fake one, and its results beside
 * the processor's.
 */
#include "minitape.h"
#include "product.h"

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_INPUTS 5
#define MAX_VALUES 4096
/* Inputs are multiples of STEP plus a half: no two are near to each other or to zero, where relu and max have kinks. */
#define STEP 0.04

#ifdef TEST_ON_DEVICE
#include "minitape_cuda_fake.h"
#define DEVICE MT_CUDA
#define product NULL /* the device's own */
#else
#define DEVICE MT_CPU
#endif

static mt_ops *ops;
static mt_device device = DEVICE; /* where inputs are made */

static void tensor_end(mt_tensor **t) { mt_release(*t); }
#define OWN __attribute__((cleanup(tensor_end))) mt_tensor

static mt_tensor *new_tensor(mt_dtype dtype, int ndim, const int *shape) {
    mt_tensor *t = mt_tensor_new(dtype, ndim, shape, MT_MEM_OTHER);
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(mt_move(t, device), 0);
    return t;
}

struct op_case {
    const char *name;
    mt_tensor *(*apply)(mt_tensor **in);
    int n;                              /* inputs, */
    int n_grad;                         /* of which the first ones want a gradient, */
    int n_16;                           /* and the first ones may be of 16 bits (0: all) */
    int shape[MAX_INPUTS][MT_MAX_DIMS]; /* up to the first zero */
};

/* ---- the cases ---- */

static mt_tensor *conv_pad1(mt_tensor **in) { return ops->conv2d(in[0], in[1], in[2], 1, 1); }
static mt_tensor *conv_stride2(mt_tensor **in) { return ops->conv2d(in[0], in[1], NULL, 2, 0); }
static mt_tensor *conv_stride2_pad1(mt_tensor **in) { return ops->conv2d(in[0], in[1], in[2], 2, 1); }

/* The same by a product from outside. */
static mt_tensor *by_pad1(mt_tensor **in) { return mt_conv2d_by(product, in[0], in[1], in[2], 1, 1); }
static mt_tensor *by_stride2_pad1(mt_tensor **in) { return mt_conv2d_by(product, in[0], in[1], NULL, 2, 1); }
static mt_tensor *linear_by(mt_tensor **in) { return mt_linear_by(product, in[0], in[1], in[2]); }

static mt_tensor *bn(mt_tensor **in, int training) {
    /* Fresh statistics each time: the operator moves them. */
    OWN *mean = new_tensor(MT_F32, 1, in[1]->shape), *var = new_tensor(MT_F32, 1, in[1]->shape);
    mt_fill(mean, 0.25);
    mt_fill(var, 0.75);
    if (in[1]->dtype != MT_F32) return NULL;
    return ops->batch_norm(in[0], in[1], in[2], mean, var, training, 0.1f, 1e-5f);
}

static mt_tensor *bn_training(mt_tensor **in) { return bn(in, 1); }
static mt_tensor *bn_eval(mt_tensor **in) { return bn(in, 0); }
static mt_tensor *relu(mt_tensor **in) { return ops->relu(in[0]); }
static mt_tensor *add(mt_tensor **in) { return ops->add(in[0], in[1]); }
static mt_tensor *add_self(mt_tensor **in) { return ops->add(in[0], in[0]); }
static mt_tensor *mul(mt_tensor **in) { return ops->mul(in[0], in[1]); }
static mt_tensor *pool2(mt_tensor **in) { return ops->max_pool2d(in[0], 2, 2); }
static mt_tensor *pool3(mt_tensor **in) { return ops->max_pool2d(in[0], 3, 2); }
static mt_tensor *average(mt_tensor **in) { return ops->global_avg_pool(in[0]); }
static mt_tensor *linear(mt_tensor **in) { return ops->linear(in[0], in[1], in[2]); }
static mt_tensor *log_softmax(mt_tensor **in) { return ops->log_softmax(in[0]); }

static mt_tensor *nll(mt_tensor **in) {
    mt_tensor *target = new_tensor(MT_I32, 1, in[0]->shape);
    for (int i = 0; i < in[0]->shape[0]; i++) mt_set(target, (size_t)i, (i * 2 + 1) % in[0]->shape[1]);
    return mt_then(target, ops->nll_loss(in[0], target));
}

static mt_tensor *dropout(mt_tensor **in) { return ops->dropout(in[0], 0.3f, 1, 7); }
static mt_tensor *cat1(mt_tensor **in) { return ops->cat(in, 3, 1); }
static mt_tensor *cat0(mt_tensor **in) { return ops->cat(in, 2, 0); }
static mt_tensor *scale(mt_tensor **in) { return ops->scale(in[0], -1.75f); }

static const struct op_case cases[] = {
    { "conv2d", conv_pad1, 3, 3, 0, { { 2, 3, 5, 4 }, { 4, 3, 3, 3 }, { 4 } } },
    { "conv2d, many tiles", conv_pad1, 3, 3, 0, { { 2, 2, 9, 20 }, { 3, 2, 3, 3 }, { 3 } } },
    { "conv2d, images share tiles", conv_pad1, 3, 3, 0, { { 7, 2, 4, 4 }, { 9, 2, 3, 3 }, { 9 } } },
    { "conv2d 3x1", conv_pad1, 3, 3, 0, { { 2, 2, 4, 4 }, { 2, 2, 3, 1 }, { 2 } } },
    { "conv2d 1x1", conv_pad1, 3, 3, 0, { { 2, 2, 3, 3 }, { 2, 2, 1, 1 }, { 2 } } },
    { "conv2d, stride 2, a row left over", conv_stride2, 2, 2, 0, { { 2, 2, 6, 8 }, { 3, 2, 3, 3 } } },
    { "conv2d, stride 2, padding", conv_stride2_pad1, 3, 3, 0, { { 2, 2, 7, 5 }, { 3, 2, 3, 3 }, { 3 } } },
    { "conv2d, input fixed", conv_pad1, 3, 0, 0, { { 2, 2, 4, 4 }, { 2, 2, 3, 3 }, { 2 } } },
    { "conv2d by", by_pad1, 3, 3, 0, { { 2, 3, 5, 8 }, { 4, 3, 3, 3 }, { 4 } } },
    { "conv2d by, small", by_pad1, 3, 3, 0, { { 3, 2, 4, 4 }, { 5, 2, 3, 3 }, { 5 } } },
    { "conv2d by, 1x1", by_pad1, 3, 3, 0, { { 2, 2, 3, 3 }, { 2, 2, 1, 1 }, { 2 } } },
    { "conv2d by, stride 2", by_stride2_pad1, 2, 2, 0, { { 2, 2, 7, 5 }, { 3, 2, 3, 3 } } },
    { "linear by", linear_by, 3, 3, 0, { { 5, 7 }, { 3, 7 }, { 3 } } },
    { "batch_norm, training", bn_training, 3, 3, 1, { { 3, 4, 3, 2 }, { 4 }, { 4 } } },
    { "batch_norm, eval", bn_eval, 3, 3, 1, { { 3, 4, 3, 2 }, { 4 }, { 4 } } },
    { "batch_norm, 2-d", bn_training, 3, 3, 1, { { 9, 4 }, { 4 }, { 4 } } },
    { "relu", relu, 1, 1, 0, { { 3, 7, 5, 7 } } },
    { "add", add, 2, 2, 0, { { 3, 5 }, { 3, 5 } } },
    { "add to itself", add_self, 1, 1, 0, { { 3, 5 } } },
    { "mul", mul, 2, 2, 0, { { 3, 5 }, { 3, 5 } } },
    { "max_pool2d", pool2, 1, 1, 0, { { 2, 3, 5, 4 } } },
    { "max_pool2d, overlapping", pool3, 1, 1, 0, { { 2, 2, 7, 5 } } },
    { "global_avg_pool", average, 1, 1, 0, { { 2, 3, 4, 5 } } },
    { "linear", linear, 3, 3, 0, { { 5, 7 }, { 3, 7 }, { 3 } } },
    { "log_softmax", log_softmax, 1, 1, 0, { { 4, 5 } } },
    { "nll_loss", nll, 1, 1, 0, { { 4, 5 } } },
    { "dropout", dropout, 1, 1, 0, { { 3, 7, 5 } } },
    { "cat, dim 1", cat1, 3, 3, 0, { { 2, 3, 4 }, { 2, 1, 4 }, { 2, 2, 4 } } },
    { "cat, dim 0", cat0, 2, 2, 0, { { 2, 3 }, { 1, 3 } } },
    { "scale", scale, 1, 1, 0, { { 3, 7 } } },
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

/* ---- inputs ---- */

static mt_tensor *make_input(const int *shape, mt_rng *rng) {
    float values[MAX_VALUES];
    int ndim = 0;
    while (ndim < MT_MAX_DIMS && shape[ndim]) ndim++;
    mt_tensor *t = new_tensor(MT_F32, ndim, shape);
    const int n = (int)mt_numel(t);
    ck_assert_int_le(n, MAX_VALUES);
    for (int i = 0; i < n; i++) { /* a shuffle, built up */
        int j = mt_rng_below(rng, i + 1);
        values[i] = values[j];
        values[j] = (float)((i - n / 2 + 0.5) * STEP);
    }
    mt_write(t, values);
    return t;
}

static void make_inputs(const struct op_case *c, mt_tensor **in) {
    mt_rng rng = { 42 };
    for (int i = 0; i < c->n; i++) {
        in[i] = make_input(c->shape[i], &rng);
        in[i]->requires_grad = i < c->n_grad;
    }
}

static void release_all(mt_tensor **in, int n) {
    for (int i = 0; i < n; i++) mt_release(in[i]);
}

static void check_nothing_held(const char *name) {
    for (int i = 0; i < MT_MEM_CATEGORIES; i++)
        ck_assert_msg(mt_mem_now((mt_category)i) == 0, "%s: %zu bytes of category %d", name, mt_mem_now((mt_category)i),
                      i);
}

/* ---- gradients ---- */

/* The sum of the outputs times the weights, in double. */
static double weighted(const struct op_case *c, mt_tensor **in, const mt_tensor *weights) {
    int before = mt_set_grad_enabled(0);
    mt_tensor *out = c->apply(in);
    double sum = 0.0;
    mt_set_grad_enabled(before);
    for (size_t i = 0; i < mt_numel(out); i++) sum += mt_get(out, i) * mt_get(weights, i);
    mt_release(out);
    return sum;
}

static void check_numeric(const struct op_case *c, mt_tensor **in, int which, const mt_tensor *weights) {
    mt_tensor *t = in[which];
    double h = STEP / 8;
    for (size_t i = 0; i < mt_numel(t); i++) {
        const double x = mt_get(t, i), got = mt_get(t->grad, i);
        mt_set(t, i, x + h);
        const double up = weighted(c, in, weights);
        mt_set(t, i, x - h);
        const double expected = (up - weighted(c, in, weights)) / (2 * h);
        mt_set(t, i, x);
        ck_assert_msg(fabs(got - expected) < 0.02 + 0.01 * fabs(expected), "%s, input %d[%zu]: %g, expected %g",
                      c->name, which, i, got, expected);
    }
}

/* One by one, elements of a device take long: what they are on the processor is asked for instead. */
TEST_TIMES(gradients_match_finite_differences, device == MT_CPU ? N_CASES : 0) {
    const struct op_case *c = &cases[_i];
    mt_tensor *in[MAX_INPUTS], *out, *weights, *loss;
    mt_rng rng = { 5 };
    make_inputs(c, in);
    out = c->apply(in);
    ck_assert_msg(out != NULL, "%s: %s", c->name, mt_error());
    ck_assert_int_eq(out->requires_grad, c->n_grad > 0);
    weights = new_tensor(MT_F32, out->ndim, out->shape);
    for (size_t i = 0; i < mt_numel(weights); i++) mt_set(weights, i, (double)mt_rng_normal(&rng));
    loss = mt_then(out, ops->mul(out, weights));
    if (c->n_grad > 0) ck_assert_int_eq(mt_backward(loss), 0);
    mt_release(loss);
    for (int i = 0; i < c->n; i++) {
        ck_assert_int_eq(in[i]->grad != NULL, i < c->n_grad);
        if (in[i]->grad) check_numeric(c, in, i, weights);
    }
    mt_release(weights);
    release_all(in, c->n);
    check_nothing_held(c->name);
}

/* ---- 16 bits ---- */

/* t is exactly what `reference`, an f32 tensor, rounds to. */
static void check_rounded(const char *name, mt_tensor *t, mt_tensor *reference) {
    OWN *got = mt_to(t, MT_CPU), *wide = mt_to(reference, MT_CPU);
    uint16_t expected[2 * MAX_VALUES];
    size_t n = mt_numel(t);
    ck_assert_uint_eq(n, mt_numel(reference));
    ck_assert_int_eq(reference->dtype, MT_F32);
    mt_convert(t->dtype, expected, MT_F32, wide->storage->data, n);
    ck_assert_msg(memcmp(got->storage->data, expected, n * mt_dtype_size(t->dtype)) == 0,
                  "%s: the %s result is not the f32 one, rounded", name, mt_dtype_name(t->dtype));
}

/* low[i] in 16 bits, and in[i] with the same, rounded, values. */
static void lower_inputs(const struct op_case *c, mt_tensor **in, mt_tensor **low, mt_dtype dtype) {
    for (int i = 0; i < c->n; i++) {
        mt_dtype d = c->n_16 && i >= c->n_16 ? MT_F32 : dtype;
        low[i] = new_tensor(d, in[i]->ndim, in[i]->shape);
        mt_copy(low[i], in[i]);
        mt_copy(in[i], low[i]);
        low[i]->requires_grad = in[i]->requires_grad;
    }
}

static void check_16_bit(const struct op_case *c, mt_dtype dtype) {
    mt_tensor *in[MAX_INPUTS], *low[MAX_INPUTS], *out, *out_low;
    make_inputs(c, in);
    lower_inputs(c, in, low, dtype);
    out = c->apply(in);
    out_low = c->apply(low);
    ck_assert_msg(out_low != NULL, "%s: %s", c->name, mt_error());
    ck_assert_int_eq(out_low->dtype, dtype);
    check_rounded(c->name, out_low, out);
    if (c->n_grad > 0) {
        ck_assert_int_eq(mt_backward_seed(out, 0.5f), 0);
        ck_assert_int_eq(mt_backward_seed(out_low, 0.5f), 0);
    }
    for (int i = 0; i < c->n_grad; i++) check_rounded(c->name, low[i]->grad, in[i]->grad);
    mt_release(out);
    mt_release(out_low);
    release_all(in, c->n);
    release_all(low, c->n);
    check_nothing_held(c->name);
}

TEST_TIMES(sixteen_bit_results_are_rounded_once, N_CASES) {
    check_16_bit(&cases[_i], MT_F16);
    check_16_bit(&cases[_i], MT_BF16);
}

/* ---- details ---- */

TEST(batch_norm_moves_running_statistics) {
    OWN *x = new_tensor(MT_F32, 2, (int[]){ 4, 1 });
    mt_tensor *p[4];
    mt_write(x, (float[]){ 1, 2, 3, 6 });
    for (int i = 0; i < 4; i++) {
        p[i] = new_tensor(MT_F32, 1, (int[]){ 1 });
        mt_fill(p[i], i % 3 == 0); /* gain 1, variance 1 */
    }
    OWN *y = ops->batch_norm(x, p[0], p[1], p[2], p[3], 1, 0.5f, 0.0f);
    ck_assert_float_eq_tol((float)mt_get(p[2], 0), 1.5f, 1e-6f);
    ck_assert_float_eq_tol((float)mt_get(p[3], 0), (float)(0.5 + 7.0 / 3), 1e-5f);
    ck_assert_float_eq_tol((float)mt_get(y, 0), (float)(-2 / sqrt(3.5)), 1e-6f);
    release_all(p, 4);
}

TEST(relu_and_pool_let_nan_and_inf_through) {
    OWN *x = new_tensor(MT_F16, 4, (int[]){ 1, 2, 2, 2 });
    mt_write(x, (float[]){ 1, NAN, 5, 2, -INFINITY, 3, INFINITY, -1 });
    OWN *y = ops->relu(x), *z = ops->max_pool2d(x, 2, 2);
    ck_assert_double_nan(mt_get(y, 1));
    ck_assert_double_eq(mt_get(y, 4), 0.0);
    ck_assert_double_nan(mt_get(z, 0));
    ck_assert_double_infinite(mt_get(z, 1));
}

TEST(log_softmax_survives_large_scores) {
    OWN *x = new_tensor(MT_F16, 2, (int[]){ 1, 2 });
    mt_write(x, (float[]){ 60000, -60000 });
    OWN *y = ops->log_softmax(x);
    ck_assert_double_eq(mt_get(y, 0), 0.0);
    ck_assert_double_infinite(mt_get(y, 1)); /* -120000 is out of range */
}

#ifdef TEST_ON_DEVICE
#include "minitape_ops_device.h"
#else
#define open_device() 0
#endif

int main(void) {
    ops = mt_ops_default();
    return open_device() == 0 ? suite_run() : EXIT_FAILURE;
}
