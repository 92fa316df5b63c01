/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of this folder needs around its tests. */
#ifndef TEST_PARITY_SUITE_H
#define TEST_PARITY_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Runs a test case; its tests have been added. */
static inline int run_case(const char *name, TCase *tcase) {
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
