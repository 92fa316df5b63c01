/* SPDX-License-Identifier: Apache-2.0 */
#include "master/grad_state.h"

enum {
    UNSCALED = 1 << AMP__GRAD_UNSCALED, LEFT = 1 << AMP__GRAD_LEFT, DELAYED = 1 << AMP__GRAD_DELAYED,
    OPEN = 1 << AMP__GRAD_OPEN, REOPENED = 1 << AMP__GRAD_REOPENED, ENDING = 1 << AMP__GRAD_ENDING,
};

static const unsigned char ways[] = {
    [AMP__GRAD_UNSCALED] = OPEN                       /* begin */
                           | LEFT,                    /* the work that was to unscale it was dropped */
    [AMP__GRAD_LEFT] = UNSCALED,                      /* unscaled for another reader, or replaced by the host */
    [AMP__GRAD_DELAYED] = REOPENED                    /* begin */
                          | UNSCALED,                 /* cancelled with all that was delayed, or cleared by the host */
    [AMP__GRAD_OPEN] = ENDING | DELAYED               /* end */
                       | UNSCALED | LEFT,             /* backward made nothing, or cancel: as before begin */
    [AMP__GRAD_REOPENED] = ENDING | DELAYED           /* end; cancel: as before begin */
                           | UNSCALED                 /* backward made nothing; cancelled with all that was delayed */
                           | OPEN,                    /* cleared by the host: nothing is delayed any more */
    [AMP__GRAD_ENDING] = UNSCALED | LEFT              /* end */
                         /* it failed, and is going to be cancelled with all that was delayed */
                         | OPEN,
};
_Static_assert(sizeof ways == AMP__GRAD_STATES, "each state has its row");

bool amp__grad_may_go(enum amp__grad_state from, enum amp__grad_state to) { return ways[from] >> to & 1; }
