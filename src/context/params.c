/* SPDX-License-Identifier: Apache-2.0 */
/* Handle -> parameter, for every tensor before a cast: two small hash tables, by handle and by id. */
#include "context/params.h"

static size_t hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u; /* Fibonacci hashing: spreads aligned addresses */
    return (size_t)(key >> 20);
}

static void put_handle(struct amp__params *params, void *handle, struct amp__param *param) {
    size_t i = hash((uintptr_t)handle) & params->table_mask;
    while (params->by_handle[i].param && params->by_handle[i].handle != handle) i = (i + 1) & params->table_mask;
    params->table_used += !params->by_handle[i].param;
    params->by_handle[i] = (struct amp__handle_entry){ handle, param };
}

/* The first handle of an id counts. There is no table before the first id. */
static void put_id(struct amp__params *params, uint64_t id, struct amp__param *param) {
    size_t i = hash(id) & params->table_mask;
    while (params->by_id[i].param && params->by_id[i].id != id) i = (i + 1) & params->table_mask;
    if (!params->by_id[i].param) params->by_id[i] = (struct amp__id_entry){ id, param };
}

static uint64_t id_of(const amp_host *host, void *tensor) { return host->id ? host->id(host->self, tensor) : 0; }

/* Rebuilds both tables with `size` entries, without removed parameters. with_ids: the second too. */
static amp_status rebuild(struct amp__params *params, size_t size, bool with_ids) {
    const size_t old = params->by_handle ? params->table_mask + 1 : 0;
    struct amp__handle_entry *handles = amp__alloc(size, sizeof *handles), *old_handles = params->by_handle;
    struct amp__id_entry *ids = with_ids ? amp__alloc(size, sizeof *ids) : NULL, *old_ids = params->by_id;
    if (!handles || (with_ids && !ids)) {
        amp__free(handles);
        amp__free(ids);
        return amp__fail_memory();
    }
    params->by_handle = handles;
    params->by_id = ids;
    params->table_mask = size - 1;
    params->table_used = 0;
    for (size_t i = 0; i < old; i++) {
        if (old_handles[i].handle) put_handle(params, old_handles[i].handle, old_handles[i].param);
        if (old_ids && old_ids[i].id) put_id(params, old_ids[i].id, old_ids[i].param);
    }
    amp__free(old_handles);
    amp__free(old_ids);
    return AMP_OK;
}

/* `expected` may be any number: the tables grow. */
amp_status amp__params_init(struct amp__params *params, size_t expected) {
    size_t size = 16;
    while (size < 2 * expected + 4 && size < 1u << 20) size *= 2;
    return rebuild(params, size, false);
}

/* A removed entry stays as a stone that lookups pass over, since open addressing may not leave holes. */
static const struct amp__param removed;

static bool goes(const struct amp__param *param, size_t from) {
    return param && param != &removed && param->index >= from;
}

void amp__params_remove(struct amp__params *params, size_t from) {
    struct amp__param *stone = (struct amp__param *)(uintptr_t)&removed; /* only its address is used */
    for (size_t i = 0; i <= params->table_mask; i++) {
        if (goes(params->by_handle[i].param, from)) params->by_handle[i] = (struct amp__handle_entry){ NULL, stone };
        if (params->by_id && goes(params->by_id[i].param, from))
            params->by_id[i] = (struct amp__id_entry){ 0, stone };
    }
}

amp_status amp__params_insert(struct amp__params *params, void *handle, struct amp__param *param) {
    const size_t size = params->table_mask + 1;
    if (2 * (params->table_used + 1) >= size) AMP_TRY(rebuild(params, 2 * size, params->by_id));
    put_handle(params, handle, param);
    return AMP_OK;
}

struct id_batch {
    struct amp__id_entry entries[64];
    size_t n;
};

static void put_batch(struct amp__params *params, struct id_batch *batch) {
    for (size_t i = 0; i < batch->n; i++) put_id(params, batch->entries[i].id, batch->entries[i].param);
    batch->n = 0;
}

/* Ids come in any order: their places in the table are fetched before they are looked at. */
static amp_status add_id(struct amp__params *params, struct id_batch *batch, struct amp__param *param, void *handle) {
    const uint64_t id = id_of(param->host, handle);
    if (!id) return AMP_OK;
    if (!params->by_id) AMP_TRY(rebuild(params, params->table_mask + 1, true));
    __builtin_prefetch(&params->by_id[hash(id) & params->table_mask], 1);
    batch->entries[batch->n++] = (struct amp__id_entry){ id, param };
    if (batch->n == AMP_COUNT(batch->entries)) put_batch(params, batch);
    return AMP_OK;
}

amp_status amp__params_index(struct amp__params *params, size_t from) {
    struct id_batch batch;
    batch.n = 0;
    for (size_t i = from; i < params->n; i++) {
        struct amp__param *param = params->list[i];
        if (!param->host->id) continue;
        AMP_TRY(add_id(params, &batch, param, param->tensor));
        for (size_t k = 0; k < param->n_ties; k++) AMP_TRY(add_id(params, &batch, param, param->ties[k]));
    }
    put_batch(params, &batch);
    return AMP_OK;
}

void amp__params_prefetch(const struct amp__params *params, const void *tensor) {
    __builtin_prefetch(&params->by_handle[hash((uintptr_t)tensor) & params->table_mask], 1);
}

struct amp__param *amp__param_of_handle(const struct amp__params *params, const void *tensor) {
    size_t i = hash((uintptr_t)tensor) & params->table_mask;
    for (; params->by_handle[i].param; i = (i + 1) & params->table_mask)
        if (params->by_handle[i].handle == tensor) return params->by_handle[i].param;
    return NULL;
}

struct amp__param *amp__param_find(const struct amp__params *params, const amp_host *host, void *tensor) {
    struct amp__param *param = amp__param_of_handle(params, tensor);
    const uint64_t id = param || !params->by_id ? 0 : id_of(host, tensor);
    if (!id) return param;
    for (size_t i = hash(id) & params->table_mask; params->by_id[i].param; i = (i + 1) & params->table_mask)
        if (params->by_id[i].id == id) return params->by_id[i].param;
    return NULL;
}
