/* SPDX-License-Identifier: Apache-2.0 */
/* loom's constructors and what their nodes compute: load as FP32, the problem's arithmetic, store. */
#include "loom.h"
#include "problem.h"

#include <stddef.h>
#include <string.h>

/* Pieces of the graph's scratch, for one kernel's run. */
struct scratch {
    float *next;
};

static float *take(struct scratch *scratch, int n) {
    float *taken = scratch->next;
    scratch->next += n;
    return taken;
}

static float *load(struct scratch *scratch, const loom_node *p) {
    float *taken = take(scratch, loom_size(p));
    loom_load(taken, p->data, p->dtype, loom_size(p));
    return taken;
}

static float *load_grad(struct scratch *scratch, const loom_node *p) {
    float *taken = take(scratch, loom_size(p));
    loom_load(taken, p->gdata, p->dtype, loom_size(p));
    return taken;
}

static float *zeros(struct scratch *scratch, const loom_node *p) {
    float *taken = take(scratch, loom_size(p));
    memset(taken, 0, (size_t)loom_size(p) * sizeof(float));
    return taken;
}

void loom_accumulate(loom_node *p, const float *part) {
    void *there = p->grad ? p->grad->data : p->gdata;
    const loom_dtype dtype = p->grad ? p->grad->dtype : p->dtype;
    const size_t width = loom_width(dtype);
    for (int i = 0; p->wants_grad && i < loom_size(p); i++) {
        float sum;
        loom_load(&sum, (char *)there + (size_t)i * width, dtype, 1);
        sum += part[i];
        loom_store((char *)there + (size_t)i * width, &sum, dtype, 1);
    }
}

static loom_node *with_scratch(loom_node *p, int saved) {
    if (!p) return NULL;
    p->n_saved = saved;
    p->n_scratch = 2 * loom_size(p);
    for (int k = 0; k < p->n_in; k++) p->n_scratch += 2 * loom_size(p->in[k]);
    return p;
}

/* ---- linear ---- */

static void linear_forward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const float *x = load(&s, p->in[0]), *w = load(&s, p->in[1]), *b = load(&s, p->in[2]);
    float *y = take(&s, loom_size(p));
    math_linear(y, x, w, b, p->rows, p->in[0]->cols, p->cols);
    loom_store(p->data, y, p->dtype, loom_size(p));
}

static void linear_backward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const float *x = load(&s, p->in[0]), *w = load(&s, p->in[1]), *dy = load_grad(&s, p);
    float *dx = zeros(&s, p->in[0]), *dw = zeros(&s, p->in[1]), *db = zeros(&s, p->in[2]);
    math_linear_backward(p->in[0]->wants_grad ? dx : NULL, dw, db, dy, x, w, p->rows, p->in[0]->cols, p->cols);
    loom_accumulate(p->in[0], dx);
    loom_accumulate(p->in[1], dw);
    loom_accumulate(p->in[2], db);
}

static loom_node *linear(loom_graph *g, loom_node *x, loom_node *weight, loom_node *bias) {
    static const loom_kind kind = { "linear", linear_forward, linear_backward };
    if (!x || !weight || !bias || x->cols != weight->cols || bias->cols != weight->rows) return NULL;
    return with_scratch(loom_make(g, &kind, x->dtype, x->rows, weight->rows, 3, (loom_node *[]){ x, weight, bias }), 0);
}

/* ---- batch norm ---- */

static void norm_forward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const float *x = load(&s, p->in[0]), *gamma = load(&s, p->in[1]), *beta = load(&s, p->in[2]);
    float *y = take(&s, loom_size(p));
    math_batch_norm(y, p->saved, p->saved + p->cols, x, gamma, beta, p->rows, p->cols);
    loom_store(p->data, y, p->dtype, loom_size(p));
}

static void norm_backward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const float *x = load(&s, p->in[0]), *gamma = load(&s, p->in[1]), *dy = load_grad(&s, p);
    float *dx = zeros(&s, p->in[0]), *dgamma = zeros(&s, p->in[1]), *dbeta = zeros(&s, p->in[2]);
    math_batch_norm_backward(dx, dgamma, dbeta, dy, x, p->saved, p->saved + p->cols, gamma, p->rows, p->cols);
    loom_accumulate(p->in[0], dx);
    loom_accumulate(p->in[1], dgamma);
    loom_accumulate(p->in[2], dbeta);
}

static loom_node *batch_norm(loom_graph *g, loom_node *x, loom_node *gamma, loom_node *beta) {
    static const loom_kind kind = { "batch_norm", norm_forward, norm_backward };
    if (!x || !gamma || !beta || gamma->cols != x->cols || beta->cols != x->cols) return NULL;
    loom_node *in[] = { x, gamma, beta };
    return with_scratch(loom_make(g, &kind, x->dtype, x->rows, x->cols, 3, in), 2 * x->cols);
}

/* ---- relu ---- */

static void relu_forward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    float *x = load(&s, p->in[0]);
    math_relu(x, x, loom_size(p));
    loom_store(p->data, x, p->dtype, loom_size(p));
}

static void relu_backward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const float *y = load(&s, p), *dy = load_grad(&s, p);
    float *dx = take(&s, loom_size(p));
    math_relu_backward(dx, dy, y, loom_size(p));
    loom_accumulate(p->in[0], dx);
}

static loom_node *relu(loom_graph *g, loom_node *x) {
    static const loom_kind kind = { "relu", relu_forward, relu_backward };
    return x ? with_scratch(loom_make(g, &kind, x->dtype, x->rows, x->cols, 1, &x), 0) : NULL;
}

/* ---- cross entropy ---- */

static void loss_forward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const loom_node *logits = p->in[0];
    const float *x = load(&s, logits);
    const float loss = math_cross_entropy(p->saved, x, p->in[1]->data, logits->rows, logits->cols);
    loom_store(p->data, &loss, p->dtype, 1);
}

static void loss_backward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    const loom_node *logits = p->in[0];
    float *dlogits = take(&s, loom_size(logits));
    math_cross_entropy_backward(dlogits, p->saved, p->in[1]->data, *load_grad(&s, p), logits->rows, logits->cols);
    loom_accumulate(p->in[0], dlogits);
}

static loom_node *cross_entropy(loom_graph *g, loom_node *logits, loom_node *labels) {
    static const loom_kind kind = { "cross_entropy", loss_forward, loss_backward };
    if (!logits || !labels || labels->dtype != LOOM_I32 || labels->rows != logits->rows) return NULL;
    return with_scratch(loom_make(g, &kind, LOOM_F32, 1, 1, 2, (loom_node *[]){ logits, labels }), loom_size(logits));
}

/* ---- cast: a node like any other ---- */

static void cast_forward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    loom_store(p->data, load(&s, p->in[0]), p->dtype, loom_size(p));
}

static void cast_backward(loom_node *p) {
    struct scratch s = { p->graph->scratch };
    loom_accumulate(p->in[0], load_grad(&s, p));
}

static loom_node *cast(loom_graph *g, loom_node *x, loom_dtype to) {
    static const loom_kind kind = { "cast", cast_forward, cast_backward };
    if (!x || x->dtype == to) return x;
    return with_scratch(loom_make(g, &kind, to, x->rows, x->cols, 1, &x), 0);
}

const loom_ops loom_default_ops = { linear, batch_norm, relu, cross_entropy, cast, NULL };
