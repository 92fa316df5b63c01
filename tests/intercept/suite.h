/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of this folder needs around its tests. */
#ifndef TEST_INTERCEPT_SUITE_H
#define TEST_INTERCEPT_SUITE_H

#include "amp_all.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, "%s", amp_last_error())
#define ck_fails(status, expression) ck_assert_int_eq((expression), (status))
#define ck_says(text) ck_assert_msg(strstr(amp_last_error(), (text)), "\"%s\" not in: %s", (text), amp_last_error())

static inline int run_tests(const char *name, const TTest *const *tests, size_t n) {
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 120);
    for (size_t i = 0; i < n; i++) tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
