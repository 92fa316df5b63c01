/* SPDX-License-Identifier: Apache-2.0 */
#include "loom_net.h"

#include <string.h>

static loom_node *build(struct loom_net *self, loom_node *x) {
    loom_graph *g = self->graph;
    loom_node *const *p = self->params;
    loom_node *y = g->ops.linear(g, x, p[W1], p[B1]);
    y = g->ops.batch_norm(g, y, p[GAMMA], p[BETA]);
    y = g->ops.relu(g, y);
    return g->ops.linear(g, y, p[W2], p[B2]);
}

int loom_net_init(struct loom_net *net) {
    static const int rows[N_PARAMS] = { [W1] = HIDDEN, [B1] = 1, [GAMMA] = 1, [BETA] = 1, [W2] = CLASSES, [B2] = 1 };
    float start[PARAM_FLOATS];
    memset(net, 0, sizeof *net);
    net->build = build;
    loom_graph *g = net->graph = loom_new();
    if (!g) return 0;
    for (int i = 0; i < N_PARAMS; i++)
        net->params[i] = loom_param(g, problem_params[i].name, rows[i], (int)problem_params[i].size / rows[i]);
    net->x = loom_input(g, LOOM_F32, BATCH, INPUTS);
    net->labels = loom_input(g, LOOM_I32, BATCH, 1);
    if (!net->labels) return 0;
    problem_data(net->data, net->classes);
    problem_start(start);
    loom_net_set_params(net, start);
    net->sgd = (loom_sgd){ loom_sgd_step, loom_sgd_zero_grad, net->params, N_PARAMS, RATE, MOMENTUM, net->momentum };
    return 1;
}

int loom_net_finish(struct loom_net *net) {
    loom_graph *g = net->graph;
    net->loss = g->ops.cross_entropy(g, net->build(net, net->x), net->labels);
    return net->loss && loom_plan(g);
}

void loom_net_feed(struct loom_net *net, int step) {
    const int batch = step % BATCHES;
    memcpy(net->x->data, net->data + batch * BATCH * INPUTS, sizeof(float) * BATCH * INPUTS);
    memcpy(net->labels->data, net->classes + batch * BATCH, sizeof(int32_t) * BATCH);
}

void loom_net_free(struct loom_net *net) { loom_free(net->graph); }

void loom_net_params(const struct loom_net *net, float *out) {
    for (int i = 0; i < N_PARAMS; i++) {
        const loom_node *p = net->params[i];
        loom_load(out + problem_params[i].offset, p->data, p->dtype, loom_size(p));
    }
}

void loom_net_set_params(struct loom_net *net, const float *values) {
    for (int i = 0; i < N_PARAMS; i++) {
        loom_node *p = net->params[i];
        loom_store(p->data, values + problem_params[i].offset, p->dtype, loom_size(p));
    }
}
