/* SPDX-License-Identifier: Apache-2.0 */
#include "common/map.h"

#include <string.h>

/* ---- the table: open addressing, half full at most ---- */

static struct amp__keyed *find_entry(const struct amp__map *map, uint64_t key) {
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & map->mask;
    while (map->entries[i].value && map->entries[i].key != key) i = (i + 1) & map->mask;
    return &map->entries[i];
}

void *amp__map_get(const struct amp__map *map, uint64_t key) {
    return map->entries ? find_entry(map, key)->value : NULL;
}

static amp_status grow_map(struct amp__map *map) {
    struct amp__map grown = { NULL, map->entries ? 2 * map->mask + 1 : 31, map->n };
    grown.entries = amp__alloc(grown.mask + 1, sizeof *grown.entries);
    if (!grown.entries) return amp__fail_memory();
    for (size_t i = 0; map->entries && i <= map->mask; i++)
        if (map->entries[i].value) *find_entry(&grown, map->entries[i].key) = map->entries[i];
    amp__free(map->entries);
    *map = grown;
    return AMP_OK;
}

amp_status amp__map_put(struct amp__map *map, uint64_t key, void *value) {
    if (!map->entries || 2 * (map->n + 1) > map->mask) AMP_TRY(grow_map(map));
    struct amp__keyed *entry = find_entry(map, key);
    map->n += !entry->value;
    *entry = (struct amp__keyed){ key, value };
    return AMP_OK;
}

void amp__map_free(struct amp__map *map) {
    amp__free(map->entries);
    *map = (struct amp__map){ 0 };
}

/* ---- texts ---- */

static uint64_t hash_text(const char *text) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325u;
    while (*text) hash = (hash ^ (unsigned char)*text++) * 0x100000001b3u;
    return hash;
}

/* The key of the text: its hash, or one of those that follow where another text has that. */
static uint64_t key_of(const struct amp__map *map, const char *text, const char *(*name)(const void *value)) {
    uint64_t key = hash_text(text);
    for (const void *there; (there = amp__map_get(map, key)) && strcmp(name(there), text) != 0;) key++;
    return key;
}

void *amp__map_get_name(const struct amp__map *map, const char *text, const char *(*name)(const void *value)) {
    return amp__map_get(map, key_of(map, text, name));
}

amp_status amp__map_put_name(struct amp__map *map, const char *text, void *value,
                             const char *(*name)(const void *value)) {
    return amp__map_put(map, key_of(map, text, name), value);
}

/* ---- the sort ---- */

/* A pass by one byte of the keys. */
static void sort_by_byte(struct amp__keyed *to, const struct amp__keyed *from, size_t n, unsigned shift) {
    size_t at[256] = { 0 };
    for (size_t i = 0; i < n; i++) at[from[i].key >> shift & 0xff]++;
    for (size_t i = 0, sum = 0; i < AMP_COUNT(at); i++) {
        const size_t count = at[i];
        at[i] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) to[at[from[i].key >> shift & 0xff]++] = from[i];
}

/* Addresses differ in a few of their bytes alone, and mostly come in order. */
amp_status amp__sort_keyed(struct amp__keyed *entries, size_t n) {
    uint64_t differ = 0;
    bool sorted = true;
    for (size_t i = 1; i < n; i++) {
        differ |= entries[i].key ^ entries[0].key;
        sorted &= entries[i - 1].key <= entries[i].key;
    }
    if (sorted) return AMP_OK;
    struct amp__keyed *spare = amp__alloc(n, sizeof *spare), *from = entries, *to = spare;
    if (!spare) return amp__fail_memory();
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if (!(differ >> shift & 0xff)) continue;
        sort_by_byte(to, from, n, shift);
        struct amp__keyed *swap = from;
        from = to;
        to = swap;
    }
    if (from != entries) memcpy(entries, from, n * sizeof *entries);
    amp__free(spare);
    return AMP_OK;
}
