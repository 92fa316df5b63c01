/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts of devices in an observed iteration. The host continues meanwhile: it reads them when it knows the decision of
 * the bracket anyway, else at the end of the next bracket, or on request. Calls wait in a list for the counts of their
 * tensors, since the culprit is the first of them.
 */
#include "context/parts.h"
#include "observe/observe.h"

#include <string.h>

/* Of every stream that observed work was on. */
struct amp__counted_stream {
    struct amp__counted_stream *next;
    const struct amp__place *place;
    void *stream;
    struct amp__counts *counts;
};

/* A call with tensors counted by a device. */
struct amp__later_call {
    struct amp__later_call *next;
    size_t first;               /* index of its first pending count */
    struct amp__seen_call seen; /* number 0: it is not over */
};

enum kind { TENSOR, BEFORE_CAST, PARAMETER, UPDATE };

struct amp__pending {
    enum kind kind;
    struct amp__counts *counts;
    size_t slots[3];       /* UPDATE: three, else one */
    struct amp__seen *seen; /* its entry; BEFORE_CAST: NULL */
    bool adds;              /* to the entry; else it is looked at for the call alone */
    struct amp__later_call *call; /* of the first two */
    const char *name;      /* TENSOR: of the argument; */
    bool is_output, may_be_cast;
    const void *handle;    /* the host's */
    const void *memory;
    amp_dtype dtype;
};

/* ---- counting ---- */

/* Of the thread's stream there. NULL: they cannot be had, as while a graph is being captured. */
static struct amp__counts *counts_on(struct amp__observer *observer, struct amp__place *place) {
    void *stream = NULL;
    bool capturing = true;
    if (amp__place_capturing(place, &capturing) != AMP_OK || capturing ||
        amp__place_stream(place, &stream) != AMP_OK)
        return NULL;
    pthread_mutex_lock(observer->lock);
    struct amp__counted_stream *known = observer->later.streams;
    while (known && (known->place != place || known->stream != stream)) known = known->next;
    pthread_mutex_unlock(observer->lock);
    if (known) return known->counts;
    known = amp__alloc(1, sizeof *known);
    if (!known || amp__counts_open(place, stream, &known->counts) != AMP_OK) {
        amp__free(known);
        return NULL;
    }
    known->place = place;
    known->stream = stream;
    pthread_mutex_lock(observer->lock);
    known->next = observer->later.streams;
    observer->later.streams = known;
    pthread_mutex_unlock(observer->lock);
    return known->counts;
}

static uint64_t bytes_of(const struct amp__pending *pending) {
    return sizeof *pending + (pending->kind == UPDATE ? 3 : 1) * sizeof(amp_statistics);
}

/* Where there is room. */
static bool push(struct amp__observer *observer, const struct amp__pending *pending) {
    struct amp__later *later = &observer->later;
    pthread_mutex_lock(observer->lock);
    bool fits = observer->bytes + bytes_of(pending) <= observer->options.max_bytes;
    if (fits && later->n == later->capacity) {
        const size_t capacity = 2 * later->capacity + 64;
        void *grown = amp__grow(later->pending, later->capacity, capacity, sizeof *later->pending);
        fits = grown != NULL;
        if (grown) later->pending = grown, later->capacity = capacity;
    }
    if (fits) {
        later->pending[later->n++] = *pending;
        observer->bytes += bytes_of(pending);
    } else {
        observer->left_out++;
    }
    pthread_mutex_unlock(observer->lock);
    return fits;
}

static struct amp__later_call *call_of(struct amp__observer *observer, struct amp__seen_call *seen) {
    if (seen->later) return seen->later;
    struct amp__later_call *call = amp__alloc(1, sizeof *call);
    if (!call) return NULL;
    pthread_mutex_lock(observer->lock);
    struct amp__later_call **end = &observer->later.calls;
    if (observer->later.last) end = &observer->later.last->next;
    call->first = observer->later.n;
    *end = observer->later.last = call;
    pthread_mutex_unlock(observer->lock);
    return seen->later = call;
}

bool amp__later_tensor(struct amp__seen_call *call, struct amp__place *place, const amp_span *span,
                       struct amp__seen *entry, bool is_output, const void *handle) {
    struct amp__observer *observer = amp__observer_of(call->op->context);
    struct amp__counts *counts = counts_on(observer, place);
    struct amp__pending pending = {
        .kind = TENSOR, .counts = counts, .seen = entry, .name = entry->name, .is_output = is_output,
        .adds = !call->is_cast && observer->options.what & entry->what,
        .call = counts ? call_of(observer, call) : NULL, .may_be_cast = call->may_be_cast, .handle = handle,
        .memory = span->data, .dtype = span->dtype,
    };
    return pending.call && amp__counts_add(counts, span, NULL, 0, &pending.slots[0]) == AMP_OK &&
        push(observer, &pending);
}

/* Reuses the counts of an argument that is not cast. */
void amp__later_before_cast(struct amp__seen_call *call, struct amp__place *place, const amp_span *span,
                            const void *handle) {
    struct amp__observer *observer = amp__observer_of(call->op->context);
    struct amp__pending pending = { .kind = BEFORE_CAST, .call = call->later, .memory = span->data,
                                    .dtype = span->dtype };
    if (!call->later) return; /* nothing of it is to come */
    pthread_mutex_lock(observer->lock);
    for (size_t i = call->later->first; i < observer->later.n && !pending.counts; i++) {
        const struct amp__pending *other = &observer->later.pending[i];
        if (other->call != call->later || other->handle != handle || other->is_output) continue;
        pending.counts = other->counts;
        pending.slots[0] = other->slots[0];
    }
    pthread_mutex_unlock(observer->lock);
    if (!pending.counts) {
        pending.counts = counts_on(observer, place);
        if (!pending.counts || amp__counts_add(pending.counts, span, NULL, 0, &pending.slots[0]) != AMP_OK) return;
    }
    (void)push(observer, &pending);
}

