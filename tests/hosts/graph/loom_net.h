/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts' common problem as a graph of loom. Knows nothing of libamp. */
#ifndef LOOM_NET_H
#define LOOM_NET_H

#include "loom.h"
#include "problem.h"

struct loom_net {
    loom_node *(*build)(struct loom_net *self, loom_node *x); /* the nodes from x to the logits */
    loom_graph *graph;
    loom_node *params[N_PARAMS], *x, *labels, *loss;
    loom_sgd sgd;
    float data[SAMPLES * INPUTS];
    int32_t classes[SAMPLES];
    float momentum[PARAM_FLOATS];
};

int loom_net_init(struct loom_net *net);   /* parameters and inputs; 0: no memory */
int loom_net_finish(struct loom_net *net); /* builds the graph through the pointer, and plans it */
void loom_net_feed(struct loom_net *net, int step);
void loom_net_free(struct loom_net *net);
/* The parameters as they are, as FP32, in the problem's order. */
void loom_net_params(const struct loom_net *net, float *out);
void loom_net_set_params(struct loom_net *net, const float *values);

#endif
