/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mill: a small static-graph framework in FP32. Nodes are made first, sizes are inferred and memory is planned by
 * mill_plan, and the graph then runs as often as you like. What a kind of node does is one function,
 * int op(mill_node *p, int action), found in a table by the node's number. Every layer of a kind is served by the same
 * function.
 *
 *     mill_graph *g = mill_new();
 *     mill_node *x = mill_feed(g, 32, 16), *w = mill_param(g, "w", 4, 16), ...;
 *     mill_node *loss = mill_make(g, MILL_CROSS_ENTROPY, 3, logits, labels, mask);
 *     mill_plan(g);                       memory; parameters and gradients are one block each
 *     mill_forward(g); mill_backward(g, loss); sgd->step(sgd);
 *
 * Gradients of parameters are added to and never cleared by the graph; the optimizer decides what stays in them. But with
 * `clears` backward begins with zeros, and what stays in them does not matter.
 */
#ifndef MILL_H
#define MILL_H

#include <stddef.h>
#include <stdint.h>

enum { MILL_SIZE, MILL_FORWARD, MILL_BACKWARD }; /* actions */
enum { MILL_OK = 0, MILL_ERROR = -1 };

/* Kinds of nodes: rows of the table. Rows without a function are leaves, or were removed and keep their number. */
enum {
    MILL_LEAF,
    MILL_LINEAR,        /* x, weight [outs,ins], bias [1,outs] */
    MILL_MATMUL,        /* x, weight */
    MILL_CONVOLUTION,   /* not any more */
    MILL_BIAS,          /* x, bias: adds in place */
    MILL_BATCH_NORM,    /* x, gamma [1,cols], beta [1,cols] */
    MILL_RELU,          /* x, in place */
    MILL_RELU6,         /* x, in place: the same function */
    MILL_CROSS_ENTROPY, /* logits, labels [rows,1] as floats, mask [rows,1] */
    MILL_N_OPS
};

enum { MILL_MAX_IN = 3 };
enum { MILL_IS_PARAM = 1, MILL_IS_FEED = 2, MILL_IN_PLACE = 4 }; /* flags */

typedef struct mill_graph mill_graph;
typedef struct mill_node mill_node;
typedef int mill_op(mill_node *p, int action);

struct mill_node {
    int op, flags;
    int rows, cols;
    int n_in;
    mill_node *in[MILL_MAX_IN];
    float *x, *g;          /* values; gradient, NULL where none is wanted */
    float *saved;          /* what forward keeps for backward */
    float *work;           /* the graph's workspace, shared by all nodes */
    int n_saved, n_work;   /* floats; asked for by MILL_SIZE */
    const char *name;      /* parameters */
};

extern mill_op *mill_ops[MILL_N_OPS];

struct mill_graph {
    mill_node **nodes; /* in the order they run */
    int n, capacity;
    float *params, *grads; /* all parameters, all gradients: one block each */
    size_t n_params;
    int clears;
    float *arena, *work, *saved;
    size_t arena_floats, unshared_floats, n_work; /* what was planned, and what it would be without sharing */
};

mill_graph *mill_new(void);
void mill_free(mill_graph *g);

mill_node *mill_feed(mill_graph *g, int rows, int cols); /* the caller fills ->x before each run */
mill_node *mill_param(mill_graph *g, const char *name, int rows, int cols);
mill_node *mill_make(mill_graph *g, int op, int n_in, mill_node *a, mill_node *b, mill_node *c);
/* MILL_ERROR: sizes do not fit, or no memory. */
int mill_plan(mill_graph *g);

int mill_forward(mill_graph *g);
/* Fills the gradient of `from` with 1 and runs backward from there. */
int mill_backward(mill_graph *g, mill_node *from);

static inline int mill_size(const mill_node *p) { return p->rows * p->cols; }

/* SGD with momentum. classic: momentum has its own block, and the gradients are cleared. Otherwise what stays in the
 * gradients, times the momentum, is where the next backward adds to, and nothing is ever cleared. */
typedef struct mill_sgd mill_sgd;
struct mill_sgd {
    int (*step)(mill_sgd *self); /* returns the number of steps so far */
    mill_graph *graph;
    float rate, momentum;
    float *classic; /* NULL: momentum stays in the gradients */
    int steps;
};
int mill_sgd_step(mill_sgd *self);

/* Programs that want to find their bugs: division by zero, overflow and invalid operations raise SIGFPE. */
void mill_traps(int on);

#endif
