/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs and outputs of a call: raw buffers, handles, handles in lists and in structs. */
#include "amp_raw.h"
#include "context/addresses.h"
#include "context/devices.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/visit.h"
#include "observe/observe.h"

#include <string.h>

/* ---- one tensor ---- */

/* Returns true if a cast by libamp may have made this from finite values. It makes infinities of 16 bits, or emulated
 * ones in FP32. The values of the host are read later. */
static bool is_of_a_cast(const struct amp__seen_call *call, amp_dtype dtype, const amp_statistics *s) {
    const struct amp__properties *properties = &amp__policy_of(call->op->context)->properties;
    return call->may_be_cast && !s->nans && (amp__is_low(dtype) || properties->emulate);
}

static void note_nonfinite(struct amp__seen_call *call, bool is_output, amp_dtype dtype, const amp_statistics *s,
                           const void *memory) {
    const bool bad = s->nans || s->plus_infinities;
    if (is_output) {
        call->made_bad |= bad;
        if (!call->made) call->made = memory;
        return;
    }
    call->finite = false;
    call->got_bad |= bad;
    if (!call->got) call->got = memory;
    if (!is_of_a_cast(call, dtype, s)) call->came_finite = false;
}

void amp__observe_remember(struct amp__seen_call *call, const char *name, bool is_output, amp_dtype dtype,
                           const amp_statistics *s, const void *memory) {
    const uint64_t nonfinite = amp__nonfinite(s);
    if (nonfinite) note_nonfinite(call, is_output, dtype, s, memory);
    for (uint32_t i = 0; i < call->n; i++) { /* of a list, or in another field of one name */
        amp_seen_argument *known = &call->arguments[i];
        if (known->is_output != is_output || strcmp(known->name, name) != 0) continue;
        known->elements += s->elements;
        known->nonfinite += nonfinite;
        if (s->largest > known->largest) known->largest = s->largest;
        if (s->least > 0.0 && !(known->least > 0.0 && known->least < s->least)) known->least = s->least;
        return;
    }
    if (call->n == AMP_SEEN_ARGUMENTS) return;
    call->arguments[call->n++] = (amp_seen_argument){ .name = name, .is_output = is_output, .dtype = dtype,
                                                      .elements = s->elements, .nonfinite = nonfinite,
                                                      .largest = s->largest, .least = s->least };
}

/* ---- FP32 at O1 ---- */

static bool is_listed_wide(const struct amp__op *op) { return op->listed == AMP_FP32 || op->listed == AMP_BANNED; }

/* Follows types. Single numbers do not count. Backward is unknown, since its casts are on the tape. */
static void follow(struct amp__seen_call *call, bool is_output, amp_dtype dtype, const void *memory,
                   uint64_t elements) {
    struct amp__observer *observer = amp__observer_of(call->op->context);
    const bool follows = call->op->listed != AMP_LOWER && !is_listed_wide(call->op);
    if (amp__policy_of(call->op->context)->properties.patch_ops) return;
    pthread_mutex_lock(observer->lock);
    if (call->is_cast) call->is_wide = dtype == AMP_FLOAT32;
    else if (call->op->is_backward) call->is_wide = false;
    else if (!is_output && follows && elements > 1)
        call->is_wide |= amp__map_get(&observer->flow, (uintptr_t)memory) == &observer->flow;
    else if (is_listed_wide(call->op)) call->is_wide = true;
    if (is_output) { /* where there is no memory for it, it is not known */
        (void)amp__map_put(&observer->flow, (uintptr_t)memory,
                           call->is_wide ? (void *)&observer->flow : (void *)&observer->made);
        struct amp__seen *entry = amp__map_get(&observer->by_owner, (uintptr_t)call->op);
        for (; entry; entry = entry->sibling) entry->flows |= call->is_wide ? AMP__FLOWS_WIDE : AMP__FLOWS_LOW;
    }
    pthread_mutex_unlock(observer->lock);
}

