/* SPDX-License-Identifier: Apache-2.0 */
/* The training with libamp, on the host of host.h. */
#ifndef EQUALITY_PROGRAM_H
#define EQUALITY_PROGRAM_H

#include "host.h"
#include "plan.h"

struct program {
    const struct plan *plan;
    bool adam;
    struct host host;
    struct net {
        struct program *program;
        struct tensor *params[N_PARAMS];
        struct moments moments[N_PARAMS];
        amp_fn forward, step[2];
        amp_op ops[N_HOST_OPS], forward_op, step_ops[2];
        amp_param listed[N_PARAMS];
        void *optimized[2][N_PARAMS];
        int indices[2][N_PARAMS], n_optimized[2]; /* what the host's optimizer o updates */
        struct group { struct net *net; int index; } groups[2];
        amp_model model;
        amp_optimizer optimizers[2];
        bool second, late; /* of this forward */
    } nets[MOST_MODELS];
    amp_context *context;
};

/* The status of amp_initialize_many. */
amp_status program_init(struct program *program, const amp_config *config, unsigned host_options);
amp_status program_step(struct program *program, int step);
void program_end(struct program *program);
/* What the optimizer updates: the master, or the parameter. */
float program_value(struct program *program, int model, int param, int i);

#endif
