/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_config.verify: gradients of undescribed parameters. An argument of a backward op that is a registered gradient in
 * one call is a gradient in its other calls too: of another parameter, or of an activation, which a later backward
 * reads. One that no op reads before the end of the bracket, in two brackets, belongs to a parameter.
 */
#include "common/map.h"
#include "context/addresses.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "raw/raw.h"

#include <string.h>

/* A gradient in this bracket that is not registered. */
struct stray {
    struct stray *next;
    uintptr_t begin, end;
    uint64_t key;
    const struct amp__op *op;
    const char *argument;
    bool read; /* by another op, or by another argument */
};

/* By op and argument. Under the context's lock. */
struct amp__strays {
    struct amp__map gradients; /* arguments that were registered gradients */
    struct amp__map suspects;  /* arguments that had an unread stray, with the number of the bracket */
    struct stray *first;
    uintptr_t brackets;
};

/* Of fields that share a name, the nth. */
static uint64_t key_of(const struct amp__probed *call, size_t i) {
    const struct amp__raw_buffer *buffers = call->buffers;
    const char *name = buffers[i].name ? buffers[i].name : "";
    uint32_t nth = 0;
    for (size_t j = 0; j < i; j++) nth += buffers[j].name && !strcmp(buffers[j].name, name);
    const uint64_t sum = amp__sum64(nth, call->op->name, strlen(call->op->name));
    return amp__sum64(sum, name, strlen(name)) | 1;
}

static void mark_read(struct amp__strays *strays, uintptr_t begin, uintptr_t end, uint64_t key) {
    for (struct stray *stray = strays->first; stray; stray = stray->next)
        stray->read |= stray->begin < end && begin < stray->end && stray->key != key;
}

static void add(struct amp__strays *strays, struct stray seen) {
    for (struct stray *stray = strays->first; stray; stray = stray->next)
        if (stray->begin == seen.begin && stray->key == seen.key) return;
    struct stray *fresh = amp__alloc(1, sizeof *fresh);
    if (!fresh) return; /* one less is looked at */
    seen.next = strays->first;
    *fresh = seen;
    strays->first = fresh;
}

static void note(amp_context *context, const struct amp__probed *call, size_t i) {
    struct amp__addresses *addresses = amp__addresses_of(context);
    struct amp__strays *strays = addresses->strays;
    const struct amp__raw_buffer *buffer = &call->buffers[i];
    struct amp__op *op = call->op;
    const uintptr_t begin = (uintptr_t)buffer->host, end = begin + (uintptr_t)buffer->extents.span * sizeof(float);
    const uint64_t key = key_of(call, i);
    uint64_t offset;
    if (!(buffer->flags & AMP__WRITE)) mark_read(strays, begin, end, key);
    if (!op->is_backward || !(buffer->flags & (AMP__WRITE | AMP__READ_WRITE))) return;
    if (amp__range_find(addresses->grads, addresses->n_grads, buffer->host, &offset)) {
        (void)amp__map_put(&strays->gradients, key, op);
        return;
    }
    if (amp__param_at(addresses, buffer->host, &offset)) return;
    add(strays, (struct stray){ .begin = begin, .end = end, .key = key, .op = op,
                                .argument = buffer->name ? buffer->name : "a buffer" });
}

void amp__strays_note(const struct amp__probed *call) {
    amp_context *context = call->op->context;
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__addresses *addresses = amp__addresses_of(context);
    if (!call->n_buffers || !atomic_load(&amp__progress_of(context)->open)) return;
    if (!amp__scales(&amp__policy_of(context)->properties.scaler)) return;
    pthread_mutex_lock(lock);
    if (!addresses->strays) addresses->strays = amp__alloc(1, sizeof *addresses->strays);
    for (size_t i = 0; i < call->n_buffers && addresses->strays; i++)
        if (!call->buffers[i].scratch) note(context, call, i);
    pthread_mutex_unlock(lock);
}

/* In two brackets. */
static bool is_certain(struct amp__strays *strays, const struct stray *stray) {
    if (stray->read || !amp__map_get(&strays->gradients, stray->key)) return false;
    const uintptr_t before = (uintptr_t)amp__map_get(&strays->suspects, stray->key);
    if (!before) (void)amp__map_put(&strays->suspects, stray->key, (void *)strays->brackets);
    return before && before != strays->brackets;
}

void amp__strays_judge(amp_context *context) {
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__addresses *addresses = amp__addresses_of(context);
    struct stray *first = NULL;
    pthread_mutex_lock(lock);
    if (addresses->strays) {
        addresses->strays->brackets++;
        first = addresses->strays->first;
        addresses->strays->first = NULL;
    }
    pthread_mutex_unlock(lock);
    for (struct stray *stray = first, *next; stray; stray = next) {
        next = stray->next;
        pthread_mutex_lock(lock);
        const bool certain = is_certain(addresses->strays, stray);
        pthread_mutex_unlock(lock);
        if (certain)
            amp__find(context, AMP__UNDESCRIBED, stray->op->name, "op %s: %s is a gradient of a parameter that no "
                      "model and no optimizer describes", stray->op->name, stray->argument);
        amp__free(stray);
    }
}

void amp__strays_free(amp_context *context) {
    struct amp__addresses *addresses = amp__addresses_of(context);
    if (!addresses->strays) return;
    for (struct stray *stray = addresses->strays->first, *next; stray; stray = next) {
        next = stray->next;
        amp__free(stray);
    }
    amp__map_free(&addresses->strays->gradients);
    amp__map_free(&addresses->strays->suspects);
    amp__free(addresses->strays);
    addresses->strays = NULL;
}
