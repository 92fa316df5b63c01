/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_HEAP_H
#define TEST_HEAP_H

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Bytes that malloc has handed out. 0: a C library that does not say, or a sanitizer, which finds leaks itself. */
static inline size_t heap_used(void) {
#ifdef __GLIBC__
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
#else
    return 0;
#endif
}

#endif
