/* SPDX-License-Identifier: Apache-2.0 */
/* The results of an op, cast to the type that the policy wants. */
#include "call/call.h"
#include "call/tape.h"
#include "context/context.h"
#include "context/op.h"
#include "context/report.h"
#include "kernels/device.h"
#include "kernels/round.h"

#include <string.h>

/* ---- handles that the op made: returned, or written into out-parameters ---- */

/* A result before its cast. If the hook throws, it is released here. */
struct uncast {
    const amp_host *host;
    void *owned;
};

static void drop_uncast(const struct uncast *uncast) { amp__host_release(uncast->host, uncast->owned); }

/* *handle is the caller's to release; the cast takes its place, and the original is released or left to the tape. */
static amp_status replace(struct amp__op *op, void **handle, amp_dtype wanted, bool owned) {
    void *output = *handle, *cast;
    if (!output) return AMP_OK;
    const struct amp__ruling ruling = amp__ruling_to(wanted, AMP__UP_TO_FP32);
    const struct amp__operand operand = { amp__host_dtype(op->host, output), false, false };
    if (!amp__needs_cast(&ruling, &operand)) return AMP_OK;
    const bool taped = owned && amp__host_grad_enabled(op->host) && !amp__tape_retains(op->host);
    AMP_CLEANUP(drop_uncast) struct uncast uncast = { op->host, owned ? output : NULL };
    const amp_status status = amp__cast(op->context, op->host, op, output, wanted, taped, &cast);
    uncast.owned = NULL; /* the caller's, cast or not */
    if (status != AMP_OK) return status;
    if (op->context->policy.properties.emulate && amp__is_low(wanted)) amp__count_cast(op, output, cast, wanted);
    if (taped) amp__tape_add(op->context, op->host, output, 0);
    else if (owned) amp__host_release(op->host, output);
    *handle = cast;
    return AMP_OK;
}

/* An op that fails may leave its out-parameters unwritten, and the caller's variables are not to be read then. So the
 * op writes into slots of ours, which hold this address before. */
static char unwritten;

amp_status amp__outputs_enter(struct amp__casting *casting, struct amp__bound *bound, void **pointers) {
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        if (!amp__is_made(arg)) continue;
        void **slots = amp__casting_array(casting, arg->count);
        if (!slots) return amp__fail_memory();
        for (size_t j = 0; j < arg->count; j++) slots[j] = &unwritten;
        pointers[arg->index] = slots;
        bound->argv[arg->index] = &pointers[arg->index];
    }
    return AMP_OK;
}

/* Casts all results. Every handle reaches the caller, cast or not, and the first error is returned. */
amp_status amp__outputs_leave(struct amp__op *op, const struct amp__bound *bound, amp_dtype wanted) {
    const struct amp__call *call = bound->call;
    amp_status status = AMP_OK;
    if (call->schema->ret.kind == AMP__TENSOR) {
        void *output = amp__call_returned(call);
        status = replace(op, &output, wanted, !(op->flags & AMP_OP_RETURN_BORROWED));
        amp__call_return_pointer(call, output);
    }
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        void **ours = amp__is_made(arg) ? *(void **const *)bound->argv[arg->index] : NULL;
        for (size_t j = 0; ours && j < arg->count; j++) {
            if (ours[j] == &unwritten) continue;
            const amp_status one = status == AMP_OK ? replace(op, &ours[j], wanted, true) : AMP_OK;
            arg->handles[j] = ours[j];
            if (one != AMP_OK) status = one;
        }
    }
    return status;
}

/* ---- emulate ---- */

/* FP32 elements in one block, NULL where there are none to see. */
static float *fp32_elements(const amp_host *host, void *tensor, uint64_t *size) {
    amp_tensor_view view;
    memset(&view, 0, sizeof view);
    if (!host->view || host->view(host->self, tensor, &view) != AMP_OK || !view.data) return NULL;
    if (view.device.type > 1 || amp__view_dtype(&view) != AMP_FLOAT32 || amp__view_size(&view, size) != AMP_OK)
        return NULL;
    return amp__view_is_compact(&view) ? amp__view_data(&view) : NULL;
}

