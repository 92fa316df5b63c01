/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_host fake|gpu: amp_initialize over parameters in a device's memory, on the fake device or on the first GPU. */
#include "host.h"

static SRunner *suites(int real) { return (void)real, srunner_create(suite_host()); }

int main(int argc, char **argv) { return device_main(argc, argv, suites); }
