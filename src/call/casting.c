/* SPDX-License-Identifier: Apache-2.0 */
#include "call/cache.h"
#include "call/call.h"
#include "call/tape.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/op.h"

#include <string.h>

void amp__casting_begin(struct amp__casting *casting, amp_context *context, const amp_host *host, struct amp__op *op,
                        size_t capacity, struct amp__thread *thread, bool marked) {
    *casting = (struct amp__casting){ .context = context,
                                      .host = host,
                                      .op = op,
                                      .capacity = capacity,
                                      .thread = thread,
                                      .mark = marked ? amp__mark_top(thread) : NULL,
                                      .recording = amp__host_grad_enabled(host) };
}

static inline size_t key_of(const struct amp__param *param, int form) {
    return param->index * AMP__FORMS + (size_t)form - 1;
}

/* ---- when a longjmp jumped over the call ---- */

static void leave_cache(void *context) { amp__cache_leave(&((amp_context *)context)->cache); }

static void release_all(struct amp__temporaries *temporaries) {
    amp__ledger_take(&temporaries->context->cache.ledger, temporaries->bytes);
    if (temporaries->taped && temporaries->n) amp__tape_unreserve(temporaries->context, temporaries->n);
    for (const struct amp__patched *patched = temporaries->patched; patched; patched = patched->next)
        *patched->field = patched->value;
    for (size_t i = temporaries->n; i--;) amp__host_release(temporaries->host, temporaries->handles[i]);
    for (struct amp__block *block = temporaries->blocks, *next; block; block = next) {
        next = block->next;
        amp__spare_give(&temporaries->context->spares, block);
    }
    amp__free(temporaries);
}

static void release_abandoned(void *user) {
    struct amp__temporaries *temporaries = user;
    leave_cache(temporaries->context);
    release_all(temporaries);
}

static void tell_mark(struct amp__casting *casting) {
    struct amp__mark *mark = casting->mark;
    if (!mark) return;
    mark->abandoned = casting->temporaries ? release_abandoned : leave_cache;
    mark->user = casting->temporaries ? (void *)casting->temporaries : (void *)casting->context;
}

static void enter_cache(struct amp__casting *casting) {
    if (casting->entered) return;
    amp__cache_enter(&casting->context->cache);
    casting->entered = true;
    tell_mark(casting);
}

/* ---- one cast ---- */

static bool goes_to_tape(const struct amp__casting *casting) {
    return casting->recording && !amp__tape_retains(casting->host);
}

static amp_status need_temporaries(struct amp__casting *casting) {
    if (casting->temporaries) return AMP_OK;
    struct amp__temporaries *fresh =
        amp__alloc(1, sizeof *fresh + casting->capacity * sizeof fresh->handles[0]);
    if (!fresh) return amp__fail_memory();
    fresh->context = casting->context;
    fresh->host = casting->host;
    fresh->capacity = casting->capacity;
    fresh->taped = goes_to_tape(casting);
    casting->temporaries = fresh;
    tell_mark(casting);
    return AMP_OK;
}

static void unreserve(amp_context *const *reserved) {
    if (*reserved) amp__tape_unreserve(*reserved, 1);
}

/* Checks the type of the first cast of each op. */
static amp_status check_type(struct amp__op *op, const amp_host *host, amp_dtype to, void **out) {
    atomic_store_explicit(&op->cast_seen, true, memory_order_relaxed);
    const bool tells_type = host->dtype || (host->view && !op->context->policy.properties.emulate);
    const amp_dtype is = tells_type ? amp__host_dtype(host, *out) : to;
    if (is == to || !*out) return AMP_OK;
    amp__host_release(host, *out);
    *out = NULL;
    return amp__find_error(op->context, AMP__CAST_TYPE, AMP_ERR_HOST_FAILED, op->name, "op %s: the hook cast was asked "
                           "for %s and returned %s", op->name, amp__dtype_name(to), amp__dtype_name(is));
}

