/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of megabytes, for every call anew, would be mapped and touched page by page each time. A few stay. */
#include "kernels/onednn/product.h"

#include <stdlib.h>

enum { KEPT = 4, LARGEST_KEPT = 64 << 20 };

struct header { /* one cache line before each block */
    size_t bytes;
    char padding[64 - sizeof(size_t)];
};

pthread_mutex_t scratch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct header *kept[KEPT];

/* The smallest that is large enough. */
static struct header *take_kept(size_t bytes) {
    int best = -1;
    pthread_mutex_lock(&scratch_lock);
    for (int i = 0; i < KEPT; i++)
        if (kept[i] && kept[i]->bytes >= bytes && (best < 0 || kept[i]->bytes < kept[best]->bytes)) best = i;
    struct header *block = best < 0 ? NULL : kept[best];
    if (block) kept[best] = NULL;
    pthread_mutex_unlock(&scratch_lock);
    return block;
}

void *scratch_get(size_t bytes) {
    struct header *block = take_kept(bytes);
    if (!block) {
        if (bytes > SIZE_MAX / 2) return NULL;
        bytes = (bytes + 4095) & ~(size_t)4095;
        block = aligned_alloc(64, sizeof *block + bytes);
        if (!block) return NULL;
        block->bytes = bytes;
    }
    return block + 1;
}

void scratch_put(void *data) {
    struct header *block = data ? (struct header *)data - 1 : NULL;
    if (!block) return;
    pthread_mutex_lock(&scratch_lock);
    for (int i = 0; i < KEPT && block && block->bytes <= LARGEST_KEPT; i++)
        if (!kept[i] || kept[i]->bytes < block->bytes) {
            struct header *smaller = kept[i];
            kept[i] = block;
            block = smaller;
        }
    pthread_mutex_unlock(&scratch_lock);
    free(block);
}
