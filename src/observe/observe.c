/* SPDX-License-Identifier: Apache-2.0 */
/* amp_observe: options and results. */
#include "context/context.h"
#include "context/live.h"
#include "observe/observe.h"

#include <fnmatch.h>
#include <string.h>

/* ---- begin and end ---- */

void amp__observe_ops(amp_context *context) {
    const struct amp__probe *probe = amp__observing(context) ? &amp__observe_probe : NULL;
    for (size_t i = 0; i < context->models.n; i++)
        for (size_t j = 0; j < context->models.list[i].n_ops; j++)
            amp__op_put_probe(&context->models.list[i].ops[j], AMP__PROBE_OBSERVE, probe);
}

void amp__observe_set(amp_context *context, bool observing) {
    if (amp__observing(context) == observing) return;
    atomic_store_explicit(&context->progress.observing, observing, memory_order_relaxed);
    amp__observe_ops(context);
}

void amp__observe_free(amp_context *context) {
    struct amp__observer *observer = context->observer;
    if (!observer) return;
    amp__observe_set(context, false);
    amp__observe_collect(context);
    context->observer = NULL;
    amp__observe_forget_before(observer);
    amp__later_end(observer);
    amp__decision_end(observer);
    while (observer->first) {
        struct amp__seen *seen = observer->first;
        observer->first = seen->next;
        amp__free(seen);
    }
    amp__survey_free(observer->survey);
    amp__free(observer->uses);
    amp__free(observer->skips_known);
    amp__map_free(&observer->by_owner);
    amp__map_free(&observer->flow);
    amp__observe_free_told(observer);
    amp__observe_free_options(&observer->options);
    amp__free(observer);
}

static amp_status begin(amp_context *context, const amp_observe_options *given) {
    struct amp__observer *observer = amp__alloc(1, sizeof *observer);
    if (!observer) return amp__fail_memory();
    observer->skips_known = amp__alloc(context->policy.properties.num_losses, sizeof *observer->skips_known);
    const amp_status status =
        observer->skips_known ? amp__observe_resolve(given, &observer->options) : amp__fail_memory();
    if (status != AMP_OK) {
        amp__free(observer->skips_known);
        amp__free(observer);
        return status;
    }
    observer->lock = &context->lock;
    observer->end = &observer->first;
    observer->observed = 1;
    amp__observe_free(context);
    context->observer = observer;
    amp__observe_set(context, true);
    return AMP_OK;
}

static amp_status check(amp_context *context, const char *who) {
    AMP_RETURN_IF(!context || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "%s: there is no such context: was it shut down?", who);
    AMP_RETURN_IF(atomic_load(&context->progress.open), AMP_ERR_WRONG_STATE,
                  "%s while a bracket is open: call it before "
                  "amp_scale_loss_begin or after amp_scale_loss_end", who);
    return AMP_OK;
}

AMP_API amp_status amp_observe(amp_context *context, const amp_observe_options *options) {
    AMP_TRY(check(context, "amp_observe"));
    return context->policy.properties.enabled ? begin(context, options) : AMP_OK;
}

amp_status amp__observe_as_asked(amp_context *context) {
    amp_observe_options options;
    bool asked;
    AMP_TRY(amp__observe_environment(&options, &asked));
    if (!asked) return AMP_OK;
    const amp_status status = context->policy.properties.enabled ? begin(context, &options) : AMP_OK;
    amp__observe_free_options(&options);
    return status;
}

AMP_API amp_status amp_observe_stop(amp_context *context) {
    AMP_TRY(check(context, "amp_observe_stop"));
    amp__observe_free(context);
    return AMP_OK;
}

/* ---- iterations ---- */

static void forget_calls(struct amp__observer *observer) {
    observer->calls = 0;
    observer->n_trails = observer->n_roots = 0;
    amp__map_free(&observer->flow);
    for (int i = 0; i < AMP__SUSPECTS; i++) observer->suspects[i].at = 0;
    observer->suspect_param = NULL;
    observer->suspect_written = false;
    amp__observe_forget_uses(observer);
}

