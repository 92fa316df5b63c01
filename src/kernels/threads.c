/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool. One call at a time has it, and concurrent calls do their work alone, so that no call waits for another and
 * nothing can deadlock. Its state is under one mutex, which fork waits for.
 */
#include "kernels/threads.h"
#include "amp_kernels.h"
#include "common/common.h"
#include "kernels/fpenv.h"
#include "system/system.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic int32_t wanted; /* 0: not yet set */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t call; /* there are seats, or workers are to end */
    pthread_cond_t idle; /* no worker is running, or the pool is free */
    struct amp__forkable forkable;
    bool forkable_added;
    bool taken;      /* by a call, or while workers are ended */
    int32_t n;       /* workers there are: 0 to n - 1 */
    int32_t most;    /* more could not be started */
    int32_t keep;    /* workers from this number on end */
    int32_t seats;   /* for workers that may still join the call */
    int32_t inside;  /* workers that joined it */
    void (*work)(void *job);
    void *job;
    pthread_t workers[AMP__THREADS_MOST - 1];
} pool = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .call = PTHREAD_COND_INITIALIZER,
    .idle = PTHREAD_COND_INITIALIZER,
    .most = AMP__THREADS_MOST - 1,
    .keep = AMP__THREADS_MOST - 1,
};

/* ---- how many ---- */

bool amp__threads_read(const char *text, int32_t *n) {
    char *end;
    *n = 1;
    if (!text || *text < '0' || *text > '9') return false;
    const unsigned long long number = strtoull(text, &end, 10);
    if (*end || number > INT32_MAX) return false;
    *n = (int32_t)number;
    return true;
}

/* 0: as many as there are processors that the calling thread may run on. */
static int32_t resolve_threads(int32_t n) {
    if (n == 0) n = amp__processors();
    return n < 1 ? 1 : n > AMP__THREADS_MOST ? AMP__THREADS_MOST : n;
}

int32_t amp__threads(void) {
    const int32_t n = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (n) return n;
    int32_t nobody = 0, given;
    (void)amp__threads_read(getenv("AMP_NUM_THREADS"), &given);
    const int32_t first = resolve_threads(given);
    return atomic_compare_exchange_strong(&wanted, &nobody, first) ? first : nobody;
}

AMP_API int32_t amp_get_num_threads(void) { return amp__threads(); }

/* ---- a worker ---- */

/* A worker inherits the environment of the thread that started it, with traps, and one piece of work may change it for
 * the next: both are reset here. */
static void work_once(void (*work)(void *job), void *job) {
    fesetenv(FE_DFL_ENV);
    (void)amp__fpenv_enter(); /* subnormals, unknown to the C library */
    work(job);
}

static void *worker(void *number) {
    const int32_t own = (int32_t)(intptr_t)number;
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        while (own < pool.keep && pool.seats == 0) pthread_cond_wait(&pool.call, &pool.mutex);
        if (own >= pool.keep) break;
        void (*work)(void *) = pool.work;
        void *job = pool.job;
        pool.seats--, pool.inside++;
        pthread_mutex_unlock(&pool.mutex);
        work_once(work, job);
        pthread_mutex_lock(&pool.mutex);
        if (--pool.inside == 0) pthread_cond_broadcast(&pool.idle);
    }
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

/* ---- forks ---- */

/* The workers and whoever had the pool are not here. */
static void in_child(void) {
    pool.taken = false;
    pool.n = pool.seats = pool.inside = 0;
    pool.most = pool.keep = AMP__THREADS_MOST - 1;
    pthread_cond_init(&pool.call, NULL);
    pthread_cond_init(&pool.idle, NULL);
}

/* No pool without a way to detect a forked child. */
static pthread_once_t forkable_once = PTHREAD_ONCE_INIT;
static void add_forkable(void) {
    pool.forkable.in_child = in_child;
    pool.forkable_added = amp__fork_add(&pool.forkable, &pool.mutex) == AMP_OK;
}

/* ---- a call ---- */

static bool take_pool(int32_t workers, void (*work)(void *job), void *job) {
    pthread_once(&forkable_once, add_forkable);
    if (!pool.forkable_added) return false;
    pthread_mutex_lock(&pool.mutex);
    const bool mine = !pool.taken;
    if (mine) {
        while (pool.n < workers && pool.n < pool.most)
            if (amp__thread_start(&pool.workers[pool.n], worker, (void *)(intptr_t)pool.n)) pool.n++;
            else pool.most = pool.n; /* tried again after the next amp_set_num_threads */
        pool.taken = true;
        pool.work = work, pool.job = job;
        pool.seats = workers < pool.n ? workers : pool.n;
        for (int32_t i = 0; i < pool.seats; i++) pthread_cond_signal(&pool.call);
    }
    pthread_mutex_unlock(&pool.mutex);
    return mine;
}

/* Called with the mutex. */
static void give_pool_back(void) {
    pool.taken = false;
    pthread_cond_broadcast(&pool.idle);
}

void amp__threads_run(int32_t threads, void (*work)(void *job), void *job) {
    int cancel;
    if (threads < 2) {
        work(job);
        return;
    }
    /* to wait is a point of cancellation, and the job is on our stack */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    const bool mine = take_pool(threads - 1, work, job);
    work(job);
    if (mine) {
        pthread_mutex_lock(&pool.mutex);
        pool.seats = 0;
        while (pool.inside) pthread_cond_wait(&pool.idle, &pool.mutex);
        give_pool_back();
        pthread_mutex_unlock(&pool.mutex);
    }
    pthread_setcancelstate(cancel, NULL);
}

/* ---- fewer ---- */

static void end_workers(int32_t keep) {
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&pool.mutex);
    while (pool.taken) pthread_cond_wait(&pool.idle, &pool.mutex);
    const int32_t n = pool.n;
    pool.most = AMP__THREADS_MOST - 1;
    if (keep < n) {
        pool.taken = true;
        pool.keep = keep;
        pthread_cond_broadcast(&pool.call);
        pthread_mutex_unlock(&pool.mutex);
        for (int32_t i = keep; i < n; i++) pthread_join(pool.workers[i], NULL);
        pthread_mutex_lock(&pool.mutex);
        pool.n = keep;
        pool.keep = AMP__THREADS_MOST - 1;
        give_pool_back();
    }
    pthread_mutex_unlock(&pool.mutex);
    pthread_setcancelstate(cancel, NULL);
}

AMP_API amp_status amp_set_num_threads(int32_t n) {
    AMP_RETURN_IF(n < 0, AMP_ERR_INVALID_ARGUMENT, "amp_set_num_threads: %d: use 1 or more, or 0 for all processors",
                  (int)n);
    const int32_t threads = resolve_threads(n);
    atomic_store(&wanted, threads);
    end_workers(threads - 1);
    return AMP_OK;
}
