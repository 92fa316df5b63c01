/* SPDX-License-Identifier: Apache-2.0 */
/* Handle -> parameter, asked for every tensor that is about to be cast: two small hash tables, by handle and by id. */
#include "context/context.h"

static size_t hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u; /* Fibonacci hashing: spreads aligned addresses */
    return (size_t)(key >> 20);
}

static void put_handle(amp_context *context, void *handle, struct amp__param *param) {
    size_t i = hash((uintptr_t)handle) & context->table_mask;
    while (context->by_handle[i].param && context->by_handle[i].handle != handle) i = (i + 1) & context->table_mask;
    context->table_used += !context->by_handle[i].param;
    context->by_handle[i] = (struct amp__handle_entry){ handle, param };
}

/* The first handle of an id stands. There is no table before there is an id. */
static void put_id(amp_context *context, uint64_t id, struct amp__param *param) {
    size_t i = hash(id) & context->table_mask;
    while (context->by_id[i].param && context->by_id[i].id != id) i = (i + 1) & context->table_mask;
    if (!context->by_id[i].param) context->by_id[i] = (struct amp__id_entry){ id, param };
}

static uint64_t id_of(const amp_host *host, void *tensor) { return host->id ? host->id(host->self, tensor) : 0; }

/* Both tables again, with `size` entries; entries whose parameter is gone are left out. with_ids: the second too. */
static amp_status rebuild(amp_context *context, size_t size, bool with_ids) {
    const size_t old = context->by_handle ? context->table_mask + 1 : 0;
    struct amp__handle_entry *handles = amp__alloc(size, sizeof *handles), *old_handles = context->by_handle;
    struct amp__id_entry *ids = with_ids ? amp__alloc(size, sizeof *ids) : NULL, *old_ids = context->by_id;
    if (!handles || (with_ids && !ids)) {
        amp__free(handles);
        amp__free(ids);
        return amp__fail_memory();
    }
    context->by_handle = handles;
    context->by_id = ids;
    context->table_mask = size - 1;
    context->table_used = 0;
    for (size_t i = 0; i < old; i++) {
        if (old_handles[i].handle) put_handle(context, old_handles[i].handle, old_handles[i].param);
        if (old_ids && old_ids[i].id) put_id(context, old_ids[i].id, old_ids[i].param);
    }
    amp__free(old_handles);
    amp__free(old_ids);
    return AMP_OK;
}

/* What is expected may be anything: the tables grow where it was too little. */
amp_status amp__params_init(amp_context *context, size_t expected) {
    size_t size = 16;
    while (size < 2 * expected + 4 && size < 1u << 20) size *= 2;
    return rebuild(context, size, false);
}

/* A removed entry stays as a stone that lookups pass over, since open addressing may not leave holes. */
static const struct amp__param removed;

static bool goes(const struct amp__param *param, size_t from) {
    return param && param != &removed && param->index >= from;
}

void amp__params_remove(amp_context *context, size_t from) {
    struct amp__param *stone = (struct amp__param *)(uintptr_t)&removed; /* only its address is used */
    for (size_t i = 0; i <= context->table_mask; i++) {
        if (goes(context->by_handle[i].param, from)) context->by_handle[i] = (struct amp__handle_entry){ NULL, stone };
        if (context->by_id && goes(context->by_id[i].param, from))
            context->by_id[i] = (struct amp__id_entry){ 0, stone };
    }
}

amp_status amp__params_insert(amp_context *context, void *handle, struct amp__param *param) {
    const size_t size = context->table_mask + 1;
    if (2 * (context->table_used + 1) >= size) AMP_TRY(rebuild(context, 2 * size, context->by_id));
    put_handle(context, handle, param);
    return AMP_OK;
}

struct id_batch {
    struct amp__id_entry entries[64];
    size_t n;
};

static void put_batch(amp_context *context, struct id_batch *batch) {
    for (size_t i = 0; i < batch->n; i++) put_id(context, batch->entries[i].id, batch->entries[i].param);
    batch->n = 0;
}

/* Ids come in any order: their places in the table are fetched before they are looked at. */
static amp_status add_id(amp_context *context, struct id_batch *batch, struct amp__param *param, void *handle) {
    const uint64_t id = id_of(param->host, handle);
    if (!id) return AMP_OK;
    if (!context->by_id) AMP_TRY(rebuild(context, context->table_mask + 1, true));
    __builtin_prefetch(&context->by_id[hash(id) & context->table_mask], 1);
    batch->entries[batch->n++] = (struct amp__id_entry){ id, param };
    if (batch->n == AMP_COUNT(batch->entries)) put_batch(context, batch);
    return AMP_OK;
}

amp_status amp__params_index(amp_context *context, size_t from) {
    struct id_batch batch;
    batch.n = 0;
    for (size_t i = from; i < context->n_params; i++) {
        struct amp__param *param = context->params[i];
        if (!param->host->id) continue;
        AMP_TRY(add_id(context, &batch, param, param->tensor));
        for (size_t k = 0; k < param->n_ties; k++) AMP_TRY(add_id(context, &batch, param, param->ties[k]));
    }
    put_batch(context, &batch);
    return AMP_OK;
}

void amp__params_prefetch(const amp_context *context, const void *tensor) {
    __builtin_prefetch(&context->by_handle[hash((uintptr_t)tensor) & context->table_mask], 1);
}

struct amp__param *amp__param_of_handle(const amp_context *context, const void *tensor) {
    size_t i = hash((uintptr_t)tensor) & context->table_mask;
    for (; context->by_handle[i].param; i = (i + 1) & context->table_mask)
        if (context->by_handle[i].handle == tensor) return context->by_handle[i].param;
    return NULL;
}

struct amp__param *amp__param_find(const amp_context *context, const amp_host *host, void *tensor) {
    struct amp__param *param = amp__param_of_handle(context, tensor);
    const uint64_t id = param || !context->by_id ? 0 : id_of(host, tensor);
    if (!id) return param;
    for (size_t i = hash(id) & context->table_mask; context->by_id[i].param; i = (i + 1) & context->table_mask)
        if (context->by_id[i].id == id) return context->by_id[i].param;
    return NULL;
}
