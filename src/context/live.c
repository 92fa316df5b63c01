/* SPDX-License-Identifier: Apache-2.0 */
/* The live contexts. Using one after shutdown is an error instead of a read of freed memory. */
#include "context/context.h"
#include "context/live.h"
#include "system/system.h"

static struct {
    pthread_mutex_t mutex;
    struct amp__forkable forkable;
    amp_context *first;
    uintptr_t serial;
} live = { .mutex = PTHREAD_MUTEX_INITIALIZER };

amp_status amp__live_add(amp_context *context) {
    AMP_TRY(amp__fork_add(&live.forkable, &live.mutex));
    pthread_mutex_lock(&live.mutex);
    context->next_live = live.first;
    live.first = context;
    pthread_mutex_unlock(&live.mutex);
    return AMP_OK;
}

void amp__live_remove(amp_context *context) {
    pthread_mutex_lock(&live.mutex);
    for (amp_context **link = &live.first; *link; link = &(*link)->next_live)
        if (*link == context) {
            *link = context->next_live;
            break;
        }
    pthread_mutex_unlock(&live.mutex);
}

bool amp__context_is_live(const amp_context *context) {
    pthread_mutex_lock(&live.mutex);
    const amp_context *found = live.first;
    while (found && found != context) found = found->next_live;
    pthread_mutex_unlock(&live.mutex);
    return found != NULL;
}

bool amp__live_any(bool (*is)(const amp_context *live, const amp_context *context), const amp_context *context) {
    pthread_mutex_lock(&live.mutex);
    const amp_context *other = live.first;
    while (other && (other == context || !is(other, context))) other = other->next_live;
    pthread_mutex_unlock(&live.mutex);
    return other != NULL;
}

uintptr_t amp__new_serial(void) {
    pthread_mutex_lock(&live.mutex);
    const uintptr_t serial = ++live.serial;
    pthread_mutex_unlock(&live.mutex);
    return serial;
}
