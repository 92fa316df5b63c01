/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of amp_verify_step. */
#ifndef AMP_VERIFY_H
#define AMP_VERIFY_H

#include "amp_train.h"
#include "bracket/bracket.h"
#include "context/optimizer.h"

enum amp__pass {
    AMP__PLAIN,
    AMP__ROUNDED,   /* PLAIN with parameters rounded to the 16-bit type: the effect of rounding alone */
    AMP__DISTURBED, /* PLAIN with halved parameters: activations that it leaves in the host's buffers are wrong ones */
    AMP__WIRED,
    AMP__AGAIN, /* PLAIN */
    AMP__PASSES
};

/* A parameter of the context. */
struct amp__subject {
    struct amp__param *param;
    void *before;                 /* its elements */
    struct amp__exposed kept;     /* while it is shown in FP32 */
    float *grads[AMP__PASSES];    /* of an optimizer's parameter: its gradient after each */
    bool has_grad[AMP__PASSES];
};

/* The policy for an op, saved while the op runs without it. */
struct amp__asleep {
    struct amp__op *op;
    amp_class op_class;
    uint8_t raw_mode;
    bool is_backward, tabulated;
    const struct amp__probe *glance, *verify;
    struct amp__op_functions functions;
};

/* The data that brackets change. */
struct amp__kept_bracket {
    struct amp__scaler scaler;
    amp_record record;
    float found_inf;
    uint64_t changes;
    bool told_of_skips;
};

struct amp__verification {
    amp_context *context;
    amp_run run;
    void *self;
    struct amp__subject *subjects; /* the parameters */
    size_t n_subjects;
    struct amp__asleep *ops;
    size_t n_ops;                      /* that are asleep */
    struct amp__optimizer *optimizers; /* as they were */
    size_t n_optimizers;
    struct amp__kept_bracket *brackets;
    struct amp__properties properties;
    uint32_t looks;
    bool verify, ops_checked;
    float scale; /* of the wired pass */
    double losses[AMP__PASSES];
};

/* ---- verify_compare.c ---- */

/* Does the wired pass differ from the plain one by more than it may? An event if not, else findings and an error. But
 * first: does the plain one repeat itself? */
amp_status amp__verify_judge(const struct amp__verification *v);

#endif
