/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_host fake|gpu: amp_initialize over parameters in a device's memory, on the fake device or on the
 * first GPU. */
#include "host.h"

static SRunner *suites(int real) {
    SRunner *runner = srunner_create(suite_host());
    srunner_add_suite(runner, suite_host_calls());
    srunner_add_suite(runner, suite_host_rules());
    if (real) return runner;
    srunner_add_suite(runner, suite_host_faults());
    srunner_add_suite(runner, suite_host_memory());
    return runner;
}

int main(int argc, char **argv) { return device_main(argc, argv, suites); }
