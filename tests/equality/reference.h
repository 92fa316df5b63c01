/* SPDX-License-Identifier: Apache-2.0 */
/* The same training with the casts written out by hand and no loss scale. */
#ifndef EQUALITY_REFERENCE_H
#define EQUALITY_REFERENCE_H

#include "plan.h"

struct reference {
    const struct plan *plan;
    struct recipe recipe;
    bool adam;
    bool fixed;   /* gradients are FP32 buffers that are always there */
    /* delayed brackets form a sum of their own: not where gradients are not scaled at all, or scaled in place */
    bool grouped;
    const char *unfit; /* a value that fp16 cannot hold at every scale: the plan's fault */
    struct reference_param {
        float value[MOST]; /* what the optimizer updates: the master, or the parameter */
        float grad[MOST], group[MOST];
        bool has_grad, has_group;
        struct moments moments;
    } params[MOST_MODELS][N_PARAMS];
};

void reference_init(struct reference *reference);
void reference_step(struct reference *reference, int step);
/* As the model sees it: rounded where there is a master. */
float reference_shown(const struct reference *reference, int model, int param, int i);

#endif
