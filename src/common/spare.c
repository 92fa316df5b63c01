/* SPDX-License-Identifier: Apache-2.0 */
#include "common/spare.h"

enum { HEAD = 64 }; /* before the memory: how much there is; keeps it aligned */

static size_t *size_of(void *memory) { return (size_t *)(void *)((char *)memory - HEAD); }

static void free_block(void *memory) {
    if (memory) amp__free(size_of(memory));
}

static void *new_block(size_t bytes) {
    size_t *head = bytes <= SIZE_MAX - HEAD ? amp__alloc_aligned(HEAD + bytes) : NULL;
    if (!head) return NULL;
    *head = bytes;
    return (char *)head + HEAD;
}

/* Into an empty place, false if there is none. */
static bool store_spare(struct amp__spares *spares, void *memory) {
    for (size_t i = 0; i < AMP__SPARES; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&spares->blocks[i], &none, memory)) return true;
    }
    return false;
}

/* Takes a block out of the list while it is checked, so that no other thread takes it. A block of twice the needed size
 * or more stays for a larger need. */
void *amp__spare_take(struct amp__spares *spares, size_t bytes) {
    for (size_t i = 0; i < AMP__SPARES && bytes >= AMP__SPARE_LEAST; i++) {
        void *block = atomic_exchange(&spares->blocks[i], NULL);
        if (!block) continue;
        if (*size_of(block) >= bytes && *size_of(block) / 2 <= bytes) return block;
        amp__spare_give(spares, block);
    }
    return new_block(bytes);
}

void amp__spare_give(struct amp__spares *spares, void *memory) {
    if (!memory) return;
    if (spares && *size_of(memory) >= AMP__SPARE_LEAST) {
        if (store_spare(spares, memory)) return;
        const uint32_t place = atomic_fetch_add(&spares->next, 1) % AMP__SPARES; /* the oldest, more or less */
        memory = atomic_exchange(&spares->blocks[place], memory);
    }
    free_block(memory);
}

void amp__spares_clear(struct amp__spares *spares) {
    for (size_t i = 0; i < AMP__SPARES; i++) free_block(atomic_exchange(&spares->blocks[i], NULL));
}
