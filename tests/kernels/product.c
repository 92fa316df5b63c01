/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound is that of docs/reference/numerics.md. Before the activation and the last rounding an element is off by at
 * most
 *     E = g(k + 4) * (|alpha| * sum |a||b| + |beta c| + |bias|),   g(n) = n u / (1 - n u),   u = 2^-24:
 * 1. Each product a b is rounded: a b (1 + e), |e| <= u. Each of the additions after it multiplies by another (1 + e).
 * No product passes more than k roundings (its own, and at most k - 1 additions that are not exact: the first one, to
 * 0, is exact). A product of n factors (1 + e) differs from 1 by at most g(n). So the sum is off by at most g(k) * sum
 * |a||b|.
 * 2. Multiplying by alpha, adding beta * c (with one rounding of its own) and adding the bias are one rounding more
 * each. Each term has passed at most k + 3 roundings, and g(k + 4) covers them, and the error of a reference that is
 * summed in double.
 * 3. The last rounding to a type with p significant bits (24, 11 or 8) adds at most 2^-p of the result, or half of the
 * type's least subnormal.
 * Activations: relu moves two numbers no further apart; both gelus' slopes are below 1.13. Evaluating gelu near x adds
 * at most 2^-20 * (|x| + E): half of x times an approximation of erf or tanh that is off by less than 2^-21 (oneDNN's
 * erf: 1.5e-7, Abramowitz and Stegun 7.1.26), and a few roundings. A bf16 unit takes subnormal numbers for zero; the
 * operands here are too large for that to matter.
 */
#include "product.h"

#include "common/common.h"

#include <math.h>
#include <string.h>

static int64_t at_least_one(int64_t n) { return n ? n : 1; }

struct wish random_wish(int64_t m, int64_t n, int64_t k) {
    static const float factors[] = { 0.0f, 1.0f, -0.37f };
    struct wish w = { .args = AMP_MATMUL_ARGS_INIT };
    amp_matmul_args *g = &w.args;
    g->m = m, g->n = n, g->k = k;
    g->a_dtype = all_types[random_below(3)], g->b_dtype = all_types[random_below(3)];
    if (random_below(2)) g->b_dtype = g->a_dtype;
    g->c_dtype = all_types[random_below(3)], g->d_dtype = all_types[random_below(3)];
    g->bias_dtype = all_types[random_below(3)];
    g->transpose_a = (int32_t)random_below(2), g->transpose_b = (int32_t)random_below(2);
    g->alpha = random_below(3) ? 1.0f : factors[random_below(3)];
    g->beta = factors[random_below(3)];
    g->activation = random_below(2) ? (int32_t)random_below(4) : AMP_ACTIVATION_NONE;
    g->batch = (int64_t)random_below(4);
    w.with_c = random_below(3) == 0, w.with_bias = random_below(2), w.in_place = random_below(2);
    w.gaps = random_below(2), w.layout = (enum layout)random_below(LAYOUTS);
    return w;
}

/* ---- memory ---- */

/* One operand's distances. */
struct lie {
    int64_t rows, cols, ld, stride;
};

static struct lie lie_down(int64_t rows, int64_t cols, int64_t batch, int64_t gap, enum layout layout, bool shared) {
    struct lie x = { rows, cols, at_least_one(cols) + gap, 0 };
    if (shared) return x;
    x.stride = rows * x.ld + gap;
    if (layout == SIDE_BY_SIDE) x.stride = x.ld, x.ld *= batch;
    return x;
}

/* Millions of random numbers would take longer than the product: from a prime number on they repeat. */
static void fill_large(amp_dtype type, void *data, size_t n) {
    const size_t own = 65537, width = amp__dtype_size(type);
    fill(PATTERN_NORMAL, type, data, n < own ? n : own);
    for (size_t i = own; i < n; i += own)
        memcpy((char *)data + i * width, data, (n - i < own ? n - i : own) * width);
}

static void *place(struct product *p, int operand, amp_dtype type, const struct lie *x, int64_t batch) {
    const int64_t last = (x->rows - 1) * x->ld + x->cols + (batch - 1) * x->stride;
    p->elements[operand] = x->rows && x->cols ? (size_t)last : 0;
    const size_t bytes = p->elements[operand] * amp__dtype_size(type);
    p->guard[operand] = guard_new(bytes + GUARD_BORDER);
    p->data[operand] = guard_place(&p->guard[operand], bytes, 0);
    fill_large(type, p->data[operand], p->elements[operand]);
    return p->data[operand];
}

struct product product_new(const struct wish *w) {
    struct product p = { .args = w->args };
    amp_matmul_args *g = &p.args;
    const int64_t batch = at_least_one(g->batch), gap = w->gaps ? 3 : 0;
    const struct lie a = lie_down(g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, batch, gap, w->layout,
                                  w->layout == SHARED_A);
    const struct lie b = lie_down(g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n, batch, gap, w->layout,
                                  w->layout == SHARED_B);
    const struct lie d = lie_down(g->m, g->n, batch, 2 * gap, w->layout, false);
    const struct lie c = w->in_place ? d : lie_down(g->m, g->n, batch, gap, w->layout, false);
    const struct lie bias = { 1, g->n, g->n, 0 };
    if (w->in_place) g->c_dtype = g->d_dtype;
    g->a = place(&p, A, g->a_dtype, &a, batch);
    g->b = place(&p, B, g->b_dtype, &b, batch);
    g->d = place(&p, D, g->d_dtype, &d, batch);
    if (w->with_bias) g->bias = place(&p, BIAS, g->bias_dtype, &bias, 1);
    if (w->with_c) g->c = w->in_place ? g->d : place(&p, C, g->c_dtype, &c, batch);
    g->ld_a = a.ld, g->ld_b = b.ld, g->ld_c = c.ld, g->ld_d = d.ld;
    g->stride_a = a.stride, g->stride_b = b.stride, g->stride_c = c.stride, g->stride_d = d.stride;
    const int read = w->in_place ? D : C;
    p.c_before = amp__alloc(p.elements[read] + 1, amp__dtype_size(g->c_dtype) + 1);
    if (w->with_c) memcpy(p.c_before, p.data[read], p.elements[read] * amp__dtype_size(g->c_dtype));
    return p;
}

