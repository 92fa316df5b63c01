/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/place.h"
#include "kernels/device.h"

#include <string.h>

/* ---- memory ---- */

amp_status amp__place_stream(const struct amp__place *place, void **stream) {
    void *now = NULL;
    const amp_status status = place->current_stream(place->self, place->device, &now);
    AMP_RETURN_IF(status != AMP_OK, status < 0 ? status : AMP_ERR_HOST_FAILED,
                  "the host's hook current_stream failed (status %d)", (int)status);
    AMP_RETURN_IF(!now, AMP_ERR_UNSUPPORTED,
                  "the host's hook current_stream returned NULL, CUDA's legacy default stream: make one "
                  "(cudaStreamNonBlocking), or return cudaStreamPerThread");
    *stream = now;
    return AMP_OK;
}

static amp_status run_memory_call(const struct amp__place *place, struct amp__memory_call *call) {
    AMP_TRY(amp__place_stream(place, &call->stream));
    return place->backend->memory_run(place->memory, call);
}

amp_status amp__place_alloc(const struct amp__place *place, uint64_t bytes, void **out) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_ALLOC, .bytes = bytes ? (size_t)bytes : 1 };
    AMP_TRY(run_memory_call(place, &call));
    *out = call.made;
    return AMP_OK;
}

void amp__place_free(const struct amp__place *place, void *memory) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FREE, .dst = memory };
    if (memory && run_memory_call(place, &call) != AMP_OK) return; /* the device is lost, and its memory with it */
}

static amp_status fill_memory(const struct amp__place *place, void *dst, uint64_t bytes, uint8_t value) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FILL, .dst = dst, .bytes = (size_t)bytes, .value = value };
    return bytes ? run_memory_call(place, &call) : AMP_OK;
}

amp_status amp__place_zero(const struct amp__place *place, void *dst, uint64_t bytes) {
    return fill_memory(place, dst, bytes, 0);
}

amp_status amp__place_raise(const struct amp__place *place, float *flag) {
    return fill_memory(place, flag, sizeof *flag, 0x3f); /* each byte: 0.747 */
}

amp_status amp__place_nothing_found(const struct amp__place *place, struct amp__device_scaler *scaler) {
    _Static_assert(AMP__NO_TENSOR == UINT32_MAX, "bytes of 0xff");
    AMP_TRY(fill_memory(place, &scaler->found, sizeof scaler->found, 0));
    return fill_memory(place, &scaler->first, sizeof scaler->first, 0xff);
}

amp_status amp__place_in(const struct amp__place *place, void *dst, const void *src, uint64_t bytes) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_IN, .dst = dst, .src = src, .bytes = (size_t)bytes };
    return bytes ? run_memory_call(place, &call) : AMP_OK;
}

amp_status amp__place_out(const struct amp__place *place, void *dst, const void *src, uint64_t bytes) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_OUT, .dst = dst, .src = src, .bytes = (size_t)bytes };
    return bytes ? run_memory_call(place, &call) : AMP_OK;
}

amp_status amp__place_fetch(const struct amp__place *place, void **copy, const void *src, size_t bytes) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FETCH, .src = src, .bytes = bytes, .made = *copy };
    AMP_TRY(run_memory_call(place, &call));
    *copy = call.made;
    return AMP_OK;
}

amp_status amp__place_arrived(const struct amp__place *place, void *copy, bool *arrived) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_ARRIVED, .made = copy };
    AMP_TRY(run_memory_call(place, &call));
    *arrived = call.arrived;
    return AMP_OK;
}

amp_status amp__place_fetched(const struct amp__place *place, void *copy, void *dst, size_t bytes) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FETCHED, .dst = dst, .bytes = bytes, .made = copy };
    return run_memory_call(place, &call);
}

void amp__place_fetch_free(const struct amp__place *place, void *copy) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FETCH_FREE, .made = copy };
    if (copy) (void)place->backend->memory_run(place->memory, &call);
}

amp_status amp__place_capturing(const struct amp__place *place, bool *capturing) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_CAPTURING };
    AMP_TRY(run_memory_call(place, &call));
    *capturing = call.capturing;
    return AMP_OK;
}

amp_status amp__place_end_bracket(const struct amp__place *place, struct amp__memory_call *call) {
    call->kind = AMP__MEMORY_SCALER;
    return run_memory_call(place, call);
}

amp_status amp__place_norms(struct amp__place *place, size_t n, float **out) {
    const size_t bytes = 2 * n * sizeof **out;
    if (n * sizeof **out > place->norms_bytes) {
        void *made = NULL;
        AMP_TRY(amp__place_alloc(place, bytes, &made));
        place->outgrown[place->n_outgrown++] = place->norms;
        place->norms = made;
        place->norms_bytes = bytes;
    }
    *out = place->norms;
    return AMP_OK;
}

