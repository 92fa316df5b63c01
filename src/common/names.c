/* SPDX-License-Identifier: Apache-2.0 */
#include "common/names.h"

static uint64_t hash_name(int tag, const char *text) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)tag;
    while (*text) hash = (hash ^ (unsigned char)*text++) * 0x100000001b3u;
    return hash;
}

amp_status amp__names_add(struct amp__names *names, int tag, const char *text, void *value) {
    if (names->n == names->capacity) {
        const size_t capacity = names->capacity ? 2 * names->capacity : 64;
        void *grown = amp__grow(names->entries, names->capacity, capacity, sizeof *names->entries);
        if (!grown) return amp__fail_memory();
        names->entries = grown;
        names->capacity = capacity;
    }
    names->entries[names->n++] = (struct amp__keyed){ hash_name(tag, text), value };
    return AMP_OK;
}

amp_status amp__names_sort(struct amp__names *names) {
    AMP_TRY(amp__sort_keyed(names->entries, names->n));
    atomic_store_explicit(&names->sorted, true, memory_order_release);
    return AMP_OK;
}

static size_t first_from(const struct amp__names *names, uint64_t key) {
    size_t low = 0, high = names->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (names->entries[middle].key < key) low = middle + 1;
        else high = middle;
    }
    return low;
}

const struct amp__keyed *amp__names_find(const struct amp__names *names, int tag, const char *text, size_t *n) {
    const uint64_t key = hash_name(tag, text);
    const size_t first = first_from(names, key);
    *n = 0;
    if (!names->n) return NULL;
    *n = (key == UINT64_MAX ? names->n : first_from(names, key + 1)) - first;
    return names->entries + first;
}

void amp__names_free(struct amp__names *names) {
    amp__free(names->entries);
    names->entries = NULL;
    names->n = names->capacity = 0;
    atomic_store_explicit(&names->sorted, false, memory_order_relaxed);
}