void amp__op_add_counts(struct amp__op *op, const struct amp__counts *counts) {
    atomic_fetch_add_explicit(&op->tally.overflowed, counts->overflowed, memory_order_relaxed);
    atomic_fetch_add_explicit(&op->tally.zeroed, counts->zeroed, memory_order_relaxed);
    atomic_fetch_add_explicit(&op->tally.subnormal, counts->subnormal, memory_order_relaxed);
}

void amp__count_cast(struct amp__op *op, void *source, void *cast, amp_dtype low) {
    struct amp__counts counts = { 0 };
    uint64_t before, after;
    if (!amp__is_low(low)) return;
    const float *exact = fp32_elements(op->host, source, &before);
    const float *rounded = exact ? fp32_elements(op->host, cast, &after) : NULL;
    if (!rounded || before != after) return;
    amp__count_widened(&counts, exact, rounded, before, low);
    amp__op_add_counts(op, &counts);
}

/* The same on a device: one launch, and nothing is counted, for that would be to wait. Ops may run on
 * several threads. */
static amp_status round_on_device(amp_context *context, amp_device device, const amp_span *span, amp_dtype low) {
    struct amp__place *place = amp__place_on(&context->devices, device);
    void *stream = NULL;
    if (!place) return AMP_OK;
    AMP_TRY(amp__place_stream(place, &stream));
    const struct amp__list_call call = {
        .kind = AMP__LIST_ROUND, .stream = stream, .n = 1, .spans = { span, span }, .low = low
    };
    amp_device_list **list = &place->queues[AMP__WORK_ROUND].measured; /* not needed otherwise */
    pthread_mutex_lock(&context->lock);
    amp_status status = *list ? AMP_OK : amp_device_list_open(place->device, list);
    if (status == AMP_OK) status = amp__device_run(*list, &call, "rounding the output of an op");
    pthread_mutex_unlock(&context->lock);
    return status;
}

static bool is_on_device(const amp_host *host, void *tensor, amp_device *device, amp_span *span) {
    struct amp__elements now;
    if (!host->view || amp__host_find(host, tensor, "an output", &now) != AMP_OK) return false;
    *device = now.device;
    *span = (amp_span){ now.data, now.size, now.dtype, 0 };
    return amp__is_device(now.device) && now.dtype == AMP_FLOAT32 && !now.strides;
}

/* An output under a handle of the caller's keeps that handle: its elements are rounded where they are. */
void amp__round_handle(struct amp__op *op, void *tensor, amp_dtype low) {
    struct amp__counts counts = { 0 };
    amp_device device;
    amp_span span;
    uint64_t size;
    float *elements = tensor ? fp32_elements(op->host, tensor, &size) : NULL;
    if (!elements && tensor && op->context->devices.n_places && is_on_device(op->host, tensor, &device, &span)) {
        const amp_status status = round_on_device(op->context, device, &span, low);
        if (status != AMP_OK) amp__keep_error(op->context, amp__fail_prefix(status, "op %s: its result", op->name));
        return;
    }
    if (!elements) return;
    amp__round(elements, elements, size, low, &counts);
    amp__op_add_counts(op, &counts);
}

static void round_written(struct amp__op *op, const struct amp__bound *bound, amp_dtype low) {
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        const bool writes = arg->flags & (AMP__WRITE | AMP__READ_WRITE) && !(arg->flags & AMP__OUT_PARAMETER);
        for (size_t j = 0; writes && j < arg->count; j++) amp__round_handle(op, arg->handles[j], low);
    }
}

amp_status amp__outputs_round(struct amp__op *op, const struct amp__bound *bound, amp_dtype low) {
    round_written(op, bound, low);
    const amp_status status = amp__outputs_leave(op, bound, low);
    return status == AMP_OK ? AMP_OK : amp__fail_prefix(status, "op %s: its result", op->name);
}