/* Counted, and in the call's memory. `name` is copied into the entry: the host's own may be of the moment. span: its
 * elements, NULL if they have gaps. */
static void take(struct amp__seen_call *call, const char *name, bool is_output, amp_dtype dtype, const amp_span *span,
                 const amp_statistics *statistics, const void *memory, int64_t odd) {
    struct amp__observer *observer = amp__observer_of(call->op->context);
    const uint32_t what = is_output ? AMP_SEE_OUTPUTS : AMP_SEE_INPUTS;
    if (!statistics->elements) return;
    struct amp__seen *seen = amp__observe_op(observer, call->op, name, what);
    if (!seen) return;
    amp__observe_remember(call, seen->name, is_output, dtype, statistics, memory);
    follow(call, is_output, dtype, memory, statistics->elements);
    if (call->is_cast) return;
    if (observer->options.what & what) amp__observe_add(observer, seen, dtype, statistics);
    if (span) amp__observe_sample(observer, seen, span);
    if (odd) atomic_store_explicit(&seen->odd, odd, memory_order_relaxed);
}

/* Returns a dimension that is no multiple of 8, of matrices or of channels (the second of more dimensions), or 0. */
static int64_t odd_dimension(const int64_t *shape, int32_t ndim) {
    if (ndim > 3) return shape[1] % 8 ? shape[1] : 0;
    for (int32_t i = ndim - 1; ndim > 1 && i >= ndim - 2; i--)
        if (shape[i] % 8) return shape[i];
    return 0;
}

static const char *named(const char *name) { return name && name[0] ? name : "an argument"; }

/* ---- raw buffers ---- */

static void count_rows(const struct amp__observer *observer, const void *data, amp_dtype dtype,
                       const struct amp__extents *extents, amp_statistics *out) {
    const size_t width = amp__dtype_size(dtype);
    const int64_t last = extents->ndim ? extents->shape[extents->ndim - 1] : extents->count;
    const bool gaps = last && extents->row_stride != last;
    const int64_t length = gaps ? last : extents->count, rows = length ? extents->count / length : 0;
    for (int64_t row = 0; row < rows; row++) {
        const amp_span span = { (char *)(uintptr_t)data + (size_t)(row * extents->row_stride) * width * gaps,
                                (uint64_t)length, dtype, 0 };
        (void)amp__observe_count(observer, &span, out);
    }
}

static bool is_here(const amp_context *context, const void *memory) {
    amp_device where;
    return amp__places_where(amp__devices_of(context), memory, &where) == AMP_OK && where.type != AMP__DEVICE_CUDA;
}

static void take_buffer(struct amp__seen_call *call, const struct amp__raw_buffer *buffer, amp_dtype low,
                        bool is_output) {
    const bool substituted = !is_output && buffer->temporary;
    const void *memory = substituted ? buffer->temporary : buffer->host;
    const amp_dtype dtype = substituted && buffer->narrow ? low : AMP_FLOAT32;
    amp_statistics statistics = AMP_STATISTICS_INIT;
    if (!is_here(call->op->context, memory)) return;
    count_rows(amp__observer_of(call->op->context), memory, dtype, &buffer->extents, &statistics);
    const struct amp__extents *e = &buffer->extents;
    const amp_span span = { (void *)(uintptr_t)memory, (uint64_t)e->count, dtype, 0 };
    const bool gaps = e->ndim && e->row_stride != e->shape[e->ndim - 1];
    call->may_be_cast = true;
    take(call, named(buffer->name), is_output, dtype, gaps ? NULL : &span, &statistics, buffer->host,
         odd_dimension(buffer->extents.shape, buffer->extents.ndim));
    call->may_be_cast = false;
    if (is_output && amp__nonfinite(&statistics)) amp__observe_gradient(call->op->context, memory);
}

