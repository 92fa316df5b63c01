/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a libamp that was built without a JSON library: the symbols are there and say so. */
#include "amp_state.h"
#include "common/common.h"

static amp_status refuse_states(const char *who) {
    return amp__fail(AMP_ERR_UNSUPPORTED,
                     "%s: this libamp was built without a JSON library, which state files need: build it with Jansson "
                     "and -Djson=enabled", who);
}

AMP_API amp_status amp_state_save(amp_context *context, const char *path, amp_state_format format) {
    (void)context, (void)path, (void)format;
    return refuse_states("amp_state_save");
}

AMP_API amp_status amp_state_save_memory(amp_context *context, amp_state_format format, void *data, size_t capacity,
                                         size_t *size) {
    (void)context, (void)format, (void)data, (void)capacity, (void)size;
    return refuse_states("amp_state_save_memory");
}

AMP_API amp_status amp_state_load(amp_context *context, const char *path) {
    (void)context, (void)path;
    return refuse_states("amp_state_load");
}

AMP_API amp_status amp_state_load_parts(amp_context *context, const char *const *paths, size_t n) {
    (void)context, (void)paths, (void)n;
    return refuse_states("amp_state_load_parts");
}

AMP_API amp_status amp_state_load_memory(amp_context *context, const void *data, size_t size) {
    (void)context, (void)data, (void)size;
    return refuse_states("amp_state_load_memory");
}