/* ---- collecting ---- */

static amp_status grow_queue(struct amp__place_queue *queue, size_t capacity) {
    amp_span *spans = amp__alloc(3 * capacity, sizeof *spans);
    const void **owners = amp__alloc(capacity, sizeof *owners);
    if (!spans || !owners) {
        amp__free(spans);
        amp__free(owners);
        return amp__fail_memory();
    }
    for (size_t k = 0; k < 3 && queue->n; k++)
        memcpy(spans + k * capacity, queue->dst + k * queue->capacity, queue->n * sizeof *spans);
    if (queue->n) memcpy(owners, queue->owners, queue->n * sizeof *owners);
    amp__free(queue->dst);
    amp__free(queue->owners);
    queue->dst = spans, queue->src = spans + capacity, queue->third = spans + 2 * capacity;
    queue->owners = owners;
    queue->capacity = capacity;
    return AMP_OK;
}

amp_status amp__place_reserve(struct amp__place *place, enum amp__work work, size_t n) {
    struct amp__place_queue *queue = &place->queues[work];
    return n > queue->capacity ? grow_queue(queue, n + queue->capacity) : AMP_OK;
}

static bool is_inspected(enum amp__work work) {
    return work >= AMP__WORK_CHECK && work <= AMP__WORK_ROUND_GRAD;
}

amp_status amp__place_add(struct amp__place *place, enum amp__work work, const void *owner, const amp_span *dst,
                          const amp_span *src, const amp_span *third) {
    struct amp__place_queue *queue = &place->queues[work];
    if (queue->n == queue->capacity) AMP_TRY(grow_queue(queue, 2 * queue->capacity + 16));
    queue->dst[queue->n] = *dst;
    queue->src[queue->n] = src ? *src : *dst;
    queue->third[queue->n] = third ? *third : *dst;
    queue->owners[queue->n++] = owner;
    return AMP_OK;
}

void amp__place_drop(struct amp__place *place) {
    for (int work = 0; work < AMP__WORKS; work++) {
        struct amp__place_queue *queue = &place->queues[work];
        while (queue->n) place->dropped(queue->owners[--queue->n], (enum amp__work)work);
    }
}

amp_status amp__place_set_deferred(struct amp__place *place, const amp_factor *deferred) {
    const amp_factor *now = &place->args.deferred;
    const bool same = now->pointer == deferred->pointer && (now->pointer || now->value == deferred->value);
    if (!same && place->queues[AMP__WORK_UNSCALE].n) AMP_TRY(amp__place_flush(place));
    place->args.deferred = *deferred;
    return AMP_OK;
}

/* ---- launching ---- */

static const amp_factor one = { NULL, 1.0f, AMP_FACTOR_AS_IT_IS };

static void describe_call(const struct amp__place *place, enum amp__work work, struct amp__list_call *call) {
    static const uint8_t kinds[AMP__WORKS] = {
        [AMP__WORK_UNSCALE] = AMP__LIST_SCALE,          [AMP__WORK_FOLLOW] = AMP__LIST_CAST,
        [AMP__WORK_RECONCILE_GRAD] = AMP__LIST_RECONCILE, [AMP__WORK_RECONCILE] = AMP__LIST_RECONCILE,
        [AMP__WORK_SAVE] = AMP__LIST_CAST,              [AMP__WORK_ASIDE] = AMP__LIST_CAST,
        [AMP__WORK_TAKE_BACK] = AMP__LIST_CAST,         [AMP__WORK_ZERO] = AMP__LIST_ZERO,
        [AMP__WORK_CHECK] = AMP__LIST_CHECK,
        [AMP__WORK_SCALE] = AMP__LIST_SCALE,            [AMP__WORK_ADD] = AMP__LIST_ADD,
        [AMP__WORK_MULTIPLY] = AMP__LIST_SCALE,         [AMP__WORK_CLAMP] = AMP__LIST_CLAMP,
        [AMP__WORK_RESTORE] = AMP__LIST_CAST,           [AMP__WORK_SHOW] = AMP__LIST_CAST,
        [AMP__WORK_WRITE_BACK] = AMP__LIST_CAST,        [AMP__WORK_ROUND_GRAD] = AMP__LIST_ROUND,
        [AMP__WORK_ROUND_FIRST] = AMP__LIST_ROUND,      [AMP__WORK_ROUND] = AMP__LIST_ROUND,
        [AMP__WORK_SPLIT] = AMP__LIST_SPLIT,            [AMP__WORK_JOIN] = AMP__LIST_JOIN,
    };
    const struct amp__place_queue *queue = &place->queues[work];
    call->kind = kinds[work];
    call->n = queue->n;
    call->spans[0] = queue->dst;
    call->spans[1] = queue->src;
    call->spans[2] = queue->third;
    call->factors[0] = work == AMP__WORK_UNSCALE ? place->args.deferred : is_inspected(work) ? place->args.inverse
                       : work == AMP__WORK_MULTIPLY || work == AMP__WORK_CLAMP ? place->args.factor : one;
    call->factors[1] = one;
    call->low = place->args.low;
    if (work == AMP__WORK_RESTORE) call->only_if = place->args.restore_if;
    if (!is_inspected(work)) return;
    call->found_inf = place->args.found;
    call->first = place->args.first;
    call->base = (uint32_t)place->n_inspected;
}

