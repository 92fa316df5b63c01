/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that need no list: what is written is run, in the order of the files and of their lines. */
#ifndef TEST_TEST_H
#define TEST_TEST_H

#include "wrap.h"

#include <check.h>
#include <stddef.h>

/* Check notes each assertion that holds for its parent process: 8 KB moved, and system calls. Here of each line the
 * first time; a program that crashes is said to have done so after the last line that was new. */
#define _mark_point(file, line)                                                                                        \
    __extension__({                                                                                                    \
        static char told_;                                                                                             \
        if (!__atomic_load_n(&told_, __ATOMIC_RELAXED)) {                                                              \
            __atomic_store_n(&told_, 1, __ATOMIC_RELAXED);                                                             \
            (_mark_point)(file, line);                                                                                 \
        }                                                                                                              \
    })

#ifdef __cplusplus
extern "C" {
#endif

struct suite_test {
    TTest test; /* fn NULL: what runs before and after each test of the file */
    void (*range)(int *first, int *end);
    SFun setup, teardown;
    struct suite_test *next;
};
void suite_add(struct suite_test *test);

extern double suite_seconds; /* that a test may take: 120, or what main sets */

/* Runs them all, each in a process of its own; main's result. A program without a main has one that does just this. */
int suite_run(void);
/* In this process, those of the files alone for which `wanted` says so (NULL: all). */
int suite_run_here(int (*wanted)(const char *file));

#ifdef __cplusplus
}
#define SUITE_ADD(name, ...)                                                                                           \
    __attribute__((constructor)) static void name##_add() {                                                            \
        static suite_test test = { __VA_ARGS__, nullptr };                                                             \
        suite_add(&test);                                                                                              \
    }
#else
#define SUITE_ADD(name, ...)                                                                                           \
    __attribute__((constructor)) static void name##_add(void) {                                                        \
        static struct suite_test test = { __VA_ARGS__, NULL };                                                         \
        suite_add(&test);                                                                                              \
    }
#endif

/* TEST(name) { ... } is a test, TEST_TIMES one that runs n times, _i counting from 0: n is worked out at the start. */
#define TEST_RANGE(name, first, end)                                                                                   \
    static void name(int _i);                                                                                          \
    static void name##_range(int *from, int *to) { *from = (int)(first), *to = (int)(end); }                           \
    SUITE_ADD(name, { #name, name, __FILE__, __LINE__ }, name##_range, NULL, NULL)                                     \
    static void name(int _i CK_ATTRIBUTE_UNUSED)
#define TEST_TIMES(name, n) TEST_RANGE(name, 0, n)
#define TEST(name) TEST_RANGE(name, 0, 1)

/* One that a row of docs/internals/apex-differences.md names; tests/docs/check_docs.py holds them together. */
#define DIFFERENCE_TIMES(name, n) TEST_TIMES(name, n)
#define DIFFERENCE(name) TEST(name)

/* Before and after each test of this file; NULL: nothing. */
#define TEST_FIXTURE(setup, teardown) SUITE_ADD(fixture, { "", NULL, __FILE__, __LINE__ }, NULL, setup, teardown)

#endif
