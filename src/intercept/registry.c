/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's slots and the transactions over them. Closures are made and never given up (closures.c finds them); one
 * is a wrapped slot's state while it has clients and waits for reuse by its function while it has none.
 *
 * The mutex guards changes only. It is never held while the host's code runs, and a fork waits for it.
 */
#include "intercept/closures.h"
#include "system/system.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct entry {
    struct amp__closure *closure; /* NULL: the slot was empty and passed over */
    struct amp__client *client;
    char *what;
    uint64_t passed_before, strangers_before; /* closure->passed and strangers at commit */
};

struct amp__patch {
    struct entry *entries;
    size_t n, capacity;
    bool committed;
    struct amp__mapping known;
};

static struct {
    pthread_mutex_t mutex;
    struct amp__forkable forkable;
} registry = { .mutex = PTHREAD_MUTEX_INITIALIZER };

/* The host's other threads call through the slot while it is written. */
static amp_fn load_slot(amp_fn *slot) { return __atomic_load_n(slot, __ATOMIC_ACQUIRE); }
static void store_slot(amp_fn *slot, amp_fn value) { __atomic_store_n(slot, value, __ATOMIC_RELEASE); }

/* ---- finding closures ---- */

/* Returns the closure in a slot. A slot is ours while it has our pointer (in_copy: the first pointer). If other code
 * has wrapped it again, its pointer is wrapped anew: it may or may not call our closure, which passes on a call from
 * inside a wrapped one. */
static struct amp__closure *find_wrapped(const struct amp__wrap *wrap, amp_fn value) {
    struct amp__closure *c = NULL;
    while ((c = amp__closures_at(wrap->slot, c)))
        if (c->n_reserved && c->in_copy == wrap->in_copy && value == (c->installed && !c->in_copy ? c->code : c->saved))
            return c;
    return NULL;
}

/* Returns the function behind a copy of a wrapped pointer, so that calls are not wrapped twice. */
static amp_fn find_original(amp_fn value) {
    const struct amp__closure *closure = amp__closures_by_code(value);
    return closure ? closure->original : value;
}

/* An idle closure of this function, best the one that stood in this slot before, so that old copies of the slot's
 * pointer go where the slot's calls go. One that lives in copies of a table serves no other slot: the host goes on
 * calling through them. */
static struct amp__closure *find_idle(amp_fn *slot, amp_fn original, const struct amp__schema *schema) {
    struct amp__closure *c = NULL;
    while ((c = amp__closures_at(slot, c)))
        if (!c->n_reserved && c->original == original && amp__schema_same(c->schema, schema)) return c;
    while ((c = amp__closures_idle(original, c)))
        if (amp__schema_same(c->schema, schema)) return c;
    return NULL;
}

/* It waits for its function, unless it lives in copies. */
static void leave_idle(struct amp__closure *closure) {
    if (!closure->n_reserved && !closure->in_copy) amp__closures_put_idle(closure);
}

/* ---- adding ---- */

static amp_status check_wrap(const struct amp__wrap *wrap, const char *what) {
    AMP_RETURN_IF(!wrap->schema, AMP_ERR_INVALID_ARGUMENT, "%s: it has no schema", what);
    AMP_RETURN_IF(wrap->match_self && wrap->schema->self_arg < 0, AMP_ERR_SCHEMA,
                  "%s: the schema has no Tensor or pointer argument named self: %.300s", what, wrap->schema->text);
    AMP_RETURN_IF(!wrap->handler || !wrap->owner, AMP_ERR_INVALID_ARGUMENT, "%s: a handler and an owner are needed",
                  what);
    AMP_RETURN_IF(!wrap->slot, AMP_ERR_INVALID_ARGUMENT,
                  "%s: the slot is NULL: give the address where the host keeps the function pointer, or mark the op "
                  "AMP_OP_DIRECT",
                  what);
    AMP_RETURN_IF((uintptr_t)wrap->slot % _Alignof(amp_fn), AMP_ERR_INVALID_ARGUMENT,
                  "%s: the slot %p is not aligned as a function pointer", what, (void *)wrap->slot);
    return AMP_OK;
}

