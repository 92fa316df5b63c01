/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer, and how far its brackets and steps have come. */
#ifndef AMP_OPTIMIZER_H
#define AMP_OPTIMIZER_H

#include "amp_call.h"
#include "context/op.h"
#include "master/param.h"
#include "optim/optim.h"

struct amp__optimizer {
    amp_optimizer *user;
    amp_context *context;
    amp_host host;
    struct amp__param **params;
    size_t n_params, params_capacity; /* 0: n_params */
    struct amp__op *steps, *zero_grads;
    size_t n_steps, n_zero_grads;
    struct amp__optim *optim; /* libamp's own; NULL: the host steps */

    bool sharded; /* AMP_OPTIMIZER_SHARDED */
    bool holds;   /* AMP_OPTIMIZER_HOLDS_MASTERS */
    bool grads_stay;      /* AMP_OPTIMIZER_GRADS_STAY */
    bool skips_on_device;        /* its step reads the flag on the device: the host need not know what was decided */
    bool in_bracket;
    bool bracketed; /* ever */
    bool cleared_inside; /* zero_grad was called in the bracket that is open */
    uint8_t looks;       /* brackets whose gradients bracket/wiring.c looked at, */
    size_t missing;      /* and at the last look, parameters that had none */
    uint64_t decisions, taken; /* of brackets; by steps */
    bool stepped;                    /* its gradients were noted after a step (bracket/stayed.c) */
    uint8_t stay_looks;              /* how often gradients of a step were looked for */
    const struct amp__param *stayed; /* one that has such a gradient; NULL: none is known */
    bool delayed; /* gradients still carry the scale of loss `delayed_loss` */
    uint32_t delayed_loss;
    float delayed_scale; /* which that was */
    uint32_t unchecked;    /* losses that found nothing yet, or something, and have not decided (delayed check) */
    bool skip;             /* decided by the brackets since the last step */
    bool skip_is_old;      /* it was decided before the last of them began */
    bool told_of_old_skip;
    bool failed;           /* a delayed bracket ended with an error that the other ranks have not heard of */
    size_t steps_called;   /* step slots called since the decision was new, */
    size_t steps_expected; /* of so many */
    uint32_t stepping;     /* steps running now */
    amp_action running;    /* what amp_step_begin answered, for its end, */
    bool begun;            /* which has not come yet */
    amp_scope scope;       /* held between amp_step_begin and amp_step_end */
    uint64_t last_step;    /* context->n_steps when it last stepped or skipped */
    uint32_t last_loss;    /* loss_id of its last bracket */
    bool told_of_steps;    /* unseen.c: there is no more to say */
    bool noted;            /* noted_sum and noted_steps are set */
    bool noted_at_begin;   /* by the last bracket to begin */
    uint64_t noted_sum, noted_steps; /* the sum of its parameters, and context->n_steps at that time */
    uint64_t unstepped;              /* brackets begun while no step was seen */
    uint32_t unseen_changes;         /* of that sum, from one bracket to the next */
    uint32_t changes_inside;         /* of that sum, between a bracket's begin and its end */
};

#endif
