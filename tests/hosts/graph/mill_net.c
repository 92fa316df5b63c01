/* SPDX-License-Identifier: Apache-2.0 */
#include "mill_net.h"

#include <string.h>

static mill_node *layer(mill_graph *g, mill_node *x, const char *weight, const char *bias, int ins, int outs) {
    mill_node *w = mill_param(g, weight, outs, ins), *b = mill_param(g, bias, 1, outs);
    return mill_make(g, MILL_LINEAR, 3, x, w, b);
}

static mill_node *norm(mill_graph *g, mill_node *x) {
    mill_node *gamma = mill_param(g, "norm.weight", 1, HIDDEN), *beta = mill_param(g, "norm.bias", 1, HIDDEN);
    return mill_make(g, MILL_BATCH_NORM, 3, x, gamma, beta);
}

int mill_net_init(struct mill_net *net, int classic) {
    memset(net, 0, sizeof *net);
    mill_graph *g = net->graph = mill_new();
    if (!g) return 0;
    net->x = mill_feed(g, BATCH, INPUTS);
    net->labels = mill_feed(g, BATCH, 1);
    net->mask = mill_feed(g, BATCH, 1);
    mill_node *y = layer(g, net->x, "linear1.weight", "linear1.bias", INPUTS, HIDDEN);
    y = mill_make(g, MILL_RELU, 1, norm(g, y), NULL, NULL);
    y = layer(g, y, "linear2.weight", "linear2.bias", HIDDEN, CLASSES);
    net->loss = mill_make(g, MILL_CROSS_ENTROPY, 3, y, net->labels, net->mask);
    if (mill_plan(g) != MILL_OK) return 0;
    problem_data(net->data, net->classes);
    problem_start(g->params);
    for (int i = 0; i < BATCH; i++) net->mask->x[i] = 1.0f;
    net->sgd = (mill_sgd){ mill_sgd_step, g, RATE, MOMENTUM, classic ? net->momentum : NULL, 0 };
    return 1;
}

void mill_net_free(struct mill_net *net) { mill_free(net->graph); }

void mill_net_feed(struct mill_net *net, int step) {
    const int batch = step % BATCHES;
    memcpy(net->x->x, net->data + batch * BATCH * INPUTS, sizeof(float) * BATCH * INPUTS);
    for (int i = 0; i < BATCH; i++) net->labels->x[i] = (float)net->classes[batch * BATCH + i];
}

float *mill_net_momentum(struct mill_net *net) { return net->sgd.classic ? net->momentum : net->graph->grads; }