amp_status amp__cast(amp_context *context, const amp_host *host, struct amp__op *op, void *tensor, amp_dtype to,
                     bool taped, void **out) {
    if (taped) AMP_TRY(amp__tape_reserve(context));
    AMP_CLEANUP(unreserve) amp_context *reserved = taped ? context : NULL; /* the hook may fail, or throw */
    AMP_TRY(amp__host_cast(host, tensor, to, out));
    if (op && !atomic_load_explicit(&op->cast_seen, memory_order_relaxed)) AMP_TRY(check_type(op, host, to, out));
    reserved = NULL;
    if (op) atomic_fetch_add_explicit(&op->tally.casts, 1, memory_order_relaxed);
    return AMP_OK;
}

/* Returns the bytes of a new cast, for the ledger. */
static uint64_t note_cast(amp_context *context, const amp_host *host, void *cast) {
    struct amp__elements made;
    if (!atomic_load_explicit(&context->progress.observing, memory_order_relaxed) || !host->view ||
        amp__host_find(host, cast, "a cast", &made) != AMP_OK)
        return 0;
    const uint64_t bytes = made.size * amp__dtype_size(made.dtype);
    amp__ledger_add(&context->cache.ledger, bytes);
    return bytes;
}

static void free_entry(struct amp__cache_entry *const *entry) { amp__free(*entry); }

static void cached_release(void *host, void *handle) { amp__host_release(host, handle); }

/* Returns true if the cast may be cached. Without versions a change of a weight is unknown, so only if the end of a
 * scope clears it. */
static inline bool may_keep(const amp_context *context, const amp_host *host, const struct amp__thread *thread) {
    return context->policy.properties.cache && (host->version || thread->scope.set);
}

bool amp__casting_may_keep(const struct amp__casting *casting, const struct amp__param *param) {
    return param && may_keep(casting->context, casting->host, casting->thread);
}

/*
 * A fresh cast has one owner: the cache (weights), the tape (recorded, and the tape does not retain its inputs), or
 * this call's temporaries. A cached cast that a tape needs is the tape's, and borrowed by the cache.
 */
static amp_status cast_fresh(struct amp__casting *casting, const struct amp__param *param, void *tensor, amp_dtype to,
                             uint64_t version, void **out) {
    const bool taped = goes_to_tape(casting);
    const bool cached = amp__casting_may_keep(casting, param);
    AMP_CLEANUP(free_entry) struct amp__cache_entry *entry = cached ? amp__alloc(1, sizeof *entry) : NULL;
    if (cached && !entry) return amp__fail_memory();
    if (!cached) AMP_TRY(need_temporaries(casting));
    AMP_TRY(amp__cast(casting->context, casting->host, casting->op, tensor, to, taped, out));
    const uint64_t bytes = note_cast(casting->context, casting->host, *out);
    if (!cached) {
        casting->temporaries->handles[casting->temporaries->n++] = *out;
        casting->temporaries->bytes += bytes;
        return AMP_OK;
    }
    *entry = (struct amp__cache_entry){ .handle = *out, .version = version, .recorded = casting->recording,
                                        .bytes = taped ? 0 : bytes, .release = taped ? NULL : cached_release,
                                        .user = (void *)(uintptr_t)casting->host };
    if (taped) amp__tape_add(casting->context, casting->host, *out, bytes);
    amp__cache_put(&casting->context->cache, key_of(param, to), entry);
    entry = NULL;
    return AMP_OK;
}

void amp__casting_keep(struct amp__casting *casting, const struct amp__param *param, int form,
                       struct amp__cache_entry *entry, uint64_t bytes) {
    if (atomic_load_explicit(&casting->context->progress.observing, memory_order_relaxed)) {
        amp__ledger_add(&casting->context->cache.ledger, bytes);
        entry->bytes = bytes;
    }
    amp__cache_put(&casting->context->cache, key_of(param, form), entry);
    if (casting->op) atomic_fetch_add_explicit(&casting->op->tally.casts, 1, memory_order_relaxed);
}

static inline uint64_t version_of(const amp_host *host, const struct amp__param *param) {
    return host->version ? host->version(host->self, param->tensor) : 0;
}

