/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's pool of threads (amp_set_num_threads). It starts a thread when a call first has use for it, and none
 * before. A forked child finds the pool empty, and fills it anew at its own first need.
 */
#ifndef AMP_KERNELS_THREADS_H
#define AMP_KERNELS_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* The largest number of threads, far above the number that the memory of one machine can feed. */
#define AMP__THREADS_MOST 256

/* So many threads may work on one call: amp_get_num_threads. An atomic load. */
int32_t amp__threads(void);

/*
 * Runs work(job) on the calling thread and meanwhile on up to `threads` - 1 of the pool's; returns when all have
 * returned. How many come is not promised: it may be none, as where another thread has the pool (the caller may be one
 * of the pool itself), or where no thread can be started. So the job is something from which each takes a piece until
 * there is no more. Each of the pool's begins in the default floating-point environment.
 */
void amp__threads_run(int32_t threads, void (*work)(void *job), void *job);

/* AMP_NUM_THREADS's value: a number from 0 to 2^31 - 1. False: it is none, NULL and "" among it, and *n is 1. */
bool amp__threads_read(const char *text, int32_t *n);

#endif
