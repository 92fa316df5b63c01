/* SPDX-License-Identifier: Apache-2.0 */
#include "call/cache.h"

#include <string.h>

amp_status amp__cache_init(struct amp__cache *cache, size_t n_keys) {
    memset(cache, 0, sizeof *cache);
    cache->cells = amp__alloc(n_keys, sizeof *cache->cells);
    if (!cache->cells) return amp__fail_memory();
    cache->n = n_keys;
    return AMP_OK;
}

amp_status amp__cache_grow(struct amp__cache *cache, size_t n_keys) {
    if (n_keys <= cache->n) return AMP_OK;
    if (n_keys < 2 * cache->n) n_keys = 2 * cache->n; /* parameters may come one by one */
    void *grown = amp__grow(cache->cells, cache->n, n_keys, sizeof *cache->cells);
    if (!grown) return amp__fail_memory();
    cache->cells = grown;
    cache->n = n_keys;
    return AMP_OK;
}

static void push(amp__cache_cell *list, struct amp__cache_entry *entry) {
    entry->next = atomic_load(list);
    while (!atomic_compare_exchange_weak(list, &entry->next, entry)) continue;
}

static void release(struct amp__cache *cache, struct amp__cache_entry *entry) {
    amp__ledger_take(&cache->ledger, entry->bytes);
    if (entry->release) entry->release(entry->user, entry->handle);
    amp__free(entry);
}

static void retire(struct amp__cache *cache, struct amp__cache_entry *entry) {
    const bool recorded = entry->recorded;
    push(&cache->retired, entry);
    atomic_fetch_sub(&cache->kept, 1);
    if (recorded) atomic_fetch_sub(&cache->recorded, 1);
}

/* Counted first, so that without a count there is no entry. */
void amp__cache_put(struct amp__cache *cache, size_t key, struct amp__cache_entry *entry) {
    atomic_fetch_add(&cache->kept, 1);
    if (entry->recorded) atomic_fetch_add(&cache->recorded, 1);
    struct amp__cache_entry *old = atomic_exchange(&cache->cells[key], entry);
    if (old) retire(cache, old);
}

/* A bracket and its step come here several times, mostly for nothing: the cells are not looked through then. */
void amp__cache_retire(struct amp__cache *cache, bool recorded_only) {
    if (!atomic_load(recorded_only ? &cache->recorded : &cache->kept)) return;
    for (size_t i = 0; i < cache->n; i++) {
        struct amp__cache_entry *entry = atomic_load(&cache->cells[i]);
        if (!entry || (recorded_only && !entry->recorded)) continue;
        if (atomic_compare_exchange_strong(&cache->cells[i], &entry, NULL)) retire(cache, entry);
    }
}

/*
 * The list is taken first and the users are looked at afterwards: a call that starts in between cannot find a retired
 * entry, and one that found it before is still counted.
 */
void amp__cache_collect(struct amp__cache *cache) {
    struct amp__cache_entry *entry = atomic_exchange(&cache->retired, NULL);
    const bool busy = entry && atomic_load(&cache->users) != 0;
    while (entry) {
        struct amp__cache_entry *next = entry->next;
        if (busy) push(&cache->retired, entry);
        else release(cache, entry);
        entry = next;
    }
}

void amp__cache_destroy(struct amp__cache *cache) {
    if (!cache->cells) return;
    amp__cache_retire(cache, false);
    atomic_store(&cache->users, 0);
    amp__cache_collect(cache);
    amp__free(cache->cells);
    memset(cache, 0, sizeof *cache);
}