bool amp__later_param(struct amp__observer *observer, const struct amp__param *param, uint32_t what,
                      const amp_span *span, const amp_factor *factors, size_t n_factors) {
    struct amp__counts *counts = counts_on(observer, param->place);
    struct amp__pending pending = { .kind = PARAMETER, .counts = counts, .adds = true, .dtype = span->dtype };
    if (!counts || amp__counts_add(counts, span, factors, n_factors, &pending.slots[0]) != AMP_OK) return false;
    if (n_factors) pending.dtype = AMP_FLOAT32;
    pending.seen = amp__observe_param(observer, param, what);
    return pending.seen && push(observer, &pending);
}

bool amp__later_update(struct amp__observer *observer, const struct amp__param *param, const amp_span *now,
                       const amp_span *before) {
    struct amp__counts *counts = counts_on(observer, param->place);
    struct amp__pending pending = { .kind = UPDATE, .counts = counts, .adds = true, .dtype = AMP_FLOAT32 };
    if (!counts || amp__counts_add_update(counts, now, before, pending.slots) != AMP_OK) return false;
    pending.seen = amp__observe_param(observer, param, AMP_SEE_UPDATES);
    return pending.seen && push(observer, &pending);
}

float *amp__later_copy(struct amp__observer *observer, const struct amp__param *param, const amp_span *weights) {
    amp_span copy = { NULL, weights->size, AMP_FLOAT32, 0 };
    struct amp__counts *counts = counts_on(observer, param->place);
    if (!counts || amp__place_alloc(param->place, copy.size * sizeof(float), &copy.data) != AMP_OK) return NULL;
    if (amp__counts_copy(counts, &copy, weights) == AMP_OK) return copy.data;
    amp__place_free(param->place, copy.data);
    return NULL;
}

void amp__later_call_ended(const struct amp__seen_call *seen) {
    if (seen->later) seen->later->seen = *seen;
}

static void leave_out(struct amp__observer *observer) {
    observer->left_out += observer->later.n;
    amp__later_forget(observer);
}

void amp__later_send(struct amp__observer *observer) {
    amp_status status = AMP_OK;
    for (struct amp__counted_stream *s = observer->later.streams; s && status == AMP_OK; s = s->next)
        status = amp__counts_send(s->counts);
    if (status != AMP_OK) leave_out(observer);
}

/* ---- complete counts ---- */

static void count_lost(struct amp__seen *seen, const struct amp__pending *pending, uint64_t unchanged) {
    for (int i = 0; i < 2; i++)
        seen->lost_last[i] = amp__counts_at(pending->counts, pending->slots[i + 1])->zeros - unchanged;
    seen->lost_fp16 += seen->lost_last[0];
    seen->lost_bf16 += seen->lost_last[1];
}

static void apply(struct amp__observer *observer, const struct amp__pending *pending, bool skipped) {
    const amp_statistics *statistics = amp__counts_at(pending->counts, pending->slots[0]);
    const bool nonfinite = amp__nonfinite(statistics) != 0;
    struct amp__seen *seen = pending->seen;
    struct amp__seen_call *call = pending->call ? &pending->call->seen : NULL;
    switch (pending->kind) {
    case TENSOR:
        call->may_be_cast = pending->may_be_cast;
        amp__observe_remember(call, pending->name, pending->is_output, pending->dtype, statistics, pending->memory);
        break;
    case BEFORE_CAST:
        if (nonfinite) call->came_finite = false, call->got = pending->memory;
        break;
    case PARAMETER:
        if (skipped && seen->what == AMP_SEE_GRADIENTS) return;
        if (nonfinite && seen->what == AMP_SEE_SCALED) amp__observe_suspect(observer, seen->param);
        break;
    case UPDATE:
        count_lost(seen, pending, statistics->zeros);
        break;
    }
    if (pending->adds) amp__observe_add(observer, seen, pending->dtype, statistics);
}

static bool receive(struct amp__observer *observer) {
    amp_status status = AMP_OK;
    for (struct amp__counted_stream *s = observer->later.streams; s && status == AMP_OK; s = s->next)
        status = amp__counts_receive(s->counts);
    return status == AMP_OK;
}

void amp__later_receive(struct amp__observer *observer, bool skipped) {
    struct amp__later *later = &observer->later;
    if (!receive(observer)) {
        leave_out(observer);
        return;
    }
    for (size_t i = 0; i < later->n; i++) apply(observer, &later->pending[i], skipped);
    for (const struct amp__later_call *call = later->calls; call; call = call->next)
        if (call->seen.number) amp__observe_judge(observer, &call->seen);
    amp__later_forget(observer);
}

void amp__later_forget(struct amp__observer *observer) {
    struct amp__later *later = &observer->later;
    while (later->n) observer->bytes -= bytes_of(&later->pending[--later->n]);
    while (later->calls) {
        struct amp__later_call *call = later->calls;
        later->calls = call->next;
        amp__free(call);
    }
    later->last = NULL;
    for (struct amp__counted_stream *s = later->streams; s; s = s->next) amp__counts_clear(s->counts);
}

void amp__later_end(struct amp__observer *observer) {
    struct amp__later *later = &observer->later;
    amp__later_forget(observer);
    while (later->streams) {
        struct amp__counted_stream *s = later->streams;
        later->streams = s->next;
        amp__counts_close(s->counts);
        amp__free(s);
    }
    amp__free(later->pending);
    later->pending = NULL;
}
