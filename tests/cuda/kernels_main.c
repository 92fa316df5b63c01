/* SPDX-License-Identifier: Apache-2.0 */
#include "../kernels/support.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    fflush(stdout); /* before Check forks */
    SRunner *runner = srunner_create(suite_table());
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
