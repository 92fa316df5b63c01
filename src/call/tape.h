/* SPDX-License-Identifier: Apache-2.0 */
/* Casts on a tape: temporaries that outlive their call. */
#ifndef AMP_TAPE_H
#define AMP_TAPE_H

#include "host/host.h"

/* A cast that a tape which does not retain its inputs still needs. */
struct amp__taped {
    const amp_host *host;
    void *handle;
    uint64_t made; /* amp__progress.n_steps at the time */
    uint64_t bytes; /* in the ledger */
};


/* Room for one more, so that the amp__tape_add that follows cannot fail; given back if none follows. */
amp_status amp__tape_reserve(amp_context *context);
void amp__tape_unreserve(amp_context *context, size_t n);
void amp__tape_add(amp_context *context, const amp_host *host, void *handle, uint64_t bytes);
/* Releases casts that no tape needs any more: all, or those before the last step of every optimizer. */
void amp__tape_release(amp_context *context, bool everything);
static inline bool amp__tape_retains(const amp_host *host) {
    return (host->flags & AMP_HOST_TAPE_RETAINS_INPUTS) != 0;
}

#endif
