/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of loom: nodes, planning, running. */
#include "loom.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

loom_graph *loom_new(void) {
    loom_graph *g = calloc(1, sizeof *g);
    if (g) g->ops = loom_default_ops;
    return g;
}

void loom_free(loom_graph *g) {
    if (!g) return;
    for (int i = 0; i < g->n; i++) {
        loom_node *p = g->nodes[i];
        if (!p->kind) free(p->data);
        if (p->grad) free(p->grad->data);
        free(p->grad);
        free(p);
    }
    free(g->nodes);
    free(g->arena);
    free(g->saved);
    free(g->scratch);
    free(g);
}

static loom_node *add(loom_graph *g, loom_dtype dtype, int rows, int cols) {
    if (g->n == g->capacity) {
        g->capacity = 2 * g->capacity + 8;
        loom_node **grown = realloc(g->nodes, (size_t)g->capacity * sizeof(loom_node *));
        if (!grown) return NULL;
        g->nodes = grown;
    }
    loom_node *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->graph = g;
    p->dtype = dtype;
    p->rows = rows;
    p->cols = cols;
    p->last_use = -1;
    return g->nodes[g->n++] = p;
}

loom_node *loom_input(loom_graph *g, loom_dtype dtype, int rows, int cols) {
    loom_node *p = add(g, dtype, rows, cols);
    if (p) p->data = calloc((size_t)(rows * cols), loom_width(dtype));
    return p;
}

loom_node *loom_param(loom_graph *g, const char *name, int rows, int cols) {
    loom_node *p = loom_input(g, LOOM_F32, rows, cols);
    if (!p) return NULL;
    p->name = name;
    p->wants_grad = 1;
    return p;
}

loom_node *loom_make(loom_graph *g, const loom_kind *kind, loom_dtype dtype, int rows, int cols, int n_in,
                     loom_node *const *in) {
    loom_node *p = g->planned ? NULL : add(g, dtype, rows, cols);
    if (!p) return NULL;
    p->kind = kind;
    p->n_in = n_in;
    for (int k = 0; k < n_in; k++) {
        p->in[k] = in[k];
        p->wants_grad |= in[k]->wants_grad;
        in[k]->last_use = g->n - 1;
    }
    return p;
}

/* ---- planning: node i runs forward at time i, backward at 2n - 1 - i ---- */

static int place_activations(loom_graph *g) {
    const int last = 2 * g->n - 1;
    struct plan_item *items = calloc(2 * (size_t)g->n, sizeof *items);
    if (!items) return 0;
    for (int i = 0; i < g->n; i++) {
        const loom_node *p = g->nodes[i];
        const size_t bytes = (size_t)loom_size(p) * loom_width(p->dtype);
        const int first_backward = p->last_use < 0 ? last - i : last - p->last_use;
        items[i] = (struct plan_item){ p->kind ? bytes : 0, i, last - i, 0 };
        items[g->n + i] = (struct plan_item){ p->kind && p->wants_grad ? bytes : 0, first_backward, last - i, 0 };
    }
    g->arena_bytes = plan_memory(items, 2 * g->n);
    g->arena = calloc(1, g->arena_bytes + 1);
    for (int i = 0; i < g->n && g->arena; i++) {
        loom_node *p = g->nodes[i];
        g->unshared_bytes += items[i].bytes + items[g->n + i].bytes;
        if (!p->kind) continue;
        p->data = g->arena + items[i].offset;
        if (p->wants_grad) p->gdata = g->arena + items[g->n + i].offset;
    }
    free(items);
    return g->arena != NULL;
}

static int place_gradients(loom_graph *g) {
    for (int i = 0; i < g->n; i++) {
        loom_node *p = g->nodes[i];
        if (p->kind || !p->wants_grad) continue;
        p->grad = calloc(1, sizeof *p->grad);
        if (!p->grad) return 0;
        *p->grad = (loom_node){ .graph = g, .dtype = p->dtype, .rows = p->rows, .cols = p->cols, .name = p->name };
        p->grad->data = calloc((size_t)loom_size(p), loom_width(p->dtype));
        if (!p->grad->data) return 0;
    }
    return 1;
}

int loom_plan(loom_graph *g) {
    size_t saved = 0, scratch = 0;
    if (!place_activations(g) || !place_gradients(g)) return 0;
    for (int i = 0; i < g->n; i++) {
        saved += (size_t)g->nodes[i]->n_saved;
        if ((size_t)g->nodes[i]->n_scratch > scratch) scratch = (size_t)g->nodes[i]->n_scratch;
    }
    g->saved = calloc(saved + 1, sizeof(float));
    g->scratch = calloc(scratch + 1, sizeof(float));
    if (!g->saved || !g->scratch) return 0;
    saved = 0;
    for (int i = 0; i < g->n; i++) {
        g->nodes[i]->saved = g->saved + saved;
        saved += (size_t)g->nodes[i]->n_saved;
    }
    g->planned = 1;
    return 1;
}

/* ---- running ---- */

void loom_forward(loom_graph *g) {
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i]->kind) g->nodes[i]->kind->forward(g->nodes[i]);
}

/* In the arena gradients hold whatever was there before: cleared just before the first kernel that adds to them. */
void loom_backward(loom_graph *g, loom_node *from, float seed) {
    int at = g->n - 1;
    while (at >= 0 && g->nodes[at] != from) at--;
    for (int i = 0; i < loom_size(from); i++)
        loom_store((char *)from->gdata + (size_t)i * loom_width(from->dtype), &seed, from->dtype, 1);
    for (; at >= 0; at--) {
        loom_node *p = g->nodes[at];
        if (!p->kind || !p->wants_grad) continue;
        for (int k = 0; k < p->n_in; k++)
            if (p->in[k]->gdata && p->in[k]->last_use == at)
                memset(p->in[k]->gdata, 0, (size_t)loom_size(p->in[k]) * loom_width(p->in[k]->dtype));
        p->kind->backward(p);
    }
}

/* ---- updating ---- */

int loom_sgd_step(loom_sgd *self) {
    float *state = self->state;
    for (int k = 0; k < self->n_params; k++) {
        loom_node *p = self->params[k];
        const size_t width = loom_width(p->dtype), grad_width = loom_width(p->grad->dtype);
        for (int i = 0; i < loom_size(p); i++) {
            float w, g;
            loom_load(&w, (char *)p->data + (size_t)i * width, p->dtype, 1);
            loom_load(&g, (char *)p->grad->data + (size_t)i * grad_width, p->grad->dtype, 1);
            state[i] = self->momentum * state[i] + g;
            w -= self->rate * state[i];
            loom_store((char *)p->data + (size_t)i * width, &w, p->dtype, 1);
        }
        state += loom_size(p);
    }
    return 1;
}

void loom_sgd_zero_grad(loom_sgd *self) {
    for (int k = 0; k < self->n_params; k++) {
        const loom_node *grad = self->params[k]->grad;
        memset(grad->data, 0, (size_t)loom_size(grad) * loom_width(grad->dtype));
    }
}
