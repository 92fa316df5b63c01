/* SPDX-License-Identifier: Apache-2.0 */
/* Casts recorded on a tape that does not retain its inputs: kept until the tape is over. */
#include "call/tape.h"
#include "call/cache.h"
#include "context/context.h"
#include "context/optimizer.h"
#include "context/findings.h"

#include <string.h>

amp_status amp__tape_reserve(amp_context *context) {
    amp_status status = AMP_OK;
    pthread_mutex_lock(&context->lock);
    if (context->n_taped + context->n_reserved == context->taped_capacity) {
        const size_t capacity = 2 * context->taped_capacity + 16;
        void *grown = amp__grow(context->taped, context->taped_capacity, capacity, sizeof *context->taped);
        if (grown) {
            context->taped = grown;
            context->taped_capacity = capacity;
        } else {
            status = amp__fail_memory();
        }
    }
    context->n_reserved += status == AMP_OK;
    pthread_mutex_unlock(&context->lock);
    return status;
}

void amp__tape_unreserve(amp_context *context, size_t n) {
    pthread_mutex_lock(&context->lock);
    context->n_reserved -= n;
    pthread_mutex_unlock(&context->lock);
}

enum { FIRST_GROWTH_WARNING = 16384 };

void amp__tape_add(amp_context *context, const amp_host *host, void *handle, uint64_t bytes) {
    bool warn = false;
    pthread_mutex_lock(&context->lock);
    context->n_reserved--;
    context->taped[context->n_taped++] = (struct amp__taped){ host, handle, context->n_steps, bytes };
    if (!context->taped_warning) context->taped_warning = FIRST_GROWTH_WARNING;
    if (context->n_taped >= context->taped_warning) {
        warn = true;
        context->taped_warning *= 2;
    }
    const size_t n = context->n_taped;
    pthread_mutex_unlock(&context->lock);
    if (warn)
        amp__find(context, AMP__TAPE_GROWS, "", "%zu casts wait for the end of a tape", n);
}

/* The step that every optimizer has passed: casts made before it belong to tapes that are over. */
static uint64_t oldest_step(const amp_context *context) {
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < context->n_optimizers; i++)
        if (context->optimizers[i].last_step < oldest) oldest = context->optimizers[i].last_step;
    return context->n_optimizers ? oldest : 0;
}

/* Once a release, not once a batch. */
static void close_gap(amp_context *context) {
    const size_t gone = context->taped_gone;
    context->n_taped -= gone;
    if (gone) memmove(context->taped, context->taped + gone, context->n_taped * sizeof *context->taped);
    context->taped_gone = 0;
}

/* Takes a batch out under the lock and releases it outside, since `release` is the host's. */
void amp__tape_release(amp_context *context, bool everything) {
    amp__cache_drop(&context->cache, true); /* recorded entries may borrow what goes now */
    const uint64_t passed = oldest_step(context);
    struct amp__taped batch[32];
    size_t n;
    do {
        n = 0;
        pthread_mutex_lock(&context->lock);
        while (n < AMP_COUNT(batch) && context->taped_gone < context->n_taped &&
               (everything || context->taped[context->taped_gone].made < passed))
            batch[n++] = context->taped[context->taped_gone++];
        if (n < AMP_COUNT(batch)) close_gap(context); /* the last batch */
        pthread_mutex_unlock(&context->lock);
        for (size_t i = 0; i < n; i++) {
            amp__ledger_take(&context->cache.ledger, batch[i].bytes);
            amp__host_release(batch[i].host, batch[i].handle);
        }
    } while (n == AMP_COUNT(batch));
}
