/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that allocates: overflow checked, zeroed, and easy for the tests to make fail. */
#include "common/common.h"

#include <stdlib.h>
#include <string.h>

void *amp__alloc(size_t count, size_t size) {
    return calloc(count ? count : 1, size);
}

void *amp__grow(void *block, size_t old_count, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return NULL;
    const size_t bytes = count * size;
    char *grown = realloc(block, bytes ? bytes : 1);
    if (grown && count > old_count) memset(grown + old_count * size, 0, (count - old_count) * size);
    return grown;
}

void *amp__alloc_aligned(size_t bytes) {
    if (bytes > SIZE_MAX - 127) return NULL;
    return aligned_alloc(64, (bytes ? bytes + 63 : 64) & ~(size_t)63);
}

void amp__free(void *block) { free(block); }

char *amp__strdup(const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *copy = amp__alloc(bytes, 1);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}
