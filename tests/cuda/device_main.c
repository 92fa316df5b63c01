/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_device fake|emulated|alone|gpu [REASON TO SKIP]: amp_device.h on the fake device or on the first GPU. */
#include "device.h"

#include <stddef.h>

int main(int argc, char **argv) {
    static const char *const fake_alone[] = { "test_faults.c", "test_product_calls.c", "test_product_faults.c",
                                              "test_gate.c", NULL };
    return device_main(argc, argv, fake_alone);
}
