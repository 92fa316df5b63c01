/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of nodes of mill, each one function for all it can be asked to do. */
#include "mill.h"
#include "problem.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* ---- matmul: y = x w^T, half of the rows on a thread of its own ---- */

struct rows {
    float *y;
    const float *x, *w;
    int n, ins, outs;
};

static void *multiply(void *argument) {
    const struct rows *r = argument;
    for (int i = 0; i < r->n; i++)
        for (int o = 0; o < r->outs; o++) {
            float sum = 0.0f;
            for (int k = 0; k < r->ins; k++) sum += r->x[i * r->ins + k] * r->w[o * r->ins + k];
            r->y[i * r->outs + o] = sum;
        }
    return NULL;
}

static int op_matmul(mill_node *p, int action) {
    const mill_node *x = p->in[0], *w = p->in[1];
    const int half = p->rows / 2;
    struct rows upper = { p->x, x->x, w->x, half, x->cols, p->cols }, lower = upper;
    pthread_t worker;
    if (action == MILL_SIZE) {
        p->rows = x->rows;
        p->cols = w->rows;
        return x->cols == w->cols ? MILL_OK : MILL_ERROR;
    }
    if (action == MILL_BACKWARD) return MILL_ERROR; /* linear does it */
    lower.y += half * p->cols;
    lower.x += half * x->cols;
    lower.n = p->rows - half;
    if (pthread_create(&worker, NULL, multiply, &lower)) return MILL_ERROR;
    multiply(&upper);
    return pthread_join(worker, NULL) ? MILL_ERROR : MILL_OK;
}

/* ---- bias: x += b ---- */

static int op_bias(mill_node *p, int action) {
    const mill_node *b = p->in[1];
    if (action != MILL_FORWARD) return MILL_ERROR; /* linear knows its sizes and its gradients */
    for (int i = 0; i < p->rows; i++)
        for (int c = 0; c < p->cols; c++) p->x[i * p->cols + c] += b->x[c];
    return MILL_OK;
}

/* ---- linear: packs its input into the workspace, and calls the two above through the table ---- */

static int linear_forward(mill_node *p) {
    mill_node packed = *p->in[0], product = *p, sum = *p;
    memcpy(p->work, packed.x, (size_t)mill_size(&packed) * sizeof(float));
    packed.x = p->work;
    product.op = MILL_MATMUL;
    product.in[0] = &packed;
    sum.op = MILL_BIAS;
    sum.in[0] = &product;
    sum.in[1] = p->in[2];
    if (mill_ops[MILL_MATMUL](&product, MILL_FORWARD) != MILL_OK) return MILL_ERROR;
    return mill_ops[MILL_BIAS](&sum, MILL_FORWARD);
}

static int linear_backward(mill_node *p) {
    mill_node *x = p->in[0], *w = p->in[1], *b = p->in[2];
    math_linear_backward(x->g ? p->work : NULL, w->g, b->g, p->g, x->x, w->x, p->rows, x->cols, p->cols);
    for (int i = 0; x->g && i < mill_size(x); i++) x->g[i] += p->work[i];
    return MILL_OK;
}

static int op_linear(mill_node *p, int action) {
    if (action == MILL_FORWARD) return linear_forward(p);
    if (action == MILL_BACKWARD) return linear_backward(p);
    p->n_work = mill_size(p->in[0]);
    return op_matmul(p, MILL_SIZE);
}

/* ---- batch norm: saves mean and 1 / deviation ---- */

static int op_batch_norm(mill_node *p, int action) {
    mill_node *x = p->in[0], *gamma = p->in[1], *beta = p->in[2];
    float *mean = p->saved, *rstd = p->saved + p->cols;
    switch (action) {
    case MILL_SIZE:
        p->rows = x->rows;
        p->cols = x->cols;
        p->n_saved = 2 * p->cols;
        p->n_work = mill_size(p);
        return gamma->cols == p->cols && beta->cols == p->cols ? MILL_OK : MILL_ERROR;
    case MILL_FORWARD: math_batch_norm(p->x, mean, rstd, x->x, gamma->x, beta->x, p->rows, p->cols); return MILL_OK;
    case MILL_BACKWARD:
        math_batch_norm_backward(p->work, gamma->g, beta->g, p->g, x->x, mean, rstd, gamma->x, p->rows, p->cols);
        for (int i = 0; i < mill_size(p); i++) x->g[i] += p->work[i];
        return MILL_OK;
    default: return MILL_ERROR;
    }
}

/* ---- relu and relu6, in place ---- */

static int op_clamp(mill_node *p, int action) {
    const float most = p->op == MILL_RELU6 ? 6.0f : INFINITY;
    const int n = p->rows * p->cols;
    if (action == MILL_SIZE) {
        p->rows = p->in[0]->rows;
        p->cols = p->in[0]->cols;
    }
    for (int i = 0; i < n && action == MILL_FORWARD; i++)
        p->x[i] = p->x[i] > most ? most : p->x[i] > 0.0f ? p->x[i] : 0.0f;
    for (int i = 0; i < n && action == MILL_BACKWARD; i++)
        if (!(p->x[i] > 0.0f) || (p->op == MILL_RELU6 && p->x[i] == most)) p->g[i] = 0.0f;
    return MILL_OK;
}

/* ---- cross entropy: forward makes the gradient too, backward only multiplies ---- */

static void loss_forward(mill_node *p) {
    const mill_node *logits = p->in[0], *labels = p->in[1], *mask = p->in[2];
    const int n = logits->rows, classes = logits->cols;
    float *probabilities = p->saved, *delta = p->saved + n * classes;
    int32_t *numbers = (int32_t *)(void *)(delta + n * classes);
    for (int i = 0; i < n; i++) numbers[i] = (int32_t)labels->x[i];
    p->x[0] = math_cross_entropy(probabilities, logits->x, numbers, n, classes);
    math_cross_entropy_backward(delta, probabilities, numbers, 1.0f, n, classes);
    for (int i = 0; i < n * classes; i++) delta[i] *= mask->x[i / classes];
}

static int op_cross_entropy(mill_node *p, int action) {
    mill_node *logits = p->in[0];
    const int n = mill_size(logits);
    switch (action) {
    case MILL_SIZE:
        p->rows = p->cols = 1;
        p->n_saved = 2 * n + logits->rows;
        return p->in[1]->rows == logits->rows && p->in[2]->rows == logits->rows ? MILL_OK : MILL_ERROR;
    case MILL_FORWARD: loss_forward(p); return MILL_OK;
    case MILL_BACKWARD:
        for (int i = 0; i < n; i++) logits->g[i] += p->g[0] * p->saved[n + i];
        return MILL_OK;
    default: return MILL_ERROR;
    }
}

mill_op *mill_ops[MILL_N_OPS] = {
    [MILL_LINEAR] = op_linear,         [MILL_MATMUL] = op_matmul, [MILL_BIAS] = op_bias,
    [MILL_BATCH_NORM] = op_batch_norm, [MILL_RELU] = op_clamp,    [MILL_RELU6] = op_clamp,
    [MILL_CROSS_ENTROPY] = op_cross_entropy,
};
