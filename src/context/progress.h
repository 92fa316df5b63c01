/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a context with the progress of its training. */
#ifndef AMP_CONTEXT_PROGRESS_H
#define AMP_CONTEXT_PROGRESS_H

#include "common/common.h"

#include <stdatomic.h>

enum { AMP__LOOKS = 2 }; /* brackets in which slips of the wiring are looked for (bracket/wiring.h) */

/* Bytes that amp_pack was given and made. */
struct amp__packed {
    _Atomic(uint64_t) from, to;           /* since the last bracket */
    _Atomic(uint64_t) last_from, last_to; /* of the iteration before */
};

struct amp__progress {
    _Atomic(uint32_t) open;        /* brackets that are open */
    _Atomic(uint32_t) backward;    /* open brackets with a loss: backward is running */
    _Atomic(uint32_t) looks;       /* brackets with a step after them; slips are looked for below AMP__LOOKS */
    _Atomic(uint64_t) seeds_shown; /* seeds times a scale that ops got */
    _Atomic(bool) raw_calls;       /* a call of an op with raw buffers so far */
    _Atomic(bool) observing;       /* observed iteration: no call takes the short way */
    float seed_scale;              /* factor of ops' seeds: the scale inside a bracket, 1 outside */
    bool verifying;                /* amp_verify_step under way: no step is allowed */
    bool ops_checked;              /* the check for ops without a call, done once */
    bool scaled_by_hand;           /* a call of amp_scale or amp_unscale so far */
    uint64_t n_steps;              /* steps and skips of all optimizers */
    struct amp__packed packed;
    _Atomic(uint64_t) moments, moments_8bit; /* of the host's own optimizers, as it reports */
};

#endif
