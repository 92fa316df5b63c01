/* SPDX-License-Identifier: Apache-2.0 */
/* Where an optimizer is between two of its steps. */
#ifndef AMP_STEP_STATE_H
#define AMP_STEP_STATE_H

#include <stdbool.h>

enum amp__step_state {
    AMP__STEP_IDLE,       /* no bracket has ended since the last step */
    AMP__STEP_IN_BRACKET, /* a bracket is open */
    AMP__STEP_DELAYED,    /* no bracket is open, and its gradients carry the scale of one with AMP_DELAY_UNSCALE */
    AMP__STEP_REOPENED,   /* a bracket is open over such gradients */
    AMP__STEP_DECIDED,    /* the next call of each step slot obeys the brackets' decision */
    AMP__STEP_RUNNING,    /* a step runs */
    AMP__STEP_STATES
};

/* The table of transitions. */
bool amp__step_may_go(enum amp__step_state from, enum amp__step_state to);

#endif
