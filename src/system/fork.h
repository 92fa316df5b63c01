/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes that are free in a forked child, with consistent data: fork waits until no other thread holds one. All
 * mutexes of libamp are listed, since in a child no thread can unlock a mutex held by a thread of its parent. They
 * guard short sections without code of the host, and no thread holds two.
 */
#ifndef AMP_FORK_H
#define AMP_FORK_H

#include "common/common.h"

#include <pthread.h>

/* Zeroed: not there. In the same block as its mutex. */
struct amp__forkable {
    pthread_mutex_t *mutex;
    void (*in_child)(void); /* called in each child, with all mutexes locked (NULL: nothing to do. Set before add) */
    struct amp__forkable *next, **link;
};

/* From here on until remove. Twice is once. AMP_ERR_NO_MEMORY. */
amp_status amp__fork_add(struct amp__forkable *forkable, pthread_mutex_t *mutex);
/* No effect if it is not in the list. */
void amp__fork_remove(struct amp__forkable *forkable);
/* Returns true if this process was forked since the first add. Data under locks of other code may then be half changed:
 * the lists of the loader, if a thread of the parent was in dlopen. */
bool amp__fork_is_child(void);

#endif
