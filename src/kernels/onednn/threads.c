/* SPDX-License-Identifier: Apache-2.0 */
/* The number of threads is a setting of the calling thread in OpenMP, so changing and restoring it does not affect
 * others. */
#include "kernels/onednn/product.h"

#include <stdatomic.h>
#include <sys/mman.h>

/* Weak: there if the oneDNN that was loaded brought an OpenMP with it, whichever that is. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));

int32_t threads_enter(int32_t threads) {
    if (!omp_get_max_threads || !omp_set_num_threads) return 0;
    const int before = omp_get_max_threads();
    if (before != threads) omp_set_num_threads(threads);
    return before;
}

void threads_leave(int32_t before) {
    if (before > 0 && omp_get_max_threads && omp_get_max_threads() != before) omp_set_num_threads(before);
}

/* ---- children ---- */

/*
 * oneDNN has its own locks. A child forked while another thread multiplies may inherit a locked one and would wait for
 * ever. So running products are counted, and a child that finds any from its parent does not use oneDNN. A page that
 * fork empties identifies a child.
 */
static atomic_int running;
static atomic_bool given_up;
static atomic_bool had_threads; /* more than one, in this process or in one that it comes from */
static atomic_bool alone;       /* those were not in this process */
static atomic_int *mark; /* 1 in the process that wrote it (NULL: the system has no such pages) */

void children_init(void) {
#ifdef MADV_WIPEONFORK
    void *page = mmap(NULL, sizeof *mark, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (madvise(page, sizeof *mark, MADV_WIPEONFORK)) {
        munmap(page, sizeof *mark);
        return;
    }
    mark = page;
    atomic_store(mark, 1);
#endif
}

bool children_enter(void) {
    if (mark && !atomic_load(mark)) {
        if (atomic_load(&had_threads)) atomic_store(&alone, true);
        if (!atomic_exchange(mark, 1) && atomic_load(&running)) atomic_store(&given_up, true);
    }
    if (atomic_load(&given_up)) return false;
    atomic_fetch_add(&running, 1);
    return true;
}

void children_leave(void) { atomic_fetch_sub(&running, 1); }

int32_t children_threads(int32_t threads) {
    if (threads < 2 || !mark || atomic_load(&alone)) return 1;
    atomic_store(&had_threads, true);
    return threads;
}
