/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <stdlib.h>

int main(void) {
    SRunner *runner = srunner_create(suite_machine());
    srunner_add_suite(runner, suite_blas());
    srunner_add_suite(runner, suite_plan());
    srunner_add_suite(runner, suite_lists_cuda());
    srunner_add_suite(runner, suite_steps());
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
