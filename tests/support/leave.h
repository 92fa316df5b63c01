/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a child that a test forked: _exit, but what a build for coverage has counted in it is written. */
#ifndef TEST_LEAVE_H
#define TEST_LEAVE_H

#include <unistd.h>

extern void __gcov_dump(void) __attribute__((weak));

static inline void leave(int status) {
    if (__gcov_dump) __gcov_dump();
    _exit(status);
}

#endif