static bool holds_nonfinite(const struct amp__observer *observer, const void *memory, amp_dtype dtype,
                            const struct amp__extents *extents) {
    amp_statistics s = AMP_STATISTICS_INIT;
    count_rows(observer, memory, dtype, extents, &s);
    return amp__nonfinite(&s) != 0;
}

static void take_buffers(struct amp__seen_call *seen, const struct amp__probed *call, bool outputs) {
    for (size_t i = 0; i < call->n_buffers; i++) {
        const struct amp__raw_buffer *buffer = &call->buffers[i];
        const bool written = buffer->flags & (AMP__WRITE | AMP__READ_WRITE);
        if (buffer->scratch || (outputs ? !written : buffer->flags & AMP__WRITE)) continue;
        take_buffer(seen, buffer, call->low, outputs);
    }
    /* was it the cast? */
    for (size_t i = 0; !outputs && !seen->finite && seen->came_finite && i < call->n_buffers; i++) {
        const struct amp__raw_buffer *buffer = &call->buffers[i];
        if (!(buffer->flags & AMP__WRITE) && !buffer->scratch && is_here(call->op->context, buffer->host) &&
            holds_nonfinite(amp__observer_of(call->op->context), buffer->host, AMP_FLOAT32, &buffer->extents))
            seen->came_finite = false;
    }
}

/* ---- handles ---- */

/* A compact one on a device, which counts it itself, else place is NULL, and statistics are here. */
struct counted {
    struct amp__elements elements;
    struct amp__place *place;
    amp_statistics statistics;
};

/* Strided ones are gathered here. */
static bool gather(const struct amp__observer *observer, struct amp__place *place, const struct amp__elements *elements,
                   amp_statistics *out) {
    struct amp__elements now = *elements;
    const uint64_t reach = amp__strides_reach(&now) * amp__dtype_size(now.dtype);
    const void *memory = now.data;
    void *copy = NULL;
    if (amp__strides_negative(&now) ? place != NULL : !amp__observe_reach(place, &memory, reach, &copy)) return false;
    now.data = (void *)(uintptr_t)memory;
    void *compact = amp__alloc((size_t)now.size, amp__dtype_size(now.dtype));
    if (compact) amp__strides_gather(compact, &now);
    const amp_span span = { compact, now.size, now.dtype, 0 };
    const bool counted = compact && amp__observe_count(observer, &span, out) == AMP_OK;
    amp__free(compact);
    amp__free(copy);
    return counted;
}

static amp_span span_of(const struct amp__elements *elements) {
    return (amp_span){ elements->data, elements->size, elements->dtype, 0 };
}

/* False: they cannot be seen. */
static bool count_handle(const struct amp__op *op, void *handle, const char *name, struct counted *counted) {
    struct amp__elements *now = &counted->elements;
    struct amp__place *place;
    counted->place = NULL;
    counted->statistics = (amp_statistics)AMP_STATISTICS_INIT;
    if (!handle || !op->host->view || amp__host_find(op->host, handle, name, now) != AMP_OK || !now->size ||
        !amp__observe_find(op->context, now->device, now->data, &place))
        return false;
    const struct amp__observer *observer = amp__observer_of(op->context);
    if (now->strides) return gather(observer, place, now, &counted->statistics);
    counted->place = place;
    const amp_span span = span_of(now);
    return place || amp__observe_count(observer, &span, &counted->statistics) == AMP_OK;
}

static void take_later(struct amp__seen_call *call, struct amp__place *place, const amp_span *span, const char *name,
                       bool is_output, const void *handle, int64_t odd) {
    struct amp__seen *entry =
        amp__observe_op(amp__observer_of(call->op->context), call->op, name,
                        is_output ? AMP_SEE_OUTPUTS : AMP_SEE_INPUTS);
    if (entry) follow(call, is_output, span->dtype, span->data, span->size);
    if (entry && amp__later_tensor(call, place, span, entry, is_output, handle) && odd)
        atomic_store_explicit(&entry->odd, odd, memory_order_relaxed);
}

