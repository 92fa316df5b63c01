/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of a context: properties of the level, and needs of the models. Set by initialize, and suspended only by
 * amp_verify_step during a pass. */
#ifndef AMP_CONTEXT_POLICY_H
#define AMP_CONTEXT_POLICY_H

#include "opt_levels/levels.h"

struct amp__policy {
    struct amp__properties properties;
    bool has_forward;  /* a model with a described forward */
    bool keeps_blocks; /* a 16-bit model on a host without swap_data */
    bool seeds;        /* an op with AMP_OP_SEEDS: the seed carries the scale, and not the host's seed_factor */
    bool verify;       /* a watch on every wrapped call (raw/watch.c) */
};

#endif