void amp__observe_collect(amp_context *context) {
    struct amp__observer *observer = context->observer;
    if (!observer || !(observer->due.bracket || observer->due.updates)) return;
    amp__decision_wait(observer);
    const struct amp__due due = observer->due;
    observer->due = (struct amp__due){ 0 };
    if (due.decided.skips) amp__observe_forget_before(observer);
    amp__later_receive(observer, due.decided.skips);
    if (due.updates) amp__observe_tell(context, due.updates_of, AMP_SEE_UPDATES);
    if (!due.bracket) return;
    amp__survey_decided(context, due.decided.skips);
    amp__observe_tell(context, due.number, ~(uint32_t)AMP_SEE_UPDATES);
    amp__observe_tell_memory(context, due.number);
    const struct amp__param *weight = amp__observe_bad_weight(context, due.decided.number, true);
    /* gradients that were not finite and stepped on have a culprit too */
    if (due.decided.overflowed || observer->suspect_param)
        amp__observe_accuse(context, &due.decided, due.number, weight);
    forget_calls(observer);
}

void amp__observe_next(amp_context *context) {
    struct amp__observer *observer = context->observer;
    const amp_observe_options *options = &observer->options;
    observer->iterations++;
    observer->seen_iterations += amp__observing(context);
    const bool next = observer->iterations < options->first || observer->iterations % options->every == 0 ||
                      observer->armed;
    if (next) amp__observe_collect(context); /* before the next iteration is counted */
    if (observer->armed) observer->armed--;
    observer->observed += next;
    if (!observer->due.bracket) forget_calls(observer);
    amp__observe_set(context, next);
}

/* ---- entries ---- */

bool amp__observe_wants(const struct amp__observer *observer, uint32_t what, const char *name) {
    if (!(observer->options.what & what)) return false;
    for (uint32_t i = 0; i < observer->options.n_names; i++)
        if (fnmatch(observer->options.names[i], name, 0) == 0) return true;
    return !observer->options.n_names;
}

/* Where there is room. */
static struct amp__seen *new_entry(struct amp__observer *observer, const void *owner, const char *name,
                                   struct amp__seen *sibling) {
    const size_t length = strlen(name) + 1, bytes = sizeof(struct amp__seen) + length;
    if (observer->bytes + bytes > observer->options.max_bytes) return NULL;
    struct amp__seen *seen = amp__alloc(1, bytes);
    if (!seen || amp__map_put(&observer->by_owner, (uintptr_t)owner, seen) != AMP_OK) {
        amp__free(seen);
        return NULL;
    }
    seen->name = memcpy(seen + 1, name, length);
    seen->sibling = sibling;
    seen->last = seen->total = (amp_statistics)AMP_STATISTICS_INIT;
    observer->bytes += bytes;
    *observer->end = seen;
    observer->end = &seen->next;
    return seen;
}

/* Inputs before outputs, both in the order of the op's arguments. Fields and reported values, which no schema names,
 * come behind them, in the order in which they were first seen. */
static uint64_t rank_of(const struct amp__op *op, const char *name, uint32_t what, uint32_t number) {
    const uint64_t position = op->schema ? amp__arg_position(op->schema, name) : 0;
    return (uint64_t)what << 48 | position << 32 | number;
}

/* Under the lock. */
static struct amp__seen *entry(struct amp__observer *observer, const struct amp__op *op, const char *name,
                               uint32_t what, const void *owner) {
    struct amp__seen *first = amp__map_get(&observer->by_owner, (uintptr_t)owner), *seen = first;
    while (seen && (seen->what != what || strcmp(seen->name, name) != 0)) seen = seen->sibling;
    if (seen) return seen;
    seen = new_entry(observer, owner, name, first);
    if (!seen) {
        observer->left_out++;
        return NULL;
    }
    seen->op = op;
    seen->param = op ? NULL : owner;
    seen->what = what;
    seen->rank = op ? rank_of(op, name, what, first ? (uint32_t)first->rank + 1 : 0) : 0;
    return seen;
}

struct amp__seen *amp__observe_op(struct amp__observer *observer, const struct amp__op *op, const char *name,
                                  uint32_t what) {
    pthread_mutex_lock(observer->lock);
    struct amp__seen *seen = entry(observer, op, name, what, op);
    pthread_mutex_unlock(observer->lock);
    return seen;
}