void amp__observe_handle(struct amp__seen_call *call, void *handle, const char *name, bool is_output) {
    struct counted counted;
    const struct amp__elements *elements = &counted.elements;
    if (!count_handle(call->op, handle, named(name), &counted)) return;
    const amp_span span = span_of(elements);
    const int64_t odd = odd_dimension(elements->shape, elements->ndim);
    if (counted.place) take_later(call, counted.place, &span, named(name), is_output, handle, odd);
    else
        take(call, named(name), is_output, elements->dtype, elements->strides ? NULL : &span, &counted.statistics,
             elements->data, odd);
}

void amp__observe_span(struct amp__seen_call *call, const amp_span *span, const char *name, bool is_output) {
    amp_statistics statistics = AMP_STATISTICS_INIT;
    struct amp__place *place;
    const amp_device cpu = { AMP__DEVICE_CPU, 0 };
    if (!span->data || !amp__observe_find(call->op->context, cpu, span->data, &place)) return;
    if (place) take_later(call, place, span, name, is_output, span->data, 0);
    else if (amp__observe_count(amp__observer_of(call->op->context), span, &statistics) == AMP_OK)
        take(call, name, is_output, span->dtype, span, &statistics, span->data, 0);
}

/* As the op gets them. */
static void take_inputs(struct amp__seen_call *seen, const struct amp__bound *bound) {
    seen->may_be_cast = true;
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        if (arg->flags & AMP__WRITE) continue;
        void *const *handles = amp__bound_shown(bound, arg);
        for (size_t j = 0; j < arg->count; j++) amp__observe_handle(seen, handles[j], arg->name, false);
    }
    seen->may_be_cast = false;
}

/* As the host gets them. */
static void take_outputs(struct amp__seen_call *seen, const struct amp__bound *bound) {
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        if (!(arg->flags & (AMP__WRITE | AMP__READ_WRITE))) continue;
        for (size_t j = 0; j < arg->count; j++) amp__observe_handle(seen, arg->handles[j], arg->name, true);
    }
}

/* ---- numbers by value: an epsilon, a slope ---- */

static void take_number(struct amp__seen_call *seen, const struct amp__arg *arg, const void *value) {
    struct amp__observer *observer = amp__observer_of(seen->op->context);
    if (arg->kind != AMP__FLOAT && arg->kind != AMP__DOUBLE) return;
    const amp_dtype dtype = arg->kind == AMP__FLOAT ? AMP_FLOAT32 : AMP_FLOAT64;
    const amp_span span = { (void *)(uintptr_t)value, 1, dtype, 0 };
    amp_statistics statistics = AMP_STATISTICS_INIT;
    if (!(observer->options.what & AMP_SEE_INPUTS)) return;
    (void)amp__observe_count(observer, &span, &statistics);
    struct amp__seen *entry = amp__observe_op(observer, seen->op, named(arg->name), AMP_SEE_INPUTS);
    if (entry) amp__observe_add(observer, entry, dtype, &statistics);
}

/* ---- handles in structs: as the host has them ---- */

struct fields {
    struct amp__seen_call *call;
    bool outputs;
};

static amp_status take_field(void *user, const amp_field *field) {
    const struct fields *fields = user;
    const bool written = field->role == AMP_ROLE_WRITE || field->role == AMP_ROLE_UPDATE;
    const bool wanted = fields->outputs ? written : field->role == AMP_ROLE_READ || field->role == AMP_ROLE_UPDATE;
    if (field->tensor && wanted) amp__observe_handle(fields->call, *field->tensor, field->name, fields->outputs);
    return AMP_OK;
}

static void take_fields(struct amp__seen_call *seen, struct amp__op *op, const struct amp__bound *bound, bool outputs) {
    struct fields fields = { seen, outputs };
    if (!amp__visits(op) || !op->host->view) return;
    const amp_status status = amp__visit(op, bound->call->args, take_field, &fields);
    (void)status;
}

