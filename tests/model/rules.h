/* SPDX-License-Identifier: Apache-2.0 */
/* Between the model's files. */
#ifndef TEST_RULES_H
#define TEST_RULES_H

#include "model.h"

#define EACH_PARAM(model, optimizer, p)                                                                                \
    for (struct param_model *p = (model)->params; p < (model)->params + PARAMS; p++)                                   \
        if (model_holds((model), (optimizer), (enum param)(p - (model)->params)))
#define EACH_OPTIMIZER(bits, k)                                                                                        \
    for (unsigned k = 0; k < OPTIMIZERS; k++)                                                                          \
        if ((bits) & 1u << k)

/* As libamp multiplies and adds: in float, but in double where the type is FP64. */
double model_product(amp_dtype type, double a, double b);
double model_sum(amp_dtype type, double a, double b);
bool model_is_zero(const struct param_model *p, const double *v); /* all bits */

/* The master gradient takes what the host did to its gradient; the host's gradient shows the master
 * gradient, rounded. */
void model_follow_grad(const struct model *model, struct param_model *p, bool look);
void model_show_grad(struct param_model *p);
/* all: also what brackets before this one delayed */
void model_cancel_grad(const struct model *model, struct param_model *p, bool all);

#endif