static amp_status remember_inspected(struct amp__place *place, const struct amp__place_queue *queue) {
    if (place->n_inspected + queue->n > place->inspected_capacity) {
        const size_t capacity = 2 * (place->n_inspected + queue->n);
        void *grown = amp__grow(place->inspected, place->inspected_capacity, capacity, sizeof *place->inspected);
        if (!grown) return amp__fail_memory();
        place->inspected = grown;
        place->inspected_capacity = capacity;
    }
    memcpy(place->inspected + place->n_inspected, queue->owners, queue->n * sizeof *queue->owners);
    place->n_inspected += queue->n;
    return AMP_OK;
}

/* A gradient of zeros is known by its norm, which the device finds itself. */
static amp_status measure_norms(struct amp__place *place, struct amp__place_queue *queue, struct amp__list_call *call) {
    struct amp__list_call norms = *call;
    AMP_TRY(amp__place_norms(place, queue->n, &norms.norms));
    norms.kind = AMP__LIST_CHECK;
    norms.spans[0] = queue->src;
    call->norms = norms.norms;
    if (!queue->measured) AMP_TRY(amp_device_list_open(place->device, &queue->measured));
    return amp__device_run(queue->measured, &norms, "norms of gradients");
}

static amp_status launch_queue(struct amp__place *place, enum amp__work work, void *stream) {
    struct amp__place_queue *queue = &place->queues[work];
    struct amp__list_call call = { .stream = stream };
    if (!queue->list) AMP_TRY(amp_device_list_open(place->device, &queue->list));
    describe_call(place, work, &call);
    if (is_inspected(work)) AMP_TRY(remember_inspected(place, queue));
    if (work == AMP__WORK_RECONCILE_GRAD) AMP_TRY(measure_norms(place, queue, &call));
    return amp__device_run(queue->list, &call, "a list on the device");
}

amp_status amp__place_flush(struct amp__place *place) {
    void *stream = NULL;
    amp_status status = AMP_OK;
    for (int work = 0; work < AMP__WORKS && status == AMP_OK; work++) {
        if (!place->queues[work].n) continue;
        if (!stream) status = amp__place_stream(place, &stream);
        if (status == AMP_OK) status = launch_queue(place, (enum amp__work)work, stream);
        if (status == AMP_OK) place->queues[work].n = 0;
    }
    if (status != AMP_OK) amp__place_drop(place);
    return status;
}

/* ---- opening and closing ---- */

amp_status amp__place_open(amp_device device, amp_status (*current_stream)(void *, amp_device, void **), void *self,
                           void (*dropped)(const void *owner, enum amp__work work), struct amp__place **out) {
    amp_status status = AMP_OK;
    const struct amp__backend *backend = amp__backend_for(device, &status);
    if (!backend) return status;
    struct amp__place *place = amp__alloc(1, sizeof *place);
    if (!place) return amp__fail_memory();
    *place = (struct amp__place){
        .device = device, .backend = backend, .current_stream = current_stream, .self = self, .dropped = dropped };
    place->args.inverse = place->args.deferred = place->args.factor = one;
    status = backend->memory_open(device.id, &place->memory);
    if (status == AMP_OK) *out = place;
    else amp__free(place);
    return status;
}

void amp__place_close(struct amp__place *place) {
    if (!place) return;
    amp__place_free(place, place->words);
    amp__place_free(place, place->norms);
    while (place->n_outgrown) amp__place_free(place, place->outgrown[--place->n_outgrown]);
    for (int work = 0; work < AMP__WORKS; work++) {
        amp_device_list_close(place->queues[work].list);
        amp_device_list_close(place->queues[work].measured);
        amp__free(place->queues[work].dst);
        amp__free(place->queues[work].owners);
    }
    place->backend->memory_close(place->memory);
    amp__free(place->inspected);
    amp__free(place);
}
