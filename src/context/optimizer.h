/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer, and how far its brackets and steps have come. */
#ifndef AMP_OPTIMIZER_H
#define AMP_OPTIMIZER_H

#include "amp_call.h"
#include "context/op.h"
#include "context/step_state.h"
#include "master/param.h"
#include "optim/optim.h"

#include <assert.h>

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
    enum amp__step_state state;
    bool bracketed; /* ever */
    bool cleared_inside; /* zero_grad was called in the bracket that is open */
    uint8_t looks;       /* brackets whose gradients bracket/wiring.c looked at, */
    size_t missing;      /* and at the last look, parameters that had none */
    uint64_t decisions, taken; /* of brackets; by steps */
    bool stepped;                    /* its gradients were noted after a step (bracket/stayed.c) */
    uint8_t stay_looks;              /* how often gradients of a step were looked for */
    const struct amp__param *stayed; /* one that has such a gradient; NULL: none is known */
    uint32_t delayed_loss; /* whose scale its gradients carry while it is delayed */
    float delayed_scale;   /* and which one */
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
    uint64_t last_step;    /* context->progress.n_steps when it last stepped or skipped */
    uint32_t last_loss;    /* loss_id of its last bracket */
    bool told_of_steps;    /* unseen.c: there is no more to say */
    bool noted;            /* noted_sum and noted_steps are set */
    bool noted_at_begin;   /* by the last bracket to begin */
    uint64_t noted_sum, noted_steps; /* the sum of its parameters, and context->progress.n_steps at that time */
    uint64_t unstepped;              /* brackets begun while no step was seen */
    uint32_t unseen_changes;         /* of that sum, from one bracket to the next */
    uint32_t changes_inside;         /* of that sum, between a bracket's begin and its end */
};

static inline bool amp__step_in_bracket(const struct amp__optimizer *optimizer) {
    return optimizer->state == AMP__STEP_IN_BRACKET || optimizer->state == AMP__STEP_REOPENED;
}
/* Its gradients carry the scale of a bracket that has ended. */
static inline bool amp__step_is_delayed(const struct amp__optimizer *optimizer) {
    return optimizer->state == AMP__STEP_DELAYED || optimizer->state == AMP__STEP_REOPENED;
}
static inline bool amp__step_is_running(const struct amp__optimizer *optimizer) {
    return optimizer->state == AMP__STEP_RUNNING;
}
static inline void amp__step_goes(struct amp__optimizer *optimizer, enum amp__step_state to) {
    assert(amp__step_may_go(optimizer->state, to));
    optimizer->state = to;
}
static inline void amp__step_enters_bracket(struct amp__optimizer *optimizer) {
    amp__step_goes(optimizer, optimizer->state == AMP__STEP_DELAYED ? AMP__STEP_REOPENED : AMP__STEP_IN_BRACKET);
}
static inline void amp__step_leaves_bracket(struct amp__optimizer *optimizer) {
    amp__step_goes(optimizer, optimizer->state == AMP__STEP_REOPENED ? AMP__STEP_DELAYED : AMP__STEP_DECIDED);
}
/* An end that leaves the scale in the gradients. */
static inline void amp__step_delays(struct amp__optimizer *optimizer) {
    if (optimizer->state != AMP__STEP_REOPENED) amp__step_goes(optimizer, AMP__STEP_REOPENED);
}
/* zero_grad: what was delayed is gone with the gradients, but for an open bracket's. */
static inline void amp__step_clears(struct amp__optimizer *optimizer) {
    if (optimizer->state == AMP__STEP_DELAYED) amp__step_goes(optimizer, AMP__STEP_DECIDED);
}
/* The gradients carry no scale of an earlier bracket any more. */
static inline void amp__step_drops_delay(struct amp__optimizer *optimizer) {
    if (optimizer->state == AMP__STEP_REOPENED) amp__step_goes(optimizer, AMP__STEP_IN_BRACKET);
    else if (optimizer->state == AMP__STEP_DELAYED) amp__step_goes(optimizer, AMP__STEP_DECIDED);
}

#endif