static void *find_version(const struct amp__casting *casting, const struct amp__param *param, int form,
                          uint64_t version, bool recording) {
    void *hit = amp__cache_find(&casting->context->cache, key_of(param, form), version, recording);
    if (hit && casting->op)
        amp__op_count_hits(casting->op, casting->thread, 1);
    return hit;
}

/* ---- verify: does a kept cast still have the parameter's elements? ---- */

static void free_sum(void *user, void *sum) {
    (void)user;
    amp__free(sum);
}

/* Stores a sum for as long as a cast made now. Without memory nothing is compared. */
static void keep_sum(struct amp__casting *casting, const struct amp__param *param, uint64_t version, uint64_t sum) {
    struct amp__cache_entry *entry = amp__alloc(1, sizeof *entry);
    uint64_t *kept = entry ? amp__alloc(1, sizeof *kept) : NULL;
    if (!kept) {
        amp__free(entry);
        return;
    }
    *kept = sum;
    *entry = (struct amp__cache_entry){ .handle = kept, .release = free_sum, .version = version,
                                        .recorded = casting->recording };
    amp__cache_put(&casting->context->cache, key_of(param, AMP__FORM_SUM), entry);
}

void amp__casting_compare(struct amp__casting *casting, const struct amp__param *param) {
    struct amp__elements now;
    if (!amp__casting_may_keep(casting, param) || param->on_device || !param->host->view) return;
    if (amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK || now.strides) return;
    enter_cache(casting);
    const uint64_t version = version_of(casting->host, param);
    const uint64_t sum = amp__sum64(0, now.data, (size_t)now.size * amp__dtype_size(now.dtype));
    const uint64_t *kept = amp__cache_find(&casting->context->cache, key_of(param, AMP__FORM_SUM), version,
                                           casting->recording);
    if (!kept) keep_sum(casting, param, version, sum);
    else if (*kept != sum)
        amp__find(casting->context, AMP__COPY_STALE, param->name, "op %s reads %s, and its elements have changed since "
                  "the cast", casting->op ? casting->op->name : "", param->name);
}

void *amp__casting_find(struct amp__casting *casting, const struct amp__param *param, int form, uint64_t *version) {
    enter_cache(casting);
    *version = version_of(casting->host, param);
    if (!amp__casting_may_keep(casting, param)) return NULL;
    if (casting->context->policy.verify) amp__casting_compare(casting, param);
    return find_version(casting, param, form, *version, casting->recording);
}

void *amp__casting_find_version(struct amp__casting *casting, const struct amp__param *param, int form,
                                uint64_t version) {
    enter_cache(casting);
    return find_version(casting, param, form, version, false);
}

amp_status amp__casting_cast(struct amp__casting *casting, amp_dtype from, amp_dtype to, void **handle) {
    const struct amp__param *param = amp__param_find(&casting->context->params, casting->host, *handle);
    if (amp__param_stays_fp32(&casting->context->policy, param)) return AMP_OK;
    enter_cache(casting);
    uint64_t version = 0;
    void *cast = param ? amp__casting_find(casting, param, to, &version) : NULL;
    if (!cast) {
        const amp_status status = cast_fresh(casting, param, *handle, to, version, &cast);
        if (status != AMP_OK)
            return amp__fail_prefix(status, "cast from %s to %s", amp__dtype_name(from), amp__dtype_name(to));
    }
    if (casting->op && casting->context->policy.properties.emulate) amp__count_cast(casting->op, *handle, cast, to);
    *handle = cast;
    return AMP_OK;
}

/* ---- everything in the cache ---- */

static inline void *find_cached(amp_context *context, const amp_host *host, void *tensor, amp_dtype to,
                                bool recording) {
    const struct amp__param *param = amp__param_find(&context->params, host, tensor);
    return param ? amp__cache_find(&context->cache, key_of(param, to), version_of(host, param), recording) : NULL;
}

