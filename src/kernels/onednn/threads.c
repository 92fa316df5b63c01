/* SPDX-License-Identifier: Apache-2.0 */
/* The number is the calling thread's own setting in OpenMP: to change it and to put it back disturbs nobody else. */
#include "kernels/onednn/product.h"

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
