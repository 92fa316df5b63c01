/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdlib.h>
#include <string.h>

static struct suite_test *all;
double suite_seconds = 120;

/* Compilers may run constructors in any order. */
void suite_add(struct suite_test *test) {
    struct suite_test **at = &all;
    while (*at && (strcmp((*at)->test.file, test->test.file) != 0 || (*at)->test.line < test->test.line))
        at = &(*at)->next;
    test->next = *at;
    *at = test;
}

/* A case for each file, with the file's name: CK_RUN_CASE takes it. */
static TCase *case_of(const char *file) {
    const char *name = strrchr(file, '/');
    TCase *tcase = tcase_create(name ? name + 1 : file);
    tcase_set_timeout(tcase, suite_seconds);
    return tcase;
}

static int run(enum fork_status fork_status, int (*wanted)(const char *file)) {
    Suite *suite = suite_create("tests");
    TCase *tcase = NULL;
    const char *file = "";
    for (const struct suite_test *t = all; t; t = t->next) {
        int first, end;
        if (wanted && !wanted(t->test.file)) continue;
        if (strcmp(file, t->test.file) != 0) {
            file = t->test.file;
            suite_add_tcase(suite, tcase = case_of(file));
        }
        if (!t->test.fn) {
            tcase_add_checked_fixture(tcase, t->setup, t->teardown);
            continue;
        }
        t->range(&first, &end);
        tcase_add_loop_test(tcase, &t->test, first, end);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, fork_status);
    srunner_run_all(runner, CK_ENV);
    const int good = srunner_ntests_run(runner) > 0 && srunner_ntests_failed(runner) == 0;
    srunner_free(runner);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int suite_run(void) { return run(CK_FORK_GETENV, NULL); }

int suite_run_here(int (*wanted)(const char *file)) { return run(CK_NOFORK, wanted); }
