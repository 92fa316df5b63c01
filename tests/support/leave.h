/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a child that a test forked: _exit, but what a build for coverage has counted in it is written. */
#ifndef TEST_LEAVE_H
#define TEST_LEAVE_H

#include <unistd.h>

#ifdef AMP__COVERAGE
extern void __gcov_dump(void);
#endif

static inline void leave(int status) {
#ifdef AMP__COVERAGE
    __gcov_dump();
#endif
    _exit(status);
}

#endif
