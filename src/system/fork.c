/* SPDX-License-Identifier: Apache-2.0 */
#include "system/system.h"

/* The mutex of the list is locked first and unlocked last, so that list and entries do not change in between. */
static struct {
    pthread_once_t once; /* which a child repeats, if it was interrupted in the parent */
    bool handled, child;
    pthread_mutex_t mutex;
    struct amp__forkable *first;
} all = { PTHREAD_ONCE_INIT, false, false, PTHREAD_MUTEX_INITIALIZER, NULL };

static void before(void) {
    pthread_mutex_lock(&all.mutex);
    for (struct amp__forkable *f = all.first; f; f = f->next) pthread_mutex_lock(f->mutex);
}

static void after(void) {
    for (struct amp__forkable *f = all.first; f; f = f->next) pthread_mutex_unlock(f->mutex);
    pthread_mutex_unlock(&all.mutex);
}

static void in_child(void) {
    all.child = true;
    for (struct amp__forkable *f = all.first; f; f = f->next)
        if (f->in_child) f->in_child();
    after();
}

static void handle_forks(void) { all.handled = pthread_atfork(before, after, in_child) == 0; }

amp_status amp__fork_add(struct amp__forkable *forkable, pthread_mutex_t *mutex) {
    pthread_once(&all.once, handle_forks);
    if (!all.handled) return amp__fail_memory();
    pthread_mutex_lock(&all.mutex);
    if (!forkable->link) {
        forkable->mutex = mutex;
        forkable->next = all.first;
        forkable->link = &all.first;
        if (all.first) all.first->link = &forkable->next;
        all.first = forkable;
    }
    pthread_mutex_unlock(&all.mutex);
    return AMP_OK;
}

void amp__fork_remove(struct amp__forkable *forkable) {
    pthread_mutex_lock(&all.mutex);
    if (forkable->link) { /* neighbours that are added and removed on other threads write it */
        *forkable->link = forkable->next;
        if (forkable->next) forkable->next->link = forkable->link;
        *forkable = (struct amp__forkable){ NULL, forkable->in_child, NULL, NULL };
    }
    pthread_mutex_unlock(&all.mutex);
}

bool amp__fork_is_child(void) { return all.child; }
