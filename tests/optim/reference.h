/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules in double, written from the papers' formulas, with a bound on how far a computation in float may be away. A
 * number carries its bound: an operation on floats adds half a unit in the last place of its result (2^-24 of it, or
 * 2^-150 where that is subnormal) to what its operands' bounds become. What libamp orders otherwise than the paper
 * costs some roundings more, so a result may be two bounds away.
 */
#ifndef TEST_OPTIM_REFERENCE_H
#define TEST_OPTIM_REFERENCE_H

#include "amp_optim.h"

#include <stddef.h>

struct number {
    double value, bound;
};

/* One tensor before a step, as floats, and what the step makes of it. */
struct reference {
    size_t n;
    const float *grad; /* unscaled */
    const float *param, *moments[3];
    uint64_t steps; /* before it */
    struct number *new_param, *new_moments[3]; /* NULL: not wanted */
};

/* factor: LAMB's, from the norm of all gradients. */
void reference_step(const amp_optim *rule, const struct reference *tensor, struct number factor);
/* That factor, for the gradients of n tensors. */
struct number reference_factor(const amp_optim *rule, const struct reference *tensors, size_t n);

#endif
