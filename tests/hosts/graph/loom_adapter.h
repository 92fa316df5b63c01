/* SPDX-License-Identifier: Apache-2.0 */
/* loom for libamp: a graph with 16-bit storage whose table has constructors. */
#ifndef LOOM_ADAPTER_H
#define LOOM_ADAPTER_H

#include "loom_net.h"

#include <amp.h>

enum { LOOM_N_OPS = 6 };

struct loom_adapter {
    amp_host host;
    amp_op ops[LOOM_N_OPS], build, step, zero_grad;
    amp_param params[N_PARAMS];
    void *trained[N_PARAMS];
    amp_model model;
    amp_optimizer optimizer;
    unsigned casts; /* nodes that libamp asked for */
};

/* After the parameters are made, before the graph is built: the types of its nodes come from theirs. `table`: where the
 * graph's constructors are looked up. */
void loom_adapter_init(struct loom_adapter *adapter, struct loom_net *net, loom_ops *table);

#endif