/* ---- a call ---- */

static void note_uses(const struct amp__seen_call *seen, const struct amp__probed *call) {
    const struct amp__bound *bound = call->bound;
    const amp_context *context = seen->op->context;
    const struct amp__addresses *addresses = amp__addresses_of(context);
    uint64_t offset;
    for (size_t i = 0; i < call->n_buffers; i++)
        amp__observe_use(seen, amp__param_at(addresses, call->buffers[i].host, &offset));
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        for (size_t j = 0; amp__may_cast(arg->flags) && j < arg->count; j++) {
            void *handle = arg->handles[j];
            if (handle) amp__observe_use(seen, amp__param_find(amp__params_of(context), seen->op->host, handle));
        }
    }
}

bool amp__observe_wants_op(const struct amp__op *op) {
    const struct amp__observer *observer = amp__observer_of(op->context);
    return amp__observe_wants(observer, AMP_SEE_INPUTS, op->name) ||
           amp__observe_wants(observer, AMP_SEE_OUTPUTS, op->name);
}

static void look_before_cast(struct amp__seen_call *seen, void *handle) {
    struct counted counted;
    if (!count_handle(seen->op, handle, "an argument", &counted)) return;
    const amp_span span = span_of(&counted.elements);
    if (counted.place) amp__later_before_cast(seen, counted.place, &span, handle);
    else if (!seen->finite && amp__nonfinite(&counted.statistics)) seen->came_finite = false, seen->got = span.data;
}

/* Did it come finite, where a handle was cast? */
static void look_before_casts(struct amp__seen_call *seen, const struct amp__bound *bound) {
    if (seen->finite && !seen->later) return;
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        for (size_t j = 0; amp__may_cast(arg->flags) && j < arg->count; j++) look_before_cast(seen, arg->handles[j]);
    }
}

void amp__seen_begin(struct amp__seen_call *seen, struct amp__op *op) {
    seen->op = op;
    seen->number = 0;
    seen->n = 0;
    seen->later = NULL;
    seen->finite = seen->came_finite = true;
    seen->is_wide = seen->is_cast = seen->may_be_cast = seen->got_bad = seen->made_bad = false;
    seen->got = seen->made = NULL;
}

_Static_assert(sizeof(struct amp__seen_call) <= AMP__PROBE_ROOM, "room of a call");

static amp_status enter(const struct amp__probed *call, enum amp__side side, void *room) {
    const struct amp__schema *schema = call->bound->call->schema;
    struct amp__seen_call *seen = room;
    struct amp__op *op = call->op;
    if (side == AMP__HOST_SIDE) return AMP_OK;
    amp__seen_begin(seen, op);
    if (!amp__observe_wants_op(op) || !amp__observe_trains(op->context, op->host)) return AMP_OK;
    seen->number = 1;
    note_uses(seen, call);
    take_buffers(seen, call, false);
    take_inputs(seen, call->bound);
    for (uint8_t i = 0; i < schema->n_numbers; i++)
        take_number(seen, &schema->args[schema->numbers[i]], call->bound->argv[schema->numbers[i]]);
    take_fields(seen, op, call->bound, false);
    look_before_casts(seen, call->bound);
    return AMP_OK;
}

static void leave(const struct amp__probed *call, enum amp__side side, void *room) {
    const struct amp__call *made = call->bound->call;
    const struct amp__arg *ret = &made->schema->ret;
    struct amp__seen_call *seen = room;
    if (side == AMP__OP_SIDE || !seen->number) return;
    take_buffers(seen, call, true);
    take_outputs(seen, call->bound);
    if (ret->kind == AMP__TENSOR && !(ret->flags & AMP__READ_WRITE))
        amp__observe_handle(seen, amp__call_returned(made), "return", true);
    take_fields(seen, call->op, call->bound, true);
    amp__observe_call(call->op->context, seen);
}

const struct amp__probe amp__observe_probe = { .enter = enter, .leave = leave };
