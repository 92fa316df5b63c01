/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses that an op keeps. A layer that stores its input for backward (`l->input = input`) stores the address of
 * the call's temporary, which is freed: the struct gets the address of the host's buffer instead, which it would hold
 * without libamp.
 */
#include "raw/raw.h"

#include <string.h>

/* The host's address of what a temporary has at `shown`, NULL if that lies in none. */
static void *host_of(const struct amp__raw *raw, const void *shown) {
    for (size_t i = 0; i < raw->n; i++) {
        const struct amp__raw_buffer *buffer = &raw->buffers[i];
        const uintptr_t width = buffer->narrow ? sizeof(uint16_t) : sizeof(float);
        const uintptr_t distance = (uintptr_t)shown - (uintptr_t)buffer->temporary;
        if (buffer->temporary && distance / width < (uint64_t)buffer->extents.span)
            return buffer->host + distance / width;
    }
    return NULL;
}

static void look_in(const struct amp__raw *raw, char *memory, size_t size) {
    for (size_t at = 0; size - at >= sizeof(void *); at += sizeof(void *)) {
        void *word, *host;
        memcpy(&word, memory + at, sizeof word);
        if (word && (host = host_of(raw, word))) memcpy(memory + at, &host, sizeof host);
    }
}

void amp__raw_put_addresses(const struct amp__raw *raw, const struct amp__bound *bound) {
    enum { LARGEST = 1 << 14 }; /* above, a struct is an array, not a list of members */
    const struct amp__schema *schema = bound->call->schema;
    if (!raw->n) return;
    for (struct amp__patched *patched = raw->casting->temporaries ? raw->casting->temporaries->patched : NULL; patched;
         patched = patched->next) {
        float *kept = *patched->field != patched->shown ? host_of(raw, *patched->field) : NULL;
        if (kept) patched->value = kept; /* what the op stored there itself is put back, not what it replaced */
    }
    for (uint8_t i = 0; i < schema->n_struct_pointers; i++) {
        const uint8_t index = schema->struct_pointers[i];
        const uint64_t size = schema->structs[schema->args[index].struct_index].size;
        char *memory = *(char **)bound->argv[index];
        if (memory && size <= LARGEST && !((uintptr_t)memory % _Alignof(void *))) look_in(raw, memory, (size_t)size);
    }
}
