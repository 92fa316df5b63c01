/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/walk.h"
#include "kernels/kernels.h"
#include "kernels/threads.h"

#include <pthread.h>
#include <stdatomic.h>

int32_t amp__walk_threads(uint64_t elements) {
    if (elements < AMP__WALK_CUT) return 1;
    const int32_t threads = amp__threads();
    /* a thread wakes in some microseconds: so many floats take longer */
    const uint64_t worth = elements / (AMP__WALK_CUT / 2);
    return worth < (uint64_t)threads ? (int32_t)worth : threads;
}

/* ---- parts of a list ---- */

struct walk {
    const amp_span *list;
    size_t n;
    amp__part_fn *work;
    void *job;
    size_t share; /* elements of a part: whole blocks */
    pthread_mutex_t mutex;
    size_t entry, at, block; /* where the next part begins */
};

static size_t blocks_of(size_t elements) { return (elements + AMP__SUM_BLOCK - 1) / AMP__SUM_BLOCK; }

/* As many whole entries as make a share; each counts as some elements more than it has, so that no part is endless. */
static void take_entries(struct walk *w, struct amp__part *part) {
    enum { ENTRY = 64 };
    size_t weight = 0;
    for (;;) {
        const size_t size = (size_t)w->list[w->entry].size;
        if (part->n && (size > w->share || weight + size + ENTRY > w->share)) return;
        weight += size + ENTRY;
        w->block += blocks_of(size);
        part->n++;
        if (++w->entry == w->n) return;
    }
}

static bool take_part(struct walk *w, struct amp__part *part) {
    pthread_mutex_lock(&w->mutex);
    const bool more = w->entry < w->n;
    if (more) {
        const size_t size = (size_t)w->list[w->entry].size;
        *part = (struct amp__part){ w->entry, 0, w->at, size, w->block };
        if (size - w->at > w->share) {
            part->n = 1;
            part->end = w->at += w->share;
            w->block += w->share / AMP__SUM_BLOCK;
        } else if (w->at) {
            part->n = 1;
            w->block += blocks_of(size - w->at);
            w->entry++, w->at = 0;
        } else {
            take_entries(w, part);
        }
    }
    pthread_mutex_unlock(&w->mutex);
    return more;
}

static void work_on_parts(void *walk) {
    struct walk *w = walk;
    struct amp__part part;
    while (take_part(w, &part)) w->work(w->job, &part);
}

static size_t share_of(uint64_t elements, int32_t threads) {
    /* a thread's parts: the last to come in ends an eighth after the others at most */
    enum { PARTS = 8, MOST_BLOCKS = 16 };
    const uint64_t blocks = elements / (uint64_t)threads / PARTS / AMP__SUM_BLOCK;
    return AMP__SUM_BLOCK * (blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : (size_t)blocks);
}

void amp__walk(const amp_span *list, size_t n, uint64_t elements, amp__part_fn *work, void *job) {
    const int32_t threads = amp__walk_threads(elements);
    if (threads == 1) {
        work(job, &(struct amp__part){ 0, n, 0, n == 1 ? (size_t)list->size : 0, 0 });
        return;
    }
    struct walk walk = { list, n, work, job, share_of(elements, threads), PTHREAD_MUTEX_INITIALIZER, 0, 0, 0 };
    amp__threads_run(threads, work_on_parts, &walk);
    pthread_mutex_destroy(&walk.mutex);
}

/* ---- indices ---- */

struct indices {
    size_t n;
    _Atomic size_t next;
    void (*work)(void *job, size_t i);
    void *job;
};

static void work_on_indices(void *indices) {
    struct indices *x = indices;
    for (size_t i; (i = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed)) < x->n;) x->work(x->job, i);
}

void amp__walk_indices(size_t n, int32_t threads, void (*work)(void *job, size_t i), void *job) {
    struct indices indices = { n, 0, work, job };
    amp__threads_run(threads, work_on_indices, &indices);
}
