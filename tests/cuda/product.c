/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound is that of docs/reference/numerics.md, as in tests/kernels/product.c: before the activation an element is
 * off by at most E = g(k + 4) * M, M = |alpha| sum |a||b| + |beta c| + |bias|, and 2^-10 of M more where tf32 rounds
 * both operands to 11 bits; tensor cores cut sums off where others round, so that u is 2^-23 there. The slopes of the
 * GELUs are below 1.13, and those slopes' own slopes too: evaluating them adds 2^-20 of x.
 */
#include "product.h"

#include "common/common.h"

#include <math.h>
#include <stdio.h>

enum { ROOM = 1 << 16 };
enum { A, B, C, D, BIAS, AUX, GRAD, C_BEFORE, D_BEFORE, BLOCKS };
static unsigned char *blocks[BLOCKS];

/* ---- memory ---- */

static void *block(int which, amp_dtype type) {
    if (!blocks[which]) blocks[which] = device_alloc(ROOM);
    /* from a prime number of elements on they repeat: a thousandth of the time */
    const size_t own = 509 * amp__dtype_size(type);
    fill(PATTERN_NORMAL, type, blocks[which], 509);
    for (size_t at = own; at < ROOM; at += own)
        memcpy(blocks[which] + at, blocks[which], own < ROOM - at ? own : ROOM - at);
    return blocks[which];
}

/* Returns the stride. */
static int64_t lie(int64_t *ld, int64_t rows, int64_t cols, int64_t batch, int64_t gap, enum product_layout layout,
                   bool shared) {
    *ld = cols + gap;
    if (shared) return 0;
    if (layout != SIDE_BY_SIDE) return rows * *ld + gap;
    *ld *= batch;
    return *ld / batch;
}

void product_place(struct device_product *p) {
    amp_matmul_args *g = &p->args;
    amp_device_epilogue *e = &p->epilogue;
    const int64_t batch = g->batch ? g->batch : 1, gap = p->gaps ? 3 : 0;
    if (p->in_place) g->c_dtype = g->d_dtype;
    g->a = block(A, g->a_dtype), g->b = block(B, g->b_dtype), g->d = block(D, g->d_dtype);
    g->stride_a = lie(&g->ld_a, g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, batch, gap, p->layout,
                      p->layout == SHARED_A);
    g->stride_b = lie(&g->ld_b, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n, batch, gap, p->layout,
                      p->layout == SHARED_B);
    g->stride_d = lie(&g->ld_d, g->m, g->n, batch, 2 * gap, p->layout, false);
    g->stride_c = p->in_place ? g->stride_d : lie(&g->ld_c, g->m, g->n, batch, gap, p->layout, p->layout == SHARED_A);
    if (p->in_place) g->ld_c = g->ld_d;
    g->c = !p->with_c ? NULL : p->in_place ? g->d : block(C, g->c_dtype);
    g->bias = p->with_bias ? block(BIAS, g->bias_dtype) : NULL;
    e->aux = p->with_aux ? block(AUX, g->d_dtype) : NULL;
    e->bias_grad = e->bias_grad_of ? block(GRAD, e->bias_grad_dtype) : NULL;
    (void)block(C_BEFORE, AMP_FLOAT32);
    if (g->c) memcpy(blocks[C_BEFORE], g->c, ROOM);
    (void)block(D_BEFORE, AMP_FLOAT32);
    memcpy(blocks[D_BEFORE], g->d, ROOM);
}

void *product_a(const struct device_product *p) {
    ck_assert_ptr_eq(p->args.a, blocks[A]);
    return blocks[A];
}

const char *product_words(const struct device_product *p) {
    static char text[400];
    const amp_matmul_args *g = &p->args;
    snprintf(text, sizeof text,
             "%lld x %lldx%lldx%lld types a %d b %d c %d d %d bias %d grad %d, T %d%d, alpha %g beta %g, c %d%s bias "
             "%d aux %d, activation %d backward %d bias_grad %d layout %d gaps %d flags %u",
             (long long)g->batch, (long long)g->m, (long long)g->n, (long long)g->k, g->a_dtype, g->b_dtype, g->c_dtype,
             g->d_dtype, g->bias_dtype, p->epilogue.bias_grad_dtype, g->transpose_a, g->transpose_b, (double)g->alpha,
             (double)g->beta, p->with_c, p->in_place ? " in place" : "", p->with_bias, p->with_aux, g->activation,
             p->epilogue.backward, p->epilogue.bias_grad_of, p->layout, p->gaps, (unsigned)g->flags);
    return text;
}

/* ---- what it should be ---- */