/* Checks a slot. *value: its present pointer. */
static amp_status check_slot(struct amp__patch *patch, const struct amp__wrap *wrap, const char *what, amp_fn *value) {
    const enum amp__access access = amp__access_of(wrap->slot, &patch->known);
    AMP_RETURN_IF(access == AMP__ACCESS_NONE, AMP_ERR_INVALID_ARGUMENT,
                  "%s: there is no memory at the slot's address %p", what, (void *)wrap->slot);
    *value = load_slot(wrap->slot);
    AMP_RETURN_IF(access == AMP__ACCESS_READ && *value && !wrap->in_copy, AMP_ERR_READ_ONLY,
                  "%s: the slot %p lies in read-only memory (a const table?): keep the table in writable memory, or "
                  "flag the op AMP_OP_COPY and call through the copy that amp_wrap_table makes",
                  what, (void *)wrap->slot);
    return AMP_OK;
}

/* May `wrap` join the clients that are on the slot? */
static amp_status check_shared(const struct amp__closure *closure, const struct amp__wrap *wrap, const char *what) {
    const struct amp__schema *schema = wrap->schema;
    const struct amp__client *client = &closure->clients;
    for (; client; client = atomic_load(&client->next)) {
        if (!client->reserved_for) continue;
        AMP_RETURN_IF(!amp__schema_same(closure->schema, schema), AMP_ERR_CONFLICT,
                      "%s: its slot is wrapped already for %s under %s: %.300s", what, client->what,
                      strcmp(closure->schema->text, schema->text) ? "another schema" : "other structs",
                      closure->schema->text);
        if (client->reserved_for != wrap->owner) continue;
        const bool by_self = wrap->match_self && atomic_load(&client->match_self);
        AMP_RETURN_IF(!by_self || atomic_load(&client->self) == wrap->self, AMP_ERR_CONFLICT,
                      "%s and %s are the same slot (%p)%s", client->what, what, (void *)wrap->slot,
                      by_self ? " with the same self" : "");
    }
    return AMP_OK;
}

static amp_status take_closure(const struct amp__wrap *wrap, const char *what, amp_fn value,
                               struct amp__closure **out) {
    const amp_fn original = find_original(value);
    struct amp__closure *closure = find_idle(wrap->slot, original, wrap->schema);
    if (!closure) {
        const amp_status status = amp__closure_new(original, wrap->schema, &closure);
        if (status != AMP_OK) return amp__fail_prefix(status, "%s", what);
        amp__closures_add(closure, wrap->slot);
    }
    amp__closures_take_idle(closure);
    amp__closures_move(closure, wrap->slot);
    closure->in_copy = wrap->in_copy;
    closure->saved = value;
    *out = closure;
    return AMP_OK;
}

/* Under the mutex from the look into the slot on: another thread's commit or undo must not come between. */
static amp_status reserve(struct amp__patch *patch, const struct amp__wrap *wrap, struct entry *entry) {
    amp_fn value = NULL;
    AMP_TRY(check_slot(patch, wrap, entry->what, &value));
    if (!value) return AMP_OK;
    struct amp__closure *closure = find_wrapped(wrap, value);
    if (closure) AMP_TRY(check_shared(closure, wrap, entry->what));
    else AMP_TRY(take_closure(wrap, entry->what, value, &closure));
    entry->client = amp__client_reserve(closure, wrap, entry->what);
    if (!entry->client) {
        leave_idle(closure);
        return amp__fail_memory();
    }
    entry->closure = closure;
    return AMP_OK;
}

static amp_status grow_patch(struct amp__patch *patch) {
    if (patch->n < patch->capacity) return AMP_OK;
    const size_t capacity = patch->capacity ? 2 * patch->capacity : 16;
    struct entry *entries = amp__grow(patch->entries, patch->capacity, capacity, sizeof *entries);
    if (!entries) return amp__fail_memory();
    patch->entries = entries;
    patch->capacity = capacity;
    return AMP_OK;
}

