/* SPDX-License-Identifier: Apache-2.0 */
/* Access rights of an address. The kernel reports them, so the memory is never touched. */
#ifndef AMP_MAPS_H
#define AMP_MAPS_H

#include "common/common.h"

enum amp__access {
    AMP__ACCESS_UNKNOWN, /* /proc is not there: take it on trust */
    AMP__ACCESS_NONE,    /* not mapped, or not readable */
    AMP__ACCESS_READ,
    AMP__ACCESS_WRITE
};

/* The mapping that an answer came from. Zeroed: none yet. Reuse it while the process's mappings are not expected to
 * change: reading them takes as long as a process has mappings, and tables lie close together. */
struct amp__mapping {
    uintptr_t from, to;
    enum amp__access access;
    bool anonymous; /* private, and no file's */
};

enum amp__access amp__access_of(const void *address, struct amp__mapping *known);

#endif
