/* SPDX-License-Identifier: Apache-2.0 */
/* A program outside the tree: installed headers and library alone. Prints the library's version. */
#include <amp.h>
#include <amp_call.h>
#include <amp_kernels.h>

#include <stdio.h>

int main(void) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O1;
    amp_context *context = NULL;
    if (amp_initialize_many(NULL, 0, NULL, 0, &config, &context) != AMP_OK) {
        printf("initialize: %s\n", amp_last_error());
        return 1;
    }
    const amp_dtype given[] = { AMP_FLOAT32 };
    amp_dtype target = AMP_DTYPE_DEFAULT;
    if (amp_op_target(context, "linear", given, 1, &target) != AMP_OK || target != AMP_FLOAT16) {
        printf("linear under O1: type %d, wanted fp16: %s\n", (int)target, amp_last_error());
        return 1;
    }
    if (amp_float_to_half(1.0f) != 0x3c00 || amp_shutdown(context) != AMP_OK) return 1;
    puts(amp_version());
    return 0;
}
