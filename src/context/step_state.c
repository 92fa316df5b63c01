/* SPDX-License-Identifier: Apache-2.0 */
#include "context/step_state.h"

enum {
    IDLE = 1 << AMP__STEP_IDLE, IN_BRACKET = 1 << AMP__STEP_IN_BRACKET, DELAYED = 1 << AMP__STEP_DELAYED,
    REOPENED = 1 << AMP__STEP_REOPENED, DECIDED = 1 << AMP__STEP_DECIDED, RUNNING = 1 << AMP__STEP_RUNNING,
};

static const unsigned char ways[] = {
    [AMP__STEP_IDLE] = IN_BRACKET          /* begin */
                       | RUNNING,          /* a step that no bracket came before */
    [AMP__STEP_IN_BRACKET] = DECIDED       /* end, or cancel */
                             | REOPENED,   /* an end that delays */
    [AMP__STEP_DELAYED] = REOPENED         /* begin */
                          | DECIDED,       /* the host cleared the gradients */
    [AMP__STEP_REOPENED] = DELAYED         /* an end that delays again; cancel: as before begin */
                           | IN_BRACKET,   /* an end unscaled the gradients, or they were cancelled altogether */
    [AMP__STEP_DECIDED] = IN_BRACKET       /* begin */
                          | RUNNING        /* step */
                          | IDLE,          /* each step slot was called, or the next bracket begins */
    [AMP__STEP_RUNNING] = DECIDED,         /* the step returned */
};
_Static_assert(sizeof ways == AMP__STEP_STATES, "each state has its row");

bool amp__step_may_go(enum amp__step_state from, enum amp__step_state to) { return ways[from] >> to & 1; }