amp_status amp__patch_add(struct amp__patch *patch, const struct amp__wrap *wrap, bool *wrapped) {
    AMP_RETURN_IF(!patch || !wrap || !wrapped, AMP_ERR_INVALID_ARGUMENT, "patch, wrap and wrapped must not be NULL");
    AMP_RETURN_IF(patch->committed, AMP_ERR_WRONG_STATE, "the patch is committed already");
    const char *what = wrap->what ? wrap->what : "slot";
    struct entry entry = { .closure = NULL };
    AMP_TRY(check_wrap(wrap, what));
    AMP_TRY(grow_patch(patch));
    entry.what = amp__strdup(what);
    if (!entry.what) return amp__fail_memory();
    pthread_mutex_lock(&registry.mutex);
    const amp_status status = reserve(patch, wrap, &entry);
    pthread_mutex_unlock(&registry.mutex);
    if (status != AMP_OK) {
        amp__free(entry.what);
        return status;
    }
    patch->entries[patch->n++] = entry;
    *wrapped = entry.closure != NULL;
    return AMP_OK;
}

/* ---- the life of a transaction ---- */

amp_status amp__patch_new(struct amp__patch **out) {
    AMP_TRY(amp__fork_add(&registry.forkable, &registry.mutex));
    struct amp__patch *patch = amp__alloc(1, sizeof *patch);
    if (!patch) return amp__fail_memory();
    *out = patch;
    return AMP_OK;
}

void amp__patch_commit(struct amp__patch *patch) {
    pthread_mutex_lock(&registry.mutex);
    for (size_t i = 0; i < patch->n; i++) {
        struct entry *entry = &patch->entries[i];
        struct amp__closure *closure = entry->closure;
        if (!closure) continue;
        entry->passed_before = atomic_load(&closure->passed);
        entry->strangers_before = atomic_load(&closure->strangers);
        amp__client_activate(entry->client); /* before the slot: the first call through it finds its client */
        if (!closure->installed && !closure->in_copy) store_slot(closure->slot, closure->code);
        closure->installed = true;
    }
    patch->committed = true;
    pthread_mutex_unlock(&registry.mutex);
}

/* Slots that could not be put back, for the message. */
struct unrestored {
    amp__text text;
    char list[384];
    size_t n;
};

static void add_unrestored(struct unrestored *unrestored, const char *what) {
    unrestored->text.data = unrestored->list;
    unrestored->text.capacity = sizeof unrestored->list;
    amp__text_add(&unrestored->text, "%s%s", unrestored->n++ ? ", " : "", what);
}

/* Restores the pointer of the slot, unless it has the pointer of other code or cannot be written any more. Copies stay
 * valid. */
static void restore(const struct entry *entry, struct amp__mapping *known, struct unrestored *taken,
                    struct unrestored *sealed) {
    struct amp__closure *closure = entry->closure;
    if (closure->in_copy) return;
    const enum amp__access access = amp__access_of(closure->slot, known);
    amp_fn expected = closure->code;
    if (access == AMP__ACCESS_NONE || access == AMP__ACCESS_READ) add_unrestored(sealed, entry->what);
    else if (!__atomic_compare_exchange_n(closure->slot, &expected, closure->saved, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE))
        add_unrestored(taken, entry->what);
}

