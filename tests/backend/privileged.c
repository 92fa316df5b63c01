/* SPDX-License-Identifier: Apache-2.0 */
/* A program with a libamp of its own (libamp.a), for test_loader.py: does it load the backend beside it, and has it
 * more rights than its caller? */
#include "amp_kernels.h"

#include <stdio.h>
#include <sys/auxv.h>

int main(void) {
    const amp_status status = amp_backend_load("onednn");
    printf("secure=%lu\nload=%d\nload.error=%s\n", getauxval(AT_SECURE), (int)status,
           status == AMP_OK ? "" : amp_last_error());
    return 0;
}
