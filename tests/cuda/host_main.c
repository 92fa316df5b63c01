/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_host fake|emulated|alone|gpu: amp_initialize over parameters in a device's memory, on the fake device or on
 * the first GPU. */
#include "device.h"

#include <stddef.h>

int main(int argc, char **argv) {
    static const char *const fake_alone[] = { "test_host_faults.c", "test_host_memory.c", NULL };
    return device_main(argc, argv, fake_alone);
}
