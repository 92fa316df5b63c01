/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/blas_cache.h"

#include <string.h>

/* FNV-1a over words, its upper half folded in: sizes differ in few bits, and those must reach the set's number. */
static struct blas_entry *set_of(struct blas_cache *cache, const struct blas_key *key) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < BLAS_KEY_WORDS; i++)
        hash = (hash ^ key->words[i]) * UINT64_C(0x100000001b3), hash ^= hash >> 29;
    return cache->entries[hash % BLAS_SETS];
}

static struct blas_entry *entry_of(struct blas_entry *set, const struct blas_key *key) {
    for (int i = 0; i < BLAS_WAYS; i++)
        if (set[i].used && !memcmp(&set[i].key, key, sizeof *key)) return &set[i];
    return NULL;
}

bool cuda_blas_find(struct blas_cache *cache, const struct blas_key *key, struct blas_choice *choice) {
    struct blas_entry *entry = entry_of(set_of(cache, key), key);
    if (!entry) return false;
    entry->used = ++cache->clock;
    *choice = entry->choice;
    return true;
}

void cuda_blas_add(struct blas_cache *cache, const struct blas_key *key, const struct blas_choice *choice) {
    struct blas_entry *set = set_of(cache, key), *entry = entry_of(set, key);
    for (int i = 0; !entry && i < BLAS_WAYS; i++)
        if (!set[i].used) entry = &set[i];
    if (!entry) {
        entry = set;
        for (int i = 1; i < BLAS_WAYS; i++)
            if (set[i].used < entry->used) entry = &set[i];
    }
    *entry = (struct blas_entry){ *key, *choice, ++cache->clock };
}
