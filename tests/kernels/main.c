/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "kernels/cpu.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
#define SAY_MISSING(name, flag)                                                                                        \
    if ((flag) & ~amp__cpu_detect()) puts("# not tested: this machine has no " #name);
    AMP__CPU_MAP(SAY_MISSING)
    fflush(stdout); /* before Check forks */
    SRunner *runner = srunner_create(suite_convert());
    srunner_add_suite(runner, suite_table());
    srunner_add_suite(runner, suite_lists());
    srunner_add_suite(runner, suite_fpenv());
    srunner_add_suite(runner, suite_matmul());
    srunner_add_suite(runner, suite_cpu());
    srunner_add_suite(runner, suite_round());
    srunner_add_suite(runner, suite_statistics());
    srunner_add_suite(runner, suite_threads());
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
