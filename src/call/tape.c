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
    if (context->tape.n + context->tape.n_reserved == context->tape.capacity) {
        const size_t capacity = 2 * context->tape.capacity + 16;
        void *grown = amp__grow(context->tape.list, context->tape.capacity, capacity, sizeof *context->tape.list);
        if (grown) {
            context->tape.list = grown;
            context->tape.capacity = capacity;
        } else {
            status = amp__fail_memory();
        }
    }
    context->tape.n_reserved += status == AMP_OK;
    pthread_mutex_unlock(&context->lock);
    return status;
}

void amp__tape_unreserve(amp_context *context, size_t n) {
    pthread_mutex_lock(&context->lock);
    context->tape.n_reserved -= n;
    pthread_mutex_unlock(&context->lock);
}

enum { FIRST_GROWTH_WARNING = 16384 };

void amp__tape_add(amp_context *context, const amp_host *host, void *handle, uint64_t bytes) {
    bool warn = false;
    pthread_mutex_lock(&context->lock);
    context->tape.n_reserved--;
    context->tape.list[context->tape.n++] = (struct amp__taped){ host, handle, context->progress.n_steps, bytes };
    if (!context->tape.warning) context->tape.warning = FIRST_GROWTH_WARNING;
    if (context->tape.n >= context->tape.warning) {
        warn = true;
        context->tape.warning *= 2;
    }
    const size_t n = context->tape.n;
    pthread_mutex_unlock(&context->lock);
    if (warn)
        amp__find(context, AMP__TAPE_GROWS, "", "%zu casts wait for the end of a tape", n);
}

/* The step that every optimizer has passed: casts made before it belong to tapes that are over. */
static uint64_t oldest_step(const amp_context *context) {
    uint64_t oldest = UINT64_MAX;
    const struct amp__optimizers *optimizers = &context->optimizers;
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].decision.last_step < oldest) oldest = optimizers->list[i].decision.last_step;
    return optimizers->n ? oldest : 0;
}

/* Once a release, not once a batch. */
static void close_gap(amp_context *context) {
    const size_t gone = context->tape.gone;
    context->tape.n -= gone;
    if (gone) memmove(context->tape.list, context->tape.list + gone, context->tape.n * sizeof *context->tape.list);
    context->tape.gone = 0;
}

/* Takes a batch out under the lock and releases it outside, since `release` is the host's. */
void amp__tape_release(amp_context *context, bool everything) {
    amp__cache_drop(&context->cache, true); /* recorded entries may borrow those that are released now */
    const uint64_t passed = oldest_step(context);
    struct amp__taped batch[32];
    size_t n;
    do {
        n = 0;
        pthread_mutex_lock(&context->lock);
        while (n < AMP_COUNT(batch) && context->tape.gone < context->tape.n &&
               (everything || context->tape.list[context->tape.gone].made < passed))
            batch[n++] = context->tape.list[context->tape.gone++];
        if (n < AMP_COUNT(batch)) close_gap(context); /* the last batch */
        pthread_mutex_unlock(&context->lock);
        for (size_t i = 0; i < n; i++) {
            amp__ledger_take(&context->cache.ledger, batch[i].bytes);
            amp__host_release(batch[i].host, batch[i].handle);
        }
    } while (n == AMP_COUNT(batch));
}
