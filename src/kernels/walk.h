/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a list call: the list is walked once, whole on the calling thread, or in parts that threads take in turn.
 * Cuts are between entries, and within them at multiples of AMP__SUM_BLOCK elements, so that sums by blocks, with the
 * blocks in order, have the same bits for any number of threads.
 */
#ifndef AMP_KERNELS_WALK_H
#define AMP_KERNELS_WALK_H

#include "amp_kernels.h"

/* Some entries, whole; or a stretch of one. */
struct amp__part {
    size_t first, n;   /* entries */
    size_t begin, end; /* n == 1: its elements */
    size_t block;      /* blocks of all entries before it: an entry has its own, so many as its elements begin */
};

/* Called in the caller's floating-point environment, which is the default one wherever that matters, or in a pool's
 * thread in the default one. */
typedef void amp__part_fn(void *job, const struct amp__part *part);

/* Fewer elements are the work of one thread. */
#define AMP__WALK_CUT (4 * UINT64_C(65536))

/* How many threads are worth their waking for so many elements. One if amp_set_num_threads says so. */
int32_t amp__walk_threads(uint64_t elements);

/* Calls work(job, part) for parts that are the list together, each once, on amp__walk_threads(elements) threads at
 * most; elements: the list's. On one thread it is one call for all. */
void amp__walk(const amp_span *list, size_t n, uint64_t elements, amp__part_fn *work, void *job);

/* Calls work(job, i) for i from 0 to n - 1, each once, on up to `threads` threads. */
void amp__walk_indices(size_t n, int32_t threads, void (*work)(void *job, size_t i), void *job);

#endif
