/* SPDX-License-Identifier: Apache-2.0 */
/* Repeated look-ups of initialize: a hash table with 64-bit keys, and a sort of them, both linear. */
#ifndef AMP_MAP_H
#define AMP_MAP_H

#include "common/common.h"

/* Zeros are an empty one. */
struct amp__map {
    struct amp__keyed {
        uint64_t key;
        void *value; /* NULL: no entry */
    } *entries;
    size_t mask, n;
};

/* NULL: none. */
void *amp__map_get(const struct amp__map *map, uint64_t key);
/* Replaces the value of the key. value is not NULL. */
amp_status amp__map_put(struct amp__map *map, uint64_t key, void *value);
void amp__map_free(struct amp__map *map);

/* The same by a text that must live as long as the map: `name` says where a value has it. */
void *amp__map_get_name(const struct amp__map *map, const char *text, const char *(*name)(const void *value));
amp_status amp__map_put_name(struct amp__map *map, const char *text, void *value,
                             const char *(*name)(const void *value));

/* Sorts by rising key. Equal keys keep their order. */
amp_status amp__sort_keyed(struct amp__keyed *entries, size_t n);

#endif
