/* SPDX-License-Identifier: Apache-2.0 */
/* A program with a libamp of its own (libamp.a), for test_loader.py: does it load the backend beside it, does it write
 * the trace that its caller names, and has it more rights than its caller? */
#include "amp.h"
#include "amp_kernels.h"

#include <stdio.h>
#include <sys/auxv.h>

int main(void) {
    const amp_status status = amp_backend_load("onednn");
    printf("secure=%lu\nload=%d\nload.error=%s\n", getauxval(AT_SECURE), (int)status,
           status == AMP_OK ? "" : amp_last_error());
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    config.level = AMP_O1;
    printf("initialize=%d\n", (int)amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    return amp_shutdown(context) == AMP_OK ? 0 : 1;
}
