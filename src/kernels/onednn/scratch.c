/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of megabytes, for every call anew, would be mapped and touched page by page each time. A few stay. */
#include "kernels/onednn/product.h"

#include <stdlib.h>

enum { SPARES = 4, LARGEST_SPARE = 64 << 20 };

struct header { /* one cache line before each block */
    size_t bytes;
    char padding[64 - sizeof(size_t)];
};

pthread_mutex_t scratch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct header *spares[SPARES];

/* The smallest that is large enough. */
static struct header *take_spare(size_t bytes) {
    int best = -1;
    pthread_mutex_lock(&scratch_lock);
    for (int i = 0; i < SPARES; i++)
        if (spares[i] && spares[i]->bytes >= bytes && (best < 0 || spares[i]->bytes < spares[best]->bytes)) best = i;
    struct header *block = best < 0 ? NULL : spares[best];
    if (block) spares[best] = NULL;
    pthread_mutex_unlock(&scratch_lock);
    return block;
}

void *scratch_get(size_t bytes) {
    struct header *block = take_spare(bytes);
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
    for (int i = 0; i < SPARES && block && block->bytes <= LARGEST_SPARE; i++)
        if (!spares[i] || spares[i]->bytes < block->bytes) {
            struct header *smaller = spares[i];
            spares[i] = block;
            block = smaller;
        }
    pthread_mutex_unlock(&scratch_lock);
    free(block);
}