void product_free(struct product *p) {
    for (int i = 0; i < OPERANDS; i++)
        if (p->guard[i].begin) guard_free(&p->guard[i]);
    amp__free(p->c_before);
}

/* ---- the check ---- */

static double at(amp_dtype type, const void *data, int64_t index) {
    return value_of_bits(type, get_bits(type, data, (size_t)index));
}

static double activated(int32_t activation, double x) {
    const double sqrt_2_over_pi = 0.79788456080286535588;
    return activation == AMP_ACTIVATION_RELU     ? fmax(x, 0.0)
        : activation == AMP_ACTIVATION_GELU      ? 0.5 * x * (1.0 + erf(x / sqrt(2.0)))
        : activation == AMP_ACTIVATION_GELU_TANH ? 0.5 * x * (1.0 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)))
                                                 : x;
}

static int significant_bits(amp_dtype type) { return type == AMP_FLOAT32 ? 24 : type == AMP_FLOAT16 ? 11 : 8; }

static void check_element(const struct product *t, int64_t item, int64_t i, int64_t j) {
    const amp_matmul_args *g = &t->args;
    const double u = 0x1p-24, roundings = (double)(g->k + 4);
    const int64_t a0 = item * g->stride_a, b0 = item * g->stride_b;
    double x = 0.0, magnitude = 0.0;
    for (int64_t p = 0; p < g->k && g->alpha != 0.0f; p++) {
        const double a = at(g->a_dtype, g->a, a0 + (g->transpose_a ? p * g->ld_a + i : i * g->ld_a + p));
        const double b = at(g->b_dtype, g->b, b0 + (g->transpose_b ? j * g->ld_b + p : p * g->ld_b + j));
        x += (double)g->alpha * a * b;
        magnitude += fabs((double)g->alpha * a * b);
    }
    const double c = g->c && g->beta != 0.0f
                         ? (double)g->beta * at(g->c_dtype, t->c_before, item * g->stride_c + i * g->ld_c + j)
                         : 0.0;
    const double bias = g->bias ? at(g->bias_dtype, g->bias, j) : 0.0;
    x += c + bias;
    double before = roundings * u / (1 - roundings * u) * (magnitude + fabs(c) + fabs(bias));
    if (g->activation > AMP_ACTIVATION_RELU) before = 1.13 * before + 0x1p-20 * (fabs(x) + before);
    const double want = activated(g->activation, x);
    const double got = at(g->d_dtype, g->d, item * g->stride_d + i * g->ld_d + j);
    const double least = value_of_bits(g->d_dtype, 1);
    const double bound = before + fmax(ldexp(fabs(want) + before, -significant_bits(g->d_dtype)), least / 2);
    CHECK_THAT(fabs(got - want) <= bound,
               "%lld x %lldx%lldx%lld types %d %d %d %d %d transposes %d %d alpha %g beta %g c %d bias %d activation "
               "%d strides %lld %lld %lld: %lld [%lld][%lld] is %g, want %g, bound %g",
               (long long)g->batch, (long long)g->m, (long long)g->n, (long long)g->k, g->a_dtype, g->b_dtype,
               g->c_dtype, g->d_dtype, g->bias_dtype, g->transpose_a, g->transpose_b, (double)g->alpha, (double)g->beta,
               g->c != NULL, g->bias != NULL, g->activation, (long long)g->stride_a, (long long)g->stride_b,
               (long long)g->stride_d, (long long)item, (long long)i, (long long)j, got, want, bound);
}

/* Is this element of d's memory part of a product? */
static bool is_result(const amp_matmul_args *g, int64_t e) {
    for (int64_t item = 0; item < at_least_one(g->batch); item++) {
        const int64_t inside = e - item * g->stride_d;
        if (inside >= 0 && inside / g->ld_d < g->m && inside % g->ld_d < g->n) return true;
    }
    return false;
}

void product_check(struct product *t, int64_t elements) {
    const amp_matmul_args *g = &t->args;
    const size_t width = amp__dtype_size(g->d_dtype);
    void *d_before = amp__alloc(t->elements[D] + 1, width);
    memcpy(d_before, t->data[D], t->elements[D] * width);
    CHECK_THAT(amp_matmul(g) == AMP_OK, "%s", amp_last_error());
    const int64_t all = g->m * g->n * at_least_one(g->batch), step = all > elements ? all / elements : 1;
    for (int64_t e = 0; e < all; e += step) check_element(t, e / (g->m * g->n), e / g->n % g->m, e % g->n);
    for (size_t e = 0; e < t->elements[D]; e++)
        CHECK_THAT(is_result(g, (int64_t)e) || get_bits(g->d_dtype, g->d, e) == get_bits(g->d_dtype, d_before, e),
                   "wrote between the rows of d");
    const amp_dtype types[] = { g->a_dtype, g->b_dtype, g->c_dtype, g->d_dtype, g->bias_dtype };
    for (int i = 0; i < OPERANDS; i++)
        if (t->guard[i].begin)
            CHECK_THAT(guard_intact(&t->guard[i], t->elements[i] * amp__dtype_size(types[i]), 0),
                       "wrote outside operand %d", i);
    amp__free(d_before);
}
