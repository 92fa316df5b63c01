/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of Check as the kernels' tests use, in its own words, for machines that we compile for and that have no
 * Check: arm64 in an emulator. Each run of a test is a process of its own, as there. CK_RUN_CASE is obeyed.
 */
#ifndef AMP_TESTS_MINICHECK_H
#define AMP_TESTS_MINICHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name;
    void (*fn)(int i);
    const char *file;
    int line;
} TTest;
typedef void (*SFun)(void);

typedef struct {
    const char *name;
    struct {
        const TTest *test;
        int first, end; /* of a loop */
    } runs[32];
    size_t n;
} TCase;

typedef struct {
    TCase *cases[16];
    size_t n;
    int checks, failed;
} Suite;
typedef Suite SRunner;

#define CK_ATTRIBUTE_UNUSED __attribute__((unused))
enum { CK_ENV };
enum fork_status { CK_FORK_GETENV, CK_NOFORK };

/* ---- assertions ---- */

#define ck_abort_msg(...)                                                                                              \
    do {                                                                                                               \
        printf("%s:%d: ", __FILE__, __LINE__);                                                                         \
        printf(__VA_ARGS__);                                                                                           \
        putchar('\n');                                                                                                 \
        exit(EXIT_FAILURE);                                                                                            \
    } while (0)
#define ck_assert_msg(condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) ck_abort_msg(__VA_ARGS__);                                                                   \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "%s", #condition)
#define CK_COMPARE(type, format, a, op, b)                                                                             \
    do {                                                                                                               \
        const type ck_a = (a), ck_b = (b);                                                                             \
        ck_assert_msg(ck_a op ck_b, "%s %s %s: %" format " and %" format, #a, #op, #b, ck_a, ck_b);                    \
    } while (0)
#define ck_assert_int_eq(a, b) CK_COMPARE(intmax_t, PRIdMAX, a, ==, b)
#define ck_assert_uint_eq(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, ==, b)
#define ck_assert_uint_gt(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, >, b)
#define ck_assert_uint_le(a, b) CK_COMPARE(uintmax_t, PRIuMAX, a, <=, b)
#define ck_assert_mem_eq(a, b, size) ck_assert_msg(!memcmp(a, b, size), "%s differs from %s", #a, #b)
#define ck_assert_float_eq_tol(a, b, tolerance)                                                                        \
    do {                                                                                                               \
        const double ck_error = (double)(a) - (double)(b);                                                             \
        ck_assert_msg(ck_error <= (double)(tolerance) && -ck_error <= (double)(tolerance), "%s and %s: off by %g", #a, \
                      #b, ck_error);                                                                                   \
    } while (0)

/* ---- tests, cases, suites ---- */

static inline void *ck_new(size_t bytes) {
    void *made = calloc(1, bytes);
    if (!made) abort();
    return made;
}

static inline TCase *tcase_create(const char *name) {
    TCase *tests = ck_new(sizeof *tests);
    tests->name = name;
    return tests;
}
static inline void tcase_set_timeout(TCase *tests, double seconds) {
    (void)tests, (void)seconds; /* our caller has one */
}
static inline void tcase_add_loop_test(TCase *tests, const TTest *test, int first, int end) {
    if (tests->n == sizeof tests->runs / sizeof *tests->runs) abort();
    tests->runs[tests->n].test = test;
    tests->runs[tests->n].first = first;
    tests->runs[tests->n++].end = end;
}
static inline void tcase_add_checked_fixture(TCase *tests, SFun setup, SFun teardown) {
    (void)tests, (void)setup, (void)teardown; /* nobody has one here */
    abort();
}
static inline Suite *suite_create(const char *name) { return (void)name, ck_new(sizeof(Suite)); }
static inline void suite_add_tcase(Suite *suite, TCase *tests) {
    if (suite->n == sizeof suite->cases / sizeof *suite->cases) abort();
    suite->cases[suite->n++] = tests;
}
static inline SRunner *srunner_create(Suite *suite) { return suite; }
static inline void srunner_set_fork_status(SRunner *runner, enum fork_status status) { (void)runner, (void)status; }

/* ---- running them ---- */

static inline int ck_run(const TTest *test, int i) {
    int status = -1;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        test->fn(i);
        exit(EXIT_SUCCESS);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return 1;
    if (status > 0 && WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
    printf("not ok: %s, run %d\n", test->name, i);
    return 0;
}

static inline void ck_run_case(SRunner *runner, const TCase *tests) {
    for (size_t t = 0; t < tests->n; t++)
        for (int i = tests->runs[t].first; i < tests->runs[t].end; i++) {
            runner->checks++;
            runner->failed += !ck_run(tests->runs[t].test, i);
        }
}

static inline void srunner_run_all(SRunner *runner, int how) {
    const char *only = getenv("CK_RUN_CASE");
    (void)how;
    for (size_t c = 0; c < runner->n; c++)
        if (!only || !strcmp(only, runner->cases[c]->name)) ck_run_case(runner, runner->cases[c]);
    printf("Checks: %d, Failures: %d\n", runner->checks, runner->failed);
}
static inline int srunner_ntests_run(const SRunner *runner) { return runner->checks; }
static inline int srunner_ntests_failed(SRunner *runner) { return runner->failed; }
static inline void srunner_free(SRunner *runner) { free(runner); /* the program ends here */ }

#endif
