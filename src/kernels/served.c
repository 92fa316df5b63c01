/* SPDX-License-Identifier: Apache-2.0 */
/* amp_serve.h: the host's functions as a backend. */
#include "kernels/served.h"
#include "amp_serve.h"
#include "common/common.h"

#include <stdatomic.h>
#include <stddef.h>

enum { TEXT_SIZE = 800 };

enum { NOT_SERVED, REGISTERING, SERVED };
static _Atomic int32_t state;
static amp_server server; /* does not change once state is SERVED */

/* A list or the memory of a device, for calls of the server. */
struct served {
    int32_t id;
};

static amp_status open_served(int32_t id, void **out) {
    struct served *served = amp__alloc(1, sizeof *served);
    if (!served) return amp__fail_memory();
    served->id = id;
    *out = served;
    return AMP_OK;
}

static void close_served(void *served) { amp__free(served); }

static amp_status report_status(amp_status status, int32_t id, const char *text) {
    AMP_RETURN_IF(status != AMP_OK, status < 0 ? status : AMP_ERR_HOST_FAILED, "the server of device %d failed%s%s",
                  (int)id, *text ? ": " : "", text);
    return AMP_OK;
}

/* ---- lists ---- */

_Static_assert((int)AMP_SERVE_STATISTICS == (int)AMP__LIST_STATISTICS && (int)AMP_SERVE_CAST == (int)AMP__LIST_CAST &&
               (int)AMP_SERVE_OPTIM == (int)AMP__LIST_OPTIM && (int)AMP_SERVE_ADD == (int)AMP__LIST_ADD,
               "one numbering");

static amp_status run_lists(void *list, const struct amp__list_call *call) {
    const int32_t id = ((const struct served *)list)->id;
    char text[TEXT_SIZE] = "";
    AMP_RETURN_IF(call->kind > AMP__LIST_STATISTICS, AMP_ERR_UNSUPPORTED,
                  "split masters and packed tensors need the CPU or the backend cuda (libamp_cuda.so): a served device "
                  "has neither");
    amp_optim_tensors tensors = AMP_OPTIM_TENSORS_INIT;
    if (call->tensors) tensors = *call->tensors;
    AMP_RETURN_IF(tensors.scales[0] || (tensors.flags & AMP_TENSORS_STOCHASTIC), AMP_ERR_UNSUPPORTED,
                  "moments in 8 bits and stochastic rounding need the CPU or the backend cuda (libamp_cuda.so): a "
                  "served device has neither");
    const amp_served_lists served = {
        .struct_size = sizeof served, .kind = call->kind, .id = id, .low = call->low, .stream = call->stream,
        .n = call->n, .spans = { call->spans[0], call->spans[1], call->spans[2] },
        .factors = { call->factors[0], call->factors[1] }, .found_inf = call->found_inf, .first = call->first,
        .base = call->base, .norm = call->norm, .norms = call->norms, .only_if = call->only_if,
        .statistics = call->statistics, .rule = call->rule, .tensors = call->tensors ? &tensors : NULL,
    };
    return call->n ? report_status(server.lists(server.self, &served, text, sizeof text), id, text) : AMP_OK;
}

/* ---- memory ---- */

_Static_assert((int)AMP_SERVE_SCALER == (int)AMP__MEMORY_SCALER && (int)AMP_SERVE_FILL == (int)AMP__MEMORY_FILL &&
               (int)AMP_SERVE_FETCH == (int)AMP__MEMORY_FETCH, "one numbering");
#define SAME(ours, theirs) \
    _Static_assert(offsetof(struct amp__device_scaler, ours) == offsetof(amp_served_scaler, theirs), #theirs)
SAME(state.scale, scale);
SAME(state.next_scale, next_scale);
SAME(state.unskipped, unskipped);
SAME(state.hysteresis_left, hysteresis_left);
SAME(state.skips_in_row, skips_in_row);
SAME(state.clean_run, clean_run);
SAME(gave_up, gave_up);
SAME(ended, ended);
SAME(found, found);
SAME(first, first);
SAME(inverse, inverse);
SAME(left, left);
SAME(found_inf, found_inf);
SAME(scale_before, scale_before);
SAME(action, action);
SAME(given_up, given_up);
SAME(first_nonfinite, first_nonfinite);
SAME(brackets, brackets);
SAME(skipped, skipped);
_Static_assert(sizeof(struct amp__device_scaler) == sizeof(amp_served_scaler), "one structure");

static amp_served_end end_of(const struct amp__memory_call *call) {
    const struct amp__scaler_settings *settings = call->settings;
    return (amp_served_end){
        .scaler = (amp_served_scaler *)(void *)call->scaler, .mode = settings->mode, .dynamic = settings->dynamic,
        .min_scale = settings->min_scale, .max_scale = settings->max_scale, .growth = settings->growth,
        .backoff = settings->backoff, .window = settings->window, .hysteresis = settings->hysteresis,
        .consecutive_hysteresis = settings->consecutive_hysteresis, .check_finite = settings->check_finite,
        .decides = call->decides, .found_elsewhere = call->found_elsewhere, .skips = call->skips,
        .which = call->which, .n = call->n,
    };
}

static amp_status run_memory(void *memory, struct amp__memory_call *call) {
    const int32_t id = ((const struct served *)memory)->id;
    char text[TEXT_SIZE] = "";
    amp_served_end end;
    amp_served_memory served = {
        .struct_size = sizeof served, .kind = call->kind, .id = id, .value = call->value, .stream = call->stream,
        .dst = call->dst, .src = call->src, .bytes = call->bytes, .made = call->made,
    };
    if (call->kind == AMP__MEMORY_SCALER) end = end_of(call), served.end = &end;
    AMP_TRY(report_status(server.memory(server.self, &served, text, sizeof text), id, text));
    call->made = served.made;
    call->arrived = served.arrived != 0;
    call->capturing = served.capturing != 0;
    return AMP_OK;
}

/* ---- the table ---- */

static const struct amp__backend table = {
    .magic = AMP__BACKEND_MAGIC, .abi = AMP__BACKEND_ABI, .name = "served",
    .list_open = open_served, .list_close = close_served, .list_run = run_lists,
    .memory_open = open_served, .memory_close = close_served, .memory_run = run_memory,
};

const struct amp__backend *amp__backend_for(amp_device device, amp_status *status) {
    if (device.type != AMP_DEVICE_SERVED) return amp__backend_get(AMP__BACKEND_cuda, status);
    if (atomic_load_explicit(&state, memory_order_acquire) == SERVED) return &table;
    *status = amp__fail(AMP_ERR_BACKEND, "device type %d, number %d: no server is registered: call amp_serve first",
                        (int)device.type, (int)device.id);
    return NULL;
}

AMP_API amp_status amp_serve(const amp_server *given) {
    amp_server taken = AMP_SERVER_INIT;
    AMP_RETURN_IF(!given, AMP_ERR_INVALID_ARGUMENT, "amp_serve: server is NULL");
    AMP_TRY(amp__copy_struct(&taken, sizeof taken, sizeof taken, given, given->struct_size, "amp_server"));
    AMP_RETURN_IF(!taken.lists || !taken.memory, AMP_ERR_INVALID_ARGUMENT, "amp_serve: %s is NULL",
                  taken.lists ? "memory" : "lists");
    int32_t before = NOT_SERVED;
    AMP_RETURN_IF(!atomic_compare_exchange_strong(&state, &before, REGISTERING), AMP_ERR_CONFLICT,
                  "amp_serve: this process has a server already");
    server = taken;
    atomic_store_explicit(&state, SERVED, memory_order_release);
    return AMP_OK;
}
