/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of mill: making nodes, planning, running, updating. */
#include "mill.h"

#include "../../support/traps.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

mill_graph *mill_new(void) { return calloc(1, sizeof(mill_graph)); }

void mill_free(mill_graph *g) {
    if (!g) return;
    for (int i = 0; i < g->n; i++) {
        if (g->nodes[i]->flags & MILL_IS_FEED) free(g->nodes[i]->x);
        free(g->nodes[i]);
    }
    free(g->nodes);
    free(g->params);
    free(g->grads);
    free(g->arena);
    free(g->work);
    free(g->saved);
    free(g);
}

static mill_node *add(mill_graph *g, int op, int flags) {
    if (g->n == g->capacity) {
        g->capacity = 2 * g->capacity + 8;
        mill_node **grown = realloc(g->nodes, (size_t)g->capacity * sizeof(mill_node *));
        if (!grown) return NULL;
        g->nodes = grown;
    }
    mill_node *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->op = op;
    p->flags = flags;
    return g->nodes[g->n++] = p;
}

mill_node *mill_feed(mill_graph *g, int rows, int cols) {
    mill_node *p = add(g, MILL_LEAF, MILL_IS_FEED);
    if (!p) return NULL;
    p->rows = rows;
    p->cols = cols;
    p->x = calloc((size_t)(rows * cols), sizeof(float));
    return p;
}

mill_node *mill_param(mill_graph *g, const char *name, int rows, int cols) {
    mill_node *p = add(g, MILL_LEAF, MILL_IS_PARAM);
    if (!p) return NULL;
    p->rows = rows;
    p->cols = cols;
    p->name = name;
    return p;
}

mill_node *mill_make(mill_graph *g, int op, int n_in, mill_node *a, mill_node *b, mill_node *c) {
    mill_node *p = add(g, op, op == MILL_RELU || op == MILL_RELU6 ? MILL_IN_PLACE : 0);
    if (!p) return NULL;
    p->n_in = n_in;
    p->in[0] = a;
    p->in[1] = b;
    p->in[2] = c;
    return p;
}

/* ---- planning ---- */

static int wants_gradient(const mill_node *p) { return !(p->flags & MILL_IS_FEED); }

static int infer(mill_graph *g) {
    for (int i = 0; i < g->n; i++) {
        mill_node *p = g->nodes[i];
        if (!p->op) continue;
        if (!mill_ops[p->op] || mill_ops[p->op](p, MILL_SIZE) != MILL_OK) return MILL_ERROR;
        if ((size_t)p->n_work > g->n_work) g->n_work = (size_t)p->n_work;
    }
    return MILL_OK;
}

static int place_params(mill_graph *g) {
    size_t at = 0;
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i]->flags & MILL_IS_PARAM) g->n_params += (size_t)mill_size(g->nodes[i]);
    g->params = calloc(g->n_params + 1, sizeof(float));
    g->grads = calloc(g->n_params + 1, sizeof(float));
    if (!g->params || !g->grads) return MILL_ERROR;
    for (int i = 0; i < g->n; i++) {
        mill_node *p = g->nodes[i];
        if (!(p->flags & MILL_IS_PARAM)) continue;
        p->x = g->params + at;
        p->g = g->grads + at;
        at += (size_t)mill_size(p);
    }
    return MILL_OK;
}

/* Time: node i runs forward at i and backward at 2n - 1 - i. Values live until the last backward that may read them,
 * gradients from the first consumer's backward to the node's own. What works in place lives in its input's buffers. */
static void lifetimes(const mill_graph *g, struct plan_item *x, struct plan_item *grad) {
    const int last = 2 * g->n - 1;
    int *owner = malloc((size_t)g->n * sizeof *owner);
    for (int i = 0; i < g->n && owner; i++) {
        const mill_node *p = g->nodes[i];
        owner[i] = i;
        x[i] = grad[i] = (struct plan_item){ 0, last, last, 0 };
        if (!p->op) continue;
        for (int k = 0; k < p->n_in; k++)
            for (int j = 0; j < i; j++)
                if (g->nodes[j] == p->in[k]) {
                    const int from = owner[j];
                    if (k == 0 && (p->flags & MILL_IN_PLACE)) owner[i] = from;
                    if (last - i < grad[from].birth) grad[from].birth = last - i;
                }
        const int mine = owner[i];
        if (mine != i) continue;
        x[i] = (struct plan_item){ (size_t)mill_size(p) * sizeof(float), i, last - i, 0 };
        grad[i] = (struct plan_item){ x[i].bytes, last - i, last - i, 0 };
    }
    free(owner);
}

