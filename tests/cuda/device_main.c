/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_device fake|gpu [REASON TO SKIP]: amp_device.h on the fake device or on the first GPU. */
#include "capability.h"
#include "device.h"

static SRunner *suites(int real) {
    SRunner *runner = srunner_create(suite_calls());
    srunner_add_suite(runner, suite_device_scaler());
    srunner_add_suite(runner, suite_products());
    srunner_add_suite(runner, suite_ops());
    if (!real) srunner_add_suite(runner, suite_faults());
    if (!real) srunner_add_suite(runner, suite_product_calls());
    if (!real) srunner_add_suite(runner, suite_product_faults());
    if (!real) srunner_add_suite(runner, suite_gate());
    return runner;
}

int main(int argc, char **argv) { return device_main(argc, argv, suites); }