static double at(amp_dtype type, const void *data, int64_t i) {
    return value_of_bits(type, get_bits(type, data, (size_t)i));
}

static double a_at(const amp_matmul_args *g, int64_t item, int64_t i, int64_t q) {
    return at(g->a_dtype, g->a, item * g->stride_a + (g->transpose_a ? q * g->ld_a + i : i * g->ld_a + q));
}
static double b_at(const amp_matmul_args *g, int64_t item, int64_t q, int64_t j) {
    return at(g->b_dtype, g->b, item * g->stride_b + (g->transpose_b ? j * g->ld_b + q : q * g->ld_b + j));
}

static double activated(int32_t activation, double x) {
    const double root = 0.79788456080286535588;
    return activation == AMP_ACTIVATION_RELU        ? fmax(x, 0.0)
           : activation == AMP_ACTIVATION_GELU      ? 0.5 * x * (1.0 + erf(x / sqrt(2.0)))
           : activation == AMP_ACTIVATION_GELU_TANH ? 0.5 * x * (1.0 + tanh(root * (x + 0.044715 * x * x * x)))
                                                    : x;
}
static double slope(int32_t activation, double x) {
    const double root = 0.79788456080286535588, t = tanh(root * (x + 0.044715 * x * x * x));
    return activation == AMP_ACTIVATION_GELU
               ? 0.5 * (1.0 + erf(x / sqrt(2.0))) + x * 0.39894228040143267794 * exp(-0.5 * x * x)
               : 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * x * x);
}

static int significant_bits(amp_dtype type) { return type == AMP_FLOAT32 ? 24 : type == AMP_FLOAT16 ? 11 : 8; }
static double rounding(amp_dtype type, double magnitude) {
    return fmax(ldexp(magnitude, -significant_bits(type)), value_of_bits(type, 1) / 2);
}

/* An element before its activation, and how far it may be off. */
static double before(const struct device_product *p, int64_t item, int64_t i, int64_t j, double *bound) {
    const amp_matmul_args *g = &p->args;
    /* they truncate */
    const bool by_tensor_cores = !device.fake && (g->a_dtype != AMP_FLOAT32 || g->flags & AMP_MATMUL_TF32);
    const double roundings = (double)(g->k + 4) * (by_tensor_cores ? 0x1p-23 : 0x1p-24);
    double x = 0.0, products = 0.0;
    for (int64_t q = 0; q < g->k && g->alpha != 0.0f; q++) {
        const double product = (double)g->alpha * a_at(g, item, i, q) * b_at(g, item, q, j);
        x += product, products += fabs(product);
    }
    const bool adds_c = g->c && g->beta != 0.0f;
    const double c = adds_c ? (double)g->beta * at(g->c_dtype, blocks[C_BEFORE], item * g->stride_c + i * g->ld_c + j)
                            : 0.0;
    const double bias = g->bias ? at(g->bias_dtype, g->bias, j) : 0.0;
    *bound = roundings / (1 - roundings) * (products + fabs(c) + fabs(bias));
    if (g->flags & AMP_MATMUL_TF32) *bound += 0x1p-10 * products;
    return x + c + bias;
}

static bool mask_at(const amp_device_epilogue *e, int64_t item, int64_t i, int64_t j) {
    const int64_t bit = item * e->stride_aux + i * e->ld_aux + j;
    return ((const unsigned char *)e->aux)[bit / 8] >> bit % 8 & 1;
}

/* aux's distances as the header has them where 0 is given. */
static amp_device_epilogue distances(const struct device_product *p) {
    amp_device_epilogue e = p->epilogue;
    const int64_t unit = p->args.activation == AMP_ACTIVATION_RELU ? 128 : 8;
    if (!e.ld_aux) e.ld_aux = (p->args.n + unit - 1) / unit * unit;
    if (!e.stride_aux) e.stride_aux = p->args.m * e.ld_aux;
    return e;
}

/* d's element, and its bound before the last rounding. */
static double wanted(const struct device_product *p, const amp_device_epilogue *e, int64_t item, int64_t i, int64_t j,
                     double *bound) {
    const amp_matmul_args *g = &p->args;
    const double x = before(p, item, i, j, bound), tanh_error = 0x1p-20;
    if (g->activation == AMP_ACTIVATION_NONE) return x;
    if (g->activation == AMP_ACTIVATION_RELU && e->backward) return mask_at(e, item, i, j) ? x : (*bound = 0.0, 0.0);
    if (g->activation != AMP_ACTIVATION_RELU) *bound = 1.13 * *bound + tanh_error * (fabs(x) + *bound);
    if (!e->backward) return activated(g->activation, x);
    const double aux = at(g->d_dtype, e->aux, item * e->stride_aux + i * e->ld_aux + j);
    *bound += tanh_error * fabs(x) * (1.0 + aux * aux); /* the slope has tanh twice, one times its inner slope */
    return x * slope(g->activation, aux);
}

