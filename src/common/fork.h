/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes that a forked child finds free, and what they guard whole: fork waits until no other thread holds one. For
 * all of libamp's, since a child has nobody to unlock what a thread of its parent held. They guard short stretches
 * without the host's code, and nobody holds two.
 */
#ifndef AMP_FORK_H
#define AMP_FORK_H

#include "common/common.h"

#include <pthread.h>

/* Zeroed: not there. In the same block as its mutex. */
struct amp__forkable {
    pthread_mutex_t *mutex;
    void (*in_child)(void); /* called in each child, with all mutexes locked; NULL: nothing to do. Set before add */
    struct amp__forkable *next, **link;
};

/* From here on until remove. Twice is once. AMP_ERR_NO_MEMORY. */
amp_status amp__fork_add(struct amp__forkable *forkable, pthread_mutex_t *mutex);
/* No-op for what is not there. */
void amp__fork_remove(struct amp__forkable *forkable);
/* Was this process forked since the first add? Then what the locks of others guarded may lie half done: the loader's
 * lists, if a thread of the parent was in dlopen. */
bool amp__fork_is_child(void);

#endif
