/* SPDX-License-Identifier: Apache-2.0 */
#include "../kernels/support.h"

#include <stdio.h>

int main(void) {
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    fflush(stdout); /* before Check forks */
    return suite_run();
}