static void check_aux(const struct device_product *p, const amp_device_epilogue *e, int64_t item, int64_t i,
                      int64_t j) {
    const amp_matmul_args *g = &p->args;
    double bound;
    const double x = before(p, item, i, j, &bound);
    if (g->activation == AMP_ACTIVATION_RELU) {
        CHECK_THAT(fabs(x) <= bound + rounding(g->d_dtype, fabs(x)) || mask_at(e, item, i, j) == (x > 0.0),
                   "%s: mask [%lld][%lld] of %g", product_words(p), (long long)i, (long long)j, x);
        return;
    }
    const double got = at(g->d_dtype, e->aux, item * e->stride_aux + i * e->ld_aux + j);
    bound += rounding(g->d_dtype, fabs(x) + bound);
    CHECK_THAT(fabs(got - x) <= bound, "%s: aux [%lld][%lld] is %g, want %g", product_words(p), (long long)i,
               (long long)j, got, x);
}

/* Sums of what is there: of d as it was stored, or as it was before its last rounding. */
static void check_bias_grad(const struct device_product *p, const amp_device_epilogue *e, int64_t item) {
    const amp_matmul_args *g = &p->args;
    const bool of_a = e->bias_grad_of == AMP_BIAS_GRAD_A, of_d = e->bias_grad_of == AMP_BIAS_GRAD_D;
    const int64_t length = of_a ? g->m : g->n, depth = of_d ? g->m : g->k;
    for (int64_t i = 0; i < length; i++) {
        double sum = 0.0, magnitude = 0.0, bound = 0.0;
        for (int64_t q = 0; q < depth; q++) {
            const double x = of_a   ? a_at(g, item, i, q)
                             : of_d ? at(g->d_dtype, g->d, item * g->stride_d + q * g->ld_d + i)
                                    : b_at(g, item, q, i);
            sum += x, magnitude += fabs(x);
            if (of_d) bound += rounding(g->d_dtype, fabs(x));
        }
        bound += (double)(depth + 1) * 0x1p-24 * magnitude;
        bound += rounding(e->bias_grad_dtype, fabs(sum) + bound);
        const double got = at(e->bias_grad_dtype, e->bias_grad,
                              item * (e->stride_bias_grad ? e->stride_bias_grad : length) + i);
        CHECK_THAT(fabs(got - sum) <= bound, "%s: bias_grad %lld of %lld is %g, want %g", product_words(p),
                   (long long)i, (long long)item, got, sum);
    }
}

/* Is this element of d's memory part of a product? */
static bool is_result(const amp_matmul_args *g, int64_t e) {
    for (int64_t item = 0; item < (g->batch ? g->batch : 1); item++) {
        const int64_t inside = e - item * g->stride_d;
        if (inside >= 0 && inside / g->ld_d < g->m && inside % g->ld_d < g->n) return true;
    }
    return false;
}

void product_compare(const struct device_product *p) {
    const amp_matmul_args *g = &p->args;
    const amp_device_epilogue e = distances(p);
    const int64_t batch = g->batch ? g->batch : 1;
    device_wait();
    for (int64_t line = 0; line < batch * g->m * g->n; line++) {
        const int64_t item = line / (g->m * g->n), i = line / g->n % g->m, j = line % g->n;
        double bound;
        const double want = wanted(p, &e, item, i, j, &bound),
                     got = at(g->d_dtype, g->d, item * g->stride_d + i * g->ld_d + j);
        bound += rounding(g->d_dtype, fabs(want) + bound);
        CHECK_THAT(fabs(got - want) <= bound, "%s: [%lld][%lld][%lld] is %g, want %g within %g", product_words(p),
                   (long long)item, (long long)i, (long long)j, got, want, bound);
        if (e.aux && !e.backward && g->activation) check_aux(p, &e, item, i, j);
    }
    for (int64_t item = 0; e.bias_grad_of && item < batch; item++) check_bias_grad(p, &e, item);
    for (int64_t x = 0; x < (int64_t)(ROOM / amp__dtype_size(g->d_dtype)); x++)
        CHECK_THAT(is_result(g, x) ||
                       get_bits(g->d_dtype, g->d, (size_t)x) == get_bits(g->d_dtype, blocks[D_BEFORE], (size_t)x),
                   "%s: wrote outside d's rows, at %lld", product_words(p), (long long)x);
}
