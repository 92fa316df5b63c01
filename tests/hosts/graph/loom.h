/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loom: a small static-graph framework with 16-bit storage. Constructors in a table make nodes; nothing is computed and
 * no activation has memory before loom_plan. Each node knows its type as soon as it is made; kernels convert where they
 * load and store, so any mixture of types computes in FP32.
 *
 *     loom_graph *g = loom_new();
 *     loom_node *w = loom_param(g, "w", 4, 16), *x = loom_input(g, LOOM_F32, 32, 16);
 *     loom_node *y = g->ops.linear(g, x, w, b), *loss = g->ops.cross_entropy(g, y, labels);
 *     loom_plan(g);
 *     loom_forward(g); loom_backward(g, loss, 1.0f); sgd->step(sgd); sgd->zero_grad(sgd);
 */
#ifndef LOOM_H
#define LOOM_H

#include <stddef.h>
#include <stdint.h>

typedef enum { LOOM_F32, LOOM_F16, LOOM_BF16, LOOM_I32 } loom_dtype;
enum { LOOM_MAX_IN = 3 };

typedef struct loom_graph loom_graph;
typedef struct loom_node loom_node;

/* What a kind of node computes, once it has memory. */
typedef struct loom_kind {
    const char *name;
    void (*forward)(loom_node *p);
    void (*backward)(loom_node *p); /* adds to the gradients of the inputs that want one */
} loom_kind;

struct loom_node {
    loom_graph *graph;
    const loom_kind *kind; /* NULL: parameter or input */
    loom_dtype dtype;
    int rows, cols, n_in;
    loom_node *in[LOOM_MAX_IN];
    void *data;      /* NULL until planned, but for parameters and inputs */
    void *gdata;     /* gradient of what is no parameter: same type, in the arena */
    loom_node *grad; /* gradient of a parameter: a node of the parameter's type; NULL until planned */
    const char *name;
    float *saved;    /* what forward keeps for backward */
    int n_saved, n_scratch;
    int wants_grad, last_use;
};

/* Constructors return NULL where sizes do not fit or memory is out. */
typedef struct loom_ops {
    loom_node *(*linear)(loom_graph *g, loom_node *x, loom_node *weight, loom_node *bias);
    loom_node *(*batch_norm)(loom_graph *g, loom_node *x, loom_node *gamma, loom_node *beta);
    loom_node *(*relu)(loom_graph *g, loom_node *x);
    loom_node *(*cross_entropy)(loom_graph *g, loom_node *logits, loom_node *labels); /* always LOOM_F32 */
    loom_node *(*cast)(loom_graph *g, loom_node *x, loom_dtype to); /* backward casts the gradient */
    loom_node *(*reserved)(loom_graph *g, loom_node *x);            /* NULL */
} loom_ops;

extern const loom_ops loom_default_ops; /* what each graph starts with; replace entries to use kernels of your own */

struct loom_graph {
    loom_ops ops;
    loom_node **nodes;
    int n, capacity, planned;
    char *arena;
    float *saved, *scratch;
    size_t arena_bytes, unshared_bytes;
};

loom_graph *loom_new(void);
void loom_free(loom_graph *g);
loom_node *loom_param(loom_graph *g, const char *name, int rows, int cols); /* zeros, LOOM_F32 */
loom_node *loom_input(loom_graph *g, loom_dtype dtype, int rows, int cols);
/* For constructors: a node that computes `kind`. */
loom_node *loom_make(loom_graph *g, const loom_kind *kind, loom_dtype dtype, int rows, int cols, int n_in,
                     loom_node *const *in);

int loom_plan(loom_graph *g); /* 0: no memory */
void loom_forward(loom_graph *g);
void loom_backward(loom_graph *g, loom_node *from, float seed);

static inline int loom_size(const loom_node *p) { return p->rows * p->cols; }
size_t loom_width(loom_dtype dtype);
/* Elements as FP32, and back, rounded to nearest even. */
void loom_load(float *dst, const void *src, loom_dtype dtype, int n);
void loom_store(void *dst, const float *src, loom_dtype dtype, int n);
/* The node's gradient += part. */
void loom_accumulate(loom_node *p, const float *part);

/* SGD with momentum over parameters of any type; its own state is FP32. */
typedef struct loom_sgd loom_sgd;
struct loom_sgd {
    int (*step)(loom_sgd *self); /* 1 */
    void (*zero_grad)(loom_sgd *self);
    loom_node **params;
    int n_params;
    float rate, momentum;
    float *state; /* of all parameters, in their order */
};
int loom_sgd_step(loom_sgd *self);
void loom_sgd_zero_grad(loom_sgd *self);

#endif