void *amp__cached_enter_one(amp_context *context, const amp_host *host, const struct amp__thread *thread, void *tensor,
                            amp_dtype to) {
    if (!may_keep(context, host, thread)) return NULL;
    const bool recording = amp__host_grad_enabled(host);
    amp__cache_enter(&context->cache);
    void *hit = find_cached(context, host, tensor, to, recording);
    if (hit && amp__host_dtype(host, tensor) != to) return hit;
    leave_cache(context);
    return NULL;
}

bool amp__cached_enter(struct amp__op *op, const struct amp__call *call, const uint8_t *types,
                       const struct amp__ruling *ruling, void **argv, void **handles) {
    amp_context *context = op->context;
    if (!may_keep(context, op->host, call->thread)) return false;
    const bool recording = amp__host_grad_enabled(op->host);
    struct amp__mark *mark = amp__mark_top(call->thread);
    uint64_t hits = 0;
    amp__cache_enter(&context->cache);
    mark->abandoned = leave_cache;
    mark->user = context;
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        argv[i] = call->args[i];
        if (!(ruling->casts >> types[i] & 1)) continue;
        handles[i] = find_cached(context, op->host, amp__call_pointer(call, i), ruling->target, recording);
        if (!handles[i]) {
            amp__cached_leave(op, call);
            return false;
        }
        argv[i] = &handles[i];
        hits++;
    }
    amp__op_count_hits(op, call->thread, hits);
    return true;
}

void amp__cached_leave(struct amp__op *op, const struct amp__call *call) {
    amp__mark_top(call->thread)->abandoned = NULL;
    leave_cache(op->context);
}

/* ---- memory ---- */

void *amp__casting_memory(struct amp__casting *casting, size_t bytes) {
    enum { HEAD = 64 };
    enter_cache(casting);
    if (bytes > SIZE_MAX - HEAD || need_temporaries(casting) != AMP_OK) return NULL;
    struct amp__block *block = amp__spare_take(&casting->context->spares, HEAD + bytes);
    if (!block) return NULL;
    if (atomic_load_explicit(&casting->context->progress.observing, memory_order_relaxed)) {
        amp__ledger_add(&casting->context->cache.ledger, bytes);
        casting->temporaries->bytes += bytes;
    }
    block->next = casting->temporaries->blocks;
    casting->temporaries->blocks = block;
    return (char *)block + HEAD;
}

float *amp__casting_original(const struct amp__casting *casting, float **field) {
    const struct amp__patched *patched = casting->temporaries ? casting->temporaries->patched : NULL;
    while (patched && patched->field != field) patched = patched->next;
    return patched ? patched->value : *field;
}

amp_status amp__casting_patch(struct amp__casting *casting, float **field, void *value) {
    struct amp__patched *patched = amp__casting_memory(casting, sizeof *patched);
    if (!patched) return amp__fail_memory();
    *patched = (struct amp__patched){ casting->temporaries->patched, field, *field, value };
    casting->temporaries->patched = patched;
    *field = value;
    return AMP_OK;
}

void **amp__casting_array(struct amp__casting *casting, size_t n) {
    void **array = amp__casting_memory(casting, n * sizeof *array);
    if (array) memset(array, 0, n * sizeof *array);
    return array;
}

/* ---- the end ---- */

void amp__casting_abandon(struct amp__casting *casting) {
    if (casting->mark) casting->mark->abandoned = NULL;
    if (casting->temporaries) release_all(casting->temporaries);
    if (casting->entered) amp__cache_leave(&casting->context->cache);
    casting->temporaries = NULL;
    casting->entered = false;
}

void amp__casting_end(struct amp__casting *casting) {
    struct amp__temporaries *temporaries = casting->temporaries;
    if (temporaries && temporaries->taped) {
        for (size_t i = 0; i < temporaries->n; i++) {
            amp__tape_add(casting->context, casting->host, temporaries->handles[i], temporaries->bytes);
            temporaries->bytes = 0; /* the first has the bytes of all, which are released together */
        }
        temporaries->n = 0;
    }
    amp__casting_abandon(casting);
}
