/* SPDX-License-Identifier: Apache-2.0 */
/* One training on one rank, and what of it the ranks compare. */
#ifndef RANKS_H
#define RANKS_H

#include "adapter.h"
#include "digits.h"

#include <mpi.h>
#include <stdbool.h>

enum { STEPS = 14, BATCH = 4, MAX_FLOATS = 9850 }; /* all trained floats of the example's network */

/* When gradients meet: in backward, still scaled, as DistributedDataParallel does; after the bracket, unscaled; and in
 * backward with an optimizer that has half of the parameters on each rank. */
enum variant { INSIDE, AFTER, SHARDED, N_VARIANTS };

struct job {
    const struct digits *data;
    amp_level level;
    enum variant variant;
    struct net net;
    mt_tensor *trained[NET_TENSORS];
    size_t n_trained;
    mt_optimizer *optimizer;
    struct adapter adapter;
};

struct outcome {
    uint32_t skips; /* a bit for each step */
    float scale;
    uint64_t brackets; /* decided by the scaler */
    bool sound; /* as amp_health says */
    float loss[STEPS], norm[STEPS]; /* norm: of the steps that were taken */
    float start[MAX_FLOATS], params[MAX_FLOATS], masters[MAX_FLOATS], after[MAX_FLOATS];
};

#endif
