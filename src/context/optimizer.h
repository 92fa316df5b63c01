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

/* The slots of its steps and zero_grads; a decision holds for one call of each of its step slots. */
struct amp__slots {
    struct amp__op *steps, *zero_grads;
    size_t n_steps, n_zero_grads;
    size_t called;    /* step slots, since the decision was new */
    size_t expected;  /* calls of step slots that are a whole step */
    uint32_t running; /* steps at present, one inside of another included */
};

/* A step between amp_step_begin and amp_step_end. */
struct amp__step_by_hand {
    bool begun;
    const struct amp__thread *thread; /* that began it: the scope is its */
    amp_action action; /* the answer of amp_step_begin */
    float found_inf;   /* the same as a number: 1 for AMP_SKIP */
    amp_scope scope;
};

/* The work that brackets left to later ones. */
struct amp__delay {
    uint32_t loss; /* loss with the scale of its gradients, while delayed */
    float scale;
    uint32_t unchecked; /* losses of brackets with a delayed overflow check */
    bool failed;        /* a delayed bracket ended with an error unknown to other ranks */
};

enum amp__skip {
    AMP__SKIP_NO,
    AMP__SKIP_YES,
    AMP__SKIP_OLD, /* decided before the last bracket began */
};

/* The brackets' decisions, and the steps that obeyed them. */
struct amp__step_decision {
    uint8_t skip;       /* enum amp__skip, by the brackets since the last step */
    bool told_of_old;   /* an old skip was reported */
    bool bracketed;     /* a bracket has named the optimizer */
    uint32_t loss;      /* of its last bracket */
    uint64_t made;      /* by brackets */
    uint64_t taken;     /* by steps */
    uint64_t last_step; /* amp__progress.n_steps when it last stepped or skipped */
};

/* Its gradients as bracket/wiring.c and bracket/stayed.c found them. */
struct amp__scans {
    uint8_t brackets;    /* in which they were scanned */
    bool cleared_inside; /* zero_grad was called in the open bracket */
    size_t missing;      /* parameters without a gradient at the last scan */
    uint8_t steps;       /* after which gradients that stayed were searched */
    bool step_noted;     /* their sums were noted after the last step */
    struct amp__samples *samples; /* bracket/sampled.c (NULL: none) */
    const struct amp__param *stayed; /* a parameter with a gradient that survived a step (NULL: none known) */
};

enum amp__noted {
    AMP__NOTED_NOTHING,
    AMP__NOTED_EARLIER,  /* before the last bracket began */
    AMP__NOTED_AT_BEGIN, /* by the last bracket to begin */
};

/* Steps that go past the wired slots (bracket/unseen.c). */
struct amp__unseen {
    bool told;                /* there is no more to report */
    uint8_t noted;            /* enum amp__noted: when sum and steps were */
    uint64_t sum;             /* of its parameters */
    uint64_t steps;           /* amp__progress.n_steps at that time */
    uint64_t brackets;        /* begun while no step was seen */
    uint32_t changes;         /* of the sum, from one bracket to the next */
    uint32_t changes_inside;  /* of the sum, between a bracket's begin and its end */
};

struct amp__optimizer {
    amp_optimizer *user;
    amp_context *context;
    amp_host host;
    struct amp__param **params;
    size_t n_params, params_capacity; /* 0: n_params */
    struct amp__optim *optim;         /* libamp's own (NULL: the host steps) */

    bool sharded;         /* AMP_OPTIMIZER_SHARDED */
    bool holds;           /* AMP_OPTIMIZER_HOLDS_MASTERS */
    bool grads_stay;      /* AMP_OPTIMIZER_GRADS_STAY */
    bool skips_on_device; /* its step reads the flag on the device: the host need not know the decision */

    enum amp__step_state state;
    struct amp__slots slots;
    struct amp__step_by_hand by_hand;
    struct amp__delay delay;
    struct amp__step_decision decision;
    struct amp__scans scans;
    struct amp__unseen unseen;
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
/* Skips accumulate until a step obeys them. */
static inline void amp__step_decides(struct amp__optimizer *optimizer, bool skip) {
    if (!skip || optimizer->decision.skip) return;
    assert(optimizer->state != AMP__STEP_IDLE && optimizer->state != AMP__STEP_RUNNING);
    optimizer->decision.skip = AMP__SKIP_YES;
}
/* An end that leaves the scale in the gradients. */
static inline void amp__step_delays(struct amp__optimizer *optimizer) {
    if (optimizer->state != AMP__STEP_REOPENED) amp__step_goes(optimizer, AMP__STEP_REOPENED);
}
/* zero_grad: delayed gradients are gone, except for those of an open bracket. */
static inline void amp__step_clears(struct amp__optimizer *optimizer) {
    if (optimizer->state == AMP__STEP_DELAYED) amp__step_goes(optimizer, AMP__STEP_DECIDED);
}
/* The gradients carry no scale of an earlier bracket any more. */
static inline void amp__step_drops_delay(struct amp__optimizer *optimizer) {
    if (optimizer->state == AMP__STEP_REOPENED) amp__step_goes(optimizer, AMP__STEP_IN_BRACKET);
    else if (optimizer->state == AMP__STEP_DELAYED) amp__step_goes(optimizer, AMP__STEP_DECIDED);
}

/* The optimizers of a context. */
struct amp__optimizers {
    struct amp__optimizer *list;
    size_t n;
};

/* Its number in messages: from 0, in the order of amp_initialize. */
size_t amp__optimizer_number(const struct amp__optimizer *optimizer);

#endif
