/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts for reuse: one cell per key (a parameter in one form). A lookup takes no lock and allocates nothing. An entry
 * is valid while the version of its source is the present one and, if it was made without a tape, only where no tape is
 * needed.
 *
 * Entries end in two steps. Retiring takes an entry out of its cell, so that no lookup finds it any more. It is
 * released when no call that might have found it is still running (`users` is 0). Callers put every lookup, and the use
 * of its result, between amp__cache_enter and amp__cache_leave.
 */
#ifndef AMP_CACHE_H
#define AMP_CACHE_H

#include "common/common.h"
#include "common/ledger.h"

#include <stdatomic.h>

/* The forms of a parameter: a handle of a floating type, by the type's number from 1; or raw elements, which are no
 * handle; or, with verify, a sum of its elements at the time of the first cast. */
enum { AMP__FORM_NARROWED = AMP_FLOAT64 + 1, AMP__FORM_ROUNDED, AMP__FORM_SUM, AMP__FORMS = AMP__FORM_SUM };

struct amp__cache_entry {
    void *handle;
    void (*release)(void *user, void *handle); /* NULL: borrowed, released by its owner after the entry is retired */
    void *user;
    uint64_t version;
    uint64_t bytes; /* in the ledger */
    bool recorded; /* made while the tape recorded */
    struct amp__cache_entry *next;
};

typedef _Atomic(struct amp__cache_entry *) amp__cache_cell;

struct amp__cache {
    amp__cache_cell *cells;
    size_t n;
    struct amp__ledger ledger; /* of casts and of calls' copies that were made while a training is observed */
    amp__cache_cell retired;
    _Atomic(uint32_t) users;
    _Atomic(size_t) kept, recorded; /* entries in cells, and those recorded by a tape, or a few more */
};

amp_status amp__cache_init(struct amp__cache *cache, size_t n_keys);
/* Adds keys. No lookup may run. */
amp_status amp__cache_grow(struct amp__cache *cache, size_t n_keys);
void amp__cache_destroy(struct amp__cache *cache); /* releases everything */

static inline void amp__cache_enter(struct amp__cache *cache) { atomic_fetch_add(&cache->users, 1); }
static inline void amp__cache_leave(struct amp__cache *cache) { atomic_fetch_sub(&cache->users, 1); }

/* NULL: none that serves. */
static inline void *amp__cache_find(struct amp__cache *cache, size_t key, uint64_t version, bool recording) {
    const struct amp__cache_entry *entry = atomic_load_explicit(&cache->cells[key], memory_order_acquire);
    return entry && entry->version == version && (entry->recorded || !recording) ? entry->handle : NULL;
}
/* Stores a new cast: the cache owns `entry` from here on. Retires the old one. */
void amp__cache_put(struct amp__cache *cache, size_t key, struct amp__cache_entry *entry);

/* Retires every entry, or only those recorded on a tape. */
void amp__cache_retire(struct amp__cache *cache, bool recorded_only);
/* Releases the retired entries if no call is running that might use them. */
void amp__cache_collect(struct amp__cache *cache);
static inline void amp__cache_drop(struct amp__cache *cache, bool recorded_only) {
    amp__cache_retire(cache, recorded_only);
    amp__cache_collect(cache);
}

#endif