struct amp__seen *amp__observe_param(struct amp__observer *observer, const struct amp__param *param, uint32_t what) {
    pthread_mutex_lock(observer->lock);
    struct amp__seen *seen = entry(observer, NULL, param->name, what, param);
    pthread_mutex_unlock(observer->lock);
    return seen;
}

/* A new iteration of it begins: the last one's losses in FP8 are added up, at its own scale. */
static void begin_next(struct amp__observer *observer, struct amp__seen *seen) {
    if (amp__fp8_casts(seen))
        for (int kind = 0; kind < AMP__FP8S; kind++)
            amp__fp8_total(seen, (enum amp__fp8)kind, &seen->fp8_before[kind]);
    seen->iteration = observer->observed;
    seen->iterations++;
    seen->tensors = 0;
    seen->blocks_last = (struct amp__fp8_blocks){ 0 };
    seen->last = (amp_statistics)AMP_STATISTICS_INIT;
}

void amp__observe_add(struct amp__observer *observer, struct amp__seen *seen, amp_dtype dtype,
                      const amp_statistics *statistics) {
    pthread_mutex_lock(observer->lock);
    if (seen->iteration != observer->observed) begin_next(observer, seen);
    seen->tensors++;
    seen->dtype = dtype;
    const amp_status last = amp_statistics_merge(&seen->last, statistics);
    const amp_status total = amp_statistics_merge(&seen->total, statistics);
    (void)last, (void)total;
    pthread_mutex_unlock(observer->lock);
}

void amp__observe_sample(struct amp__observer *observer, struct amp__seen *seen, const amp_span *span) {
    if (!amp__fp8_casts(seen) || seen->iteration != observer->observed) return;
    struct amp__fp8_blocks blocks = { 0 };
    amp__fp8_sample(span, observer->observed, &blocks);
    pthread_mutex_lock(observer->lock);
    amp__fp8_add(&seen->blocks_last, &blocks);
    amp__fp8_add(&seen->blocks, &blocks);
    pthread_mutex_unlock(observer->lock);
}

/* ---- lists of them ---- */

struct listing {
    char *at;
    uint32_t stride;
    size_t capacity, count;
};

static void list(struct listing *listing, const struct amp__seen *seen) {
    if (!seen->iterations) return; /* known by its name alone */
    const amp_observation filled = {
        .struct_size = listing->stride, .what = seen->what, .op = seen->op ? seen->op->name : NULL,
        .index = seen->op ? seen->op->index : 0, .dtype = seen->dtype, .name = seen->name,
        .iterations = seen->iterations, .lost_fp16 = seen->lost_fp16, .lost_bf16 = seen->lost_bf16,
        .last = &seen->last, .total = &seen->total,
    };
    if (listing->count < listing->capacity)
        memcpy(listing->at + listing->count * listing->stride, &filled, sizeof filled);
    listing->count++;
}

/* Returns the next of an op, given the newest of them, or NULL. */
static const struct amp__seen *behind(const struct amp__seen *newest, uint64_t rank) {
    const struct amp__seen *next = NULL;
    for (; newest; newest = newest->sibling)
        if (newest->rank > rank && (!next || newest->rank < next->rank)) next = newest;
    return next;
}

AMP_API amp_status amp_get_observations(amp_context *context, amp_observation *observations, size_t capacity,
                                        size_t *count) {
    AMP_RETURN_IF(!context || !count || (capacity && !observations), AMP_ERR_INVALID_ARGUMENT,
                  "amp_get_observations: an argument is NULL");
    if (capacity)
        AMP_TRY(amp__check_struct(observations->struct_size, sizeof *observations, "amp_observation"));
    struct listing listing = { (char *)observations, capacity ? observations->struct_size : 0, capacity, 0 };
    struct amp__observer *observer = context->observer;
    *count = 0;
    if (!observer) return AMP_OK;
    amp__observe_collect(context);
    pthread_mutex_lock(&context->lock);
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next) {
        if (!seen->op || seen->sibling) continue; /* the oldest one of an op stands for all */
        const struct amp__seen *newest = amp__map_get(&observer->by_owner, (uintptr_t)seen->op), *s = NULL;
        while ((s = behind(newest, s ? s->rank : 0))) list(&listing, s);
    }
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next)
        if (!seen->op) list(&listing, seen);
    pthread_mutex_unlock(&context->lock);
    *count = listing.count;
    return AMP_OK;
}