static int place_activations(mill_graph *g) {
    struct plan_item *items = calloc(2 * (size_t)g->n, sizeof *items);
    if (!items) return MILL_ERROR;
    lifetimes(g, items, items + g->n);
    const size_t bytes = plan_memory(items, 2 * g->n);
    for (int i = 0; i < 2 * g->n; i++) g->unshared_floats += items[i].bytes / sizeof(float);
    g->arena_floats = bytes / sizeof(float);
    g->arena = calloc(1, bytes + 1);
    for (int i = 0; i < g->n && g->arena; i++) {
        mill_node *p = g->nodes[i];
        if (!p->op) continue;
        const int shares = (p->flags & MILL_IN_PLACE) != 0;
        p->x = shares ? p->in[0]->x : g->arena + items[i].offset / sizeof(float);
        p->g = shares ? p->in[0]->g : g->arena + items[g->n + i].offset / sizeof(float);
    }
    free(items);
    return g->arena ? MILL_OK : MILL_ERROR;
}

static int place_rest(mill_graph *g) {
    size_t total = 0;
    for (int i = 0; i < g->n; i++) total += (size_t)g->nodes[i]->n_saved;
    g->saved = calloc(total + 1, sizeof(float));
    g->work = calloc(g->n_work + 1, sizeof(float));
    if (!g->saved || !g->work) return MILL_ERROR;
    total = 0;
    for (int i = 0; i < g->n; i++) {
        mill_node *p = g->nodes[i];
        p->work = p->n_work ? g->work : NULL;
        p->saved = p->n_saved ? g->saved + total : NULL;
        total += (size_t)p->n_saved;
    }
    return MILL_OK;
}

int mill_plan(mill_graph *g) {
    if (infer(g) != MILL_OK || place_params(g) != MILL_OK || place_activations(g) != MILL_OK) return MILL_ERROR;
    return place_rest(g);
}

/* ---- running ---- */

int mill_forward(mill_graph *g) {
    for (int i = 0; i < g->n; i++) {
        mill_node *p = g->nodes[i];
        if (p->op && mill_ops[p->op](p, MILL_FORWARD) != MILL_OK) return MILL_ERROR;
    }
    return MILL_OK;
}

/* Ops add to their inputs' gradients. In the arena those hold whatever was there before, so each is cleared just before
 * the first op that adds to it; in-place nodes hand theirs down as it is. */
static void clear_inputs(const mill_graph *g, int at) {
    const mill_node *p = g->nodes[at];
    if (p->flags & MILL_IN_PLACE) return;
    for (int k = 0; k < p->n_in; k++) {
        const mill_node *in = p->in[k];
        int later = 0;
        for (int j = at + 1; j < g->n; j++)
            for (int m = 0; m < g->nodes[j]->n_in; m++) later |= g->nodes[j]->in[m] == in;
        if (in->op && wants_gradient(in) && !later) memset(in->g, 0, (size_t)mill_size(in) * sizeof(float));
    }
}

int mill_backward(mill_graph *g, mill_node *from) {
    int at = g->n - 1;
    while (at >= 0 && g->nodes[at] != from) at--;
    for (int i = 0; i < mill_size(from); i++) from->g[i] = 1.0f;
    if (g->clears) memset(g->grads, 0, g->n_params * sizeof(float));
    for (; at >= 0; at--) {
        mill_node *p = g->nodes[at];
        if (!p->op) continue;
        clear_inputs(g, at);
        if (mill_ops[p->op](p, MILL_BACKWARD) != MILL_OK) return MILL_ERROR;
    }
    return MILL_OK;
}

/* ---- updating ---- */

int mill_sgd_step(mill_sgd *self) {
    mill_graph *g = self->graph;
    for (size_t i = 0; i < g->n_params; i++) {
        if (self->classic) self->classic[i] = self->momentum * self->classic[i] + g->grads[i];
        g->params[i] -= self->rate * (self->classic ? self->classic[i] : g->grads[i]);
        if (!g->clears) g->grads[i] = self->classic ? 0.0f : self->momentum * g->grads[i];
    }
    return ++self->steps;
}

void mill_traps(int on) {
    const int traps = FE_DIVBYZERO | FE_OVERFLOW | FE_INVALID;
    feclearexcept(FE_ALL_EXCEPT);
    if (on) feenableexcept(traps);
    else fedisableexcept(traps);
}
