/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts' common problem as a graph of mill. Knows nothing of libamp. */
#ifndef MILL_NET_H
#define MILL_NET_H

#include "mill.h"
#include "problem.h"

struct mill_net {
    mill_graph *graph;
    mill_node *x, *labels, *mask, *loss;
    mill_sgd sgd;
    float data[SAMPLES * INPUTS];
    int32_t classes[SAMPLES];
    float momentum[PARAM_FLOATS];
};

/* classic: momentum in a block of its own, else in the gradients. 0: no memory. */
int mill_net_init(struct mill_net *net, int classic);
void mill_net_free(struct mill_net *net);
/* The step's batch into the graph's feeds. */
void mill_net_feed(struct mill_net *net, int step);
/* What the optimizer remembers, wherever it is: PARAM_FLOATS floats. */
float *mill_net_momentum(struct mill_net *net);

#endif
