/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_device fake|gpu [REASON TO SKIP]: amp_device.h on the fake device or on the first GPU. */
#include "capability.h"
#include "device.h"

#include "../kernels/support.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    const int real = argc > 1 && argv[1][0] == 'g';
    const char *why = argc > 2 ? argv[2] : device_start(real);
    if (why && (real || argc > 2)) {
        printf("1..0 # SKIP %s\n", why);
        return 0;
    }
    if (why) {
        fprintf(stderr, "%s\n", why);
        return EXIT_FAILURE;
    }
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    fflush(stdout);
    SRunner *runner = srunner_create(suite_calls());
    srunner_add_suite(runner, suite_device_scaler());
    srunner_add_suite(runner, suite_products());
    srunner_add_suite(runner, suite_ops());
    if (!real) srunner_add_suite(runner, suite_faults());
    if (!real) srunner_add_suite(runner, suite_product_calls());
    if (!real) srunner_add_suite(runner, suite_product_faults());
    if (!real) srunner_add_suite(runner, suite_gate());
    srunner_set_fork_status(runner, CK_NOFORK); /* a child could not use CUDA */
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    device_end();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
