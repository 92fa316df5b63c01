/* SPDX-License-Identifier: Apache-2.0 */
/* mill for libamp: everything that an FP32-only graph with a table of executors needs. */
#ifndef MILL_ADAPTER_H
#define MILL_ADAPTER_H

#include "mill.h"

#include <amp.h>
#include <amp_raw.h>

enum { MILL_MAX_PARAMS = 32 };

struct mill_adapter {
    amp_host host;
    amp_struct structs[1];
    amp_op ops[MILL_N_OPS], step;
    size_t n_ops;
    amp_buffer buffers[MILL_MAX_PARAMS], grads[MILL_MAX_PARAMS];
    amp_param params[MILL_MAX_PARAMS];
    void *trained[MILL_MAX_PARAMS];
    amp_model model;
    amp_optimizer optimizer;
};

/* After mill_plan, since parameters must have their memory. `low`: linear gets 16-bit implementations as well. */
void mill_adapter_init(struct mill_adapter *adapter, const mill_graph *graph, mill_sgd *sgd, int low);

/*
 * mill_low.c: linear of mill on 16-bit memory: the same node, whose pointers to what it reads and what it overwrites show
 * 16-bit elements for the time of the call. What it adds to, gradients, is mill's own FP32 memory.
 */
mill_op mill_linear_fp16, mill_linear_bf16;

#endif
