/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "kernels/cpu.h"

#include <stdio.h>

int main(void) {
    printf("# AMP_TEST_SEED=%llu\n", (unsigned long long)test_seed());
#define SAY_MISSING(name, flag)                                                                                        \
    if ((flag) & ~amp__cpu_detect()) puts("# not tested: this machine has no " #name);
    AMP__CPU_MAP(SAY_MISSING)
    fflush(stdout); /* before Check forks */
    return suite_run();
}
