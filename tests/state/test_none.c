/* SPDX-License-Identifier: Apache-2.0 */
/* A libamp without a JSON library: the functions are there and say so; the suite's other tests have nothing to test. */
#include "amp_all.h"

#include <stdio.h>
#include <string.h>

int main(void) {
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    const char *path = "x";
    size_t size = 5;
    config.level = AMP_O1;
    int ok = amp_initialize_many(NULL, 0, NULL, 0, &config, &context) == AMP_OK;
    ok = ok && amp_state_save(context, "x", AMP_STATE_SAFETENSORS) == AMP_ERR_UNSUPPORTED;
    ok = ok && amp_state_load(context, "x") == AMP_ERR_UNSUPPORTED;
    ok = ok && amp_state_load_parts(context, &path, 1) == AMP_ERR_UNSUPPORTED;
    ok = ok && amp_state_load_memory(context, "x", 1) == AMP_ERR_UNSUPPORTED;
    ok = ok && amp_state_save_memory(context, AMP_STATE_APEX, NULL, 0, &size) == AMP_ERR_UNSUPPORTED && size == 5;
    ok = ok && strstr(amp_last_error(), "-Djson=enabled") != NULL;
    ok = amp_shutdown(context) == AMP_OK && ok;
    printf("%s 1 - refused in words\n", ok ? "ok" : "not ok");
    printf("ok 2 - everything else about states # SKIP built without a JSON library (-Djson)\n1..2\n");
    return ok ? 0 : 1;
}
