/* SPDX-License-Identifier: Apache-2.0 */
/* Where a gradient is on its way through brackets. */
#ifndef AMP_GRAD_STATE_H
#define AMP_GRAD_STATE_H

#include <stdbool.h>

/* From DELAYED on the gradient carries a scale, or may; from OPEN on a bracket is open for it. */
enum amp__grad_state {
    AMP__GRAD_UNSCALED, /* the host has it as it is */
    AMP__GRAD_LEFT,     /* left scaled to the step of libamp's own optimizer, which unscales it on its way */
    AMP__GRAD_DELAYED,  /* left scaled by brackets with AMP_DELAY_UNSCALE, to a later one */
    AMP__GRAD_OPEN,     /* in an open bracket */
    AMP__GRAD_REOPENED, /* over a gradient that was delayed, to which its backward adds */
    AMP__GRAD_ENDING,   /* the bracket's end has found it, and is at work */
    AMP__GRAD_STATES
};

/* The table of transitions. */
bool amp__grad_may_go(enum amp__grad_state from, enum amp__grad_state to);

#endif