static amp_status report_unrestored(const struct unrestored *taken, const struct unrestored *sealed) {
    char text[512] = "";
    if (!taken->n && !sealed->n) return AMP_OK;
    if (sealed->n)
        snprintf(text, sizeof text, "the memory of %zu wrapped slot%s is gone or became read-only: %s%s (make it "
                 "writable before the end)", sealed->n, sealed->n == 1 ? "" : "s", sealed->list,
                 sealed->text.length >= sizeof sealed->list ? "..." : "");
    AMP_RETURN_IF(!taken->n, AMP_ERR_READ_ONLY, "%s; left as it is: calls that still reach libamp run unchanged",
                  text);
    return amp__fail(AMP_ERR_SLOT_TAKEN, "another library overwrote %zu wrapped slot%s, left as they are: %s%s; calls "
                     "that still reach libamp run unchanged%s%s", taken->n, taken->n == 1 ? "" : "s", taken->list,
                     taken->text.length >= sizeof taken->list ? "..." : "", sealed->n ? "; " : "", text);
}

amp_status amp__patch_undo(struct amp__patch *patch) {
    if (!patch) return AMP_OK;
    struct unrestored taken = { .n = 0 }, sealed = { .n = 0 };
    patch->known = (struct amp__mapping){ 0 }; /* mappings may have changed since */
    pthread_mutex_lock(&registry.mutex);
    for (size_t i = patch->n; i-- > 0;) {
        const struct entry *entry = &patch->entries[i];
        struct amp__closure *closure = entry->closure;
        if (!closure) continue;
        amp__client_release(closure, entry->client);
        leave_idle(closure);
        if (closure->n_reserved || !closure->installed) continue;
        closure->installed = false;
        restore(entry, &patch->known, &taken, &sealed);
    }
    pthread_mutex_unlock(&registry.mutex);

    for (size_t i = 0; i < patch->n; i++) amp__free(patch->entries[i].what);
    amp__free(patch->entries);
    amp__free(patch);
    return report_unrestored(&taken, &sealed);
}

/* ---- copies of tables ---- */

static const struct amp__closure *copied_at(uintptr_t address) {
    const struct amp__closure *closure = NULL;
    while ((closure = amp__closures_at((const amp_fn *)address, closure)))
        if (closure->in_copy && closure->installed) break;
    return closure;
}

void amp__table_copy(void *copy, const void *table, size_t bytes) {
    const uintptr_t begin = (uintptr_t)table,
                    aligned = (begin + _Alignof(amp_fn) - 1) / _Alignof(amp_fn) * _Alignof(amp_fn);
    size_t done = 0;
    pthread_mutex_lock(&registry.mutex);
    for (size_t at = aligned - begin; at < bytes && bytes - at >= sizeof(amp_fn); at += _Alignof(amp_fn)) {
        const struct amp__closure *closure = copied_at(begin + at);
        if (!closure) continue;
        char *target = (char *)copy + at;
        if (at > done) memcpy((char *)copy + done, (const char *)table + done, at - done);
        if ((uintptr_t)target % _Alignof(amp_fn)) memcpy(target, &closure->code, sizeof closure->code);
        else store_slot((amp_fn *)(void *)target, closure->code);
        done = at + sizeof closure->code;
    }
    if (bytes > done) memcpy((char *)copy + done, (const char *)table + done, bytes - done);
    pthread_mutex_unlock(&registry.mutex);
}

bool amp__patch_taken(struct amp__patch *patch, size_t wrap) {
    if (wrap >= patch->n || !patch->committed || !patch->entries[wrap].closure) return false;
    const struct amp__closure *closure = patch->entries[wrap].closure;
    struct amp__mapping known = { 0 };
    if (closure->in_copy) return false;
    return amp__access_of(closure->slot, &known) == AMP__ACCESS_NONE || load_slot(closure->slot) != closure->code;
}

uint64_t amp__patch_passed(const struct amp__patch *patch, size_t wrap) {
    if (wrap >= patch->n || !patch->committed || !patch->entries[wrap].closure) return 0;
    return atomic_load(&patch->entries[wrap].closure->passed) - patch->entries[wrap].passed_before;
}

uint64_t amp__patch_strangers(const struct amp__patch *patch, size_t wrap) {
    if (wrap >= patch->n || !patch->committed || !patch->entries[wrap].closure) return 0;
    return atomic_load(&patch->entries[wrap].closure->strangers) - patch->entries[wrap].strangers_before;
}
