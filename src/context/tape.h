/* SPDX-License-Identifier: Apache-2.0 */
/* Temporaries that the host's tape may still read; call/tape.c ends them. Under the context's lock. */
#ifndef AMP_CONTEXT_TAPE_H
#define AMP_CONTEXT_TAPE_H

#include "common/common.h"

struct amp__tape {
    struct amp__taped *list;
    size_t n, capacity;
    size_t n_reserved; /* entries promised to calls that run */
    size_t warning;    /* length at which AMP-M69 comes next */
    size_t gone;       /* entries at the front that are being released */
};

#endif
