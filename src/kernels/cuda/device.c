/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call: its plan is made, or found unchanged on the device, and kernels are launched on the stream of the caller.
 * Nothing waits. The current device of the caller and its last CUDA error stay unchanged.
 */
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/statistics.h"

#include <stdio.h>
#include <stdlib.h>

static const struct amp__backend_host *amp;

/* ---- errors ---- */

amp_status cuda_explain(cudaError_t error) {
    char text[300];
    if (error == cudaSuccess) return AMP_OK;
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) return amp->fail(AMP_ERR_NO_MEMORY, "CUDA: out of memory");
    if (error == cudaErrorStreamCaptureUnsupported)
        return amp->fail(AMP_ERR_WRONG_STATE, "while the stream is being captured in a graph nothing can be copied "
                                              "between the CPU's memory and the device's");
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        return amp->fail(AMP_ERR_NO_DEVICE, "libamp_cuda.so has no code for this GPU: build it with the GPU's compute "
                                            "capability in Meson's option gpu_archs");
    }
    if (error == cudaErrorUnsupportedPtxVersion || error == cudaErrorJitCompilerNotFound ||
        error == cudaErrorJitCompilationDisabled) {
        return amp->fail(AMP_ERR_NO_DEVICE, "libamp_cuda.so has only PTX for this GPU, which the driver does not "
                                            "compile: build it with the GPU's compute capability in Meson's option "
                                            "gpu_archs, or install a newer driver");
    }
    snprintf(text, sizeof text,
             "CUDA: %s (%s). It may come from earlier work on this device: compute-sanitizer, or "
             "CUDA_LAUNCH_BLOCKING=1, shows which",
             cudaGetErrorString(error), cudaGetErrorName(error));
    return amp->fail(AMP_ERR_BACKEND, text);
}

amp_status cuda_fail(amp_status status, const char *text) { return amp->fail(status, text); }

static amp_status explain_plan(const struct cuda_plan_error *error) {
    char text[200];
    if (error->status == AMP_ERR_INVALID_ARGUMENT)
        snprintf(text, sizeof text, "tensor %zu of list %zu (in the order of the arguments) %s", error->tensor,
                 error->span, error->text);
    else snprintf(text, sizeof text, "%s", error->text);
    return amp->fail(error->status, text);
}

/* ---- the driver ---- */

/* cuCtxGetCurrent and cuCtxSetCurrent; 0 is success. */
static int (*get_context)(void **context), (*set_context)(void *context);

/* The plugin is not linked with the driver, so that it loads where there is none. */
static cudaError_t ask_driver(const char *name, void *function) {
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, function, 4000, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &result);
#endif
    return error == cudaSuccess && result != cudaDriverEntryPointSuccess ? cudaErrorSymbolNotFound : error;
}

amp_status cuda_device_init(const struct amp__backend_host *host) {
    amp = host;
    TRY(cuda_explain(ask_driver("cuCtxGetCurrent", &get_context)));
    return cuda_explain(ask_driver("cuCtxSetCurrent", &set_context));
}

/* ---- lists ---- */

amp_status cuda_check_device(int device) {
    int count = 0;
    char text[120];
    TRY(cuda_explain(cudaGetDeviceCount(&count)));
    if (device >= 0 && device < count) return AMP_OK;
    snprintf(text, sizeof text, "there is no CUDA device %d: this process sees %d, from 0 on", device, count);
    return amp->fail(AMP_ERR_NO_DEVICE, text);
}

amp_status cuda_where(const void *address, amp_device *device) {
    struct cudaPointerAttributes attributes = { .type = cudaMemoryTypeUnregistered };
    /* a device is lost: the CPU's memory works on */
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
        (void)cudaGetLastError();
        attributes.type = cudaMemoryTypeUnregistered;
    }
    *device = attributes.type == cudaMemoryTypeDevice ? (amp_device){ 2, attributes.device } : (amp_device){ 1, 0 };
    return AMP_OK;
}

cudaError_t cuda_make_current(int device) {
    void *context = NULL;
    int now = -1;
    const bool bound = get_context(&context) == 0 && context;
    return bound && cudaGetDevice(&now) == cudaSuccess && now == device ? cudaSuccess : cudaSetDevice(device);
}

amp_status cuda_visit_begin(struct cuda_visit *visit) {
    visit->known = get_context(&visit->context) == 0;
    visit->mode = cudaStreamCaptureModeRelaxed;
    visit->relaxed = cudaThreadExchangeStreamCaptureMode(&visit->mode) == cudaSuccess;
    return cuda_explain(visit->known ? cudaSuccess : cudaErrorInitializationError);
}

void cuda_visit_end(struct cuda_visit *visit) {
    if (visit->relaxed) (void)cudaThreadExchangeStreamCaptureMode(&visit->mode);
    void *now = NULL;
    if (visit->known && (get_context(&now) != 0 || now != visit->context)) (void)set_context(visit->context);
}

static amp_status open_list(struct cuda_list *list, int device) {
    TRY(cuda_check_device(device));
    TRY(cuda_explain(cuda_make_current(device)));
    list->device = device;
    return cuda_explain(cuda_memory_open(&list->memory, device));
}

amp_status cuda_list_open(int32_t id, void **out) {
    struct cuda_visit visit;
    struct cuda_list *list = calloc(1, sizeof *list);
    if (!list) return amp->fail(AMP_ERR_NO_MEMORY, "out of memory");
    amp_status status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = open_list(list, id);
    cuda_visit_end(&visit);
    if (status != AMP_OK) free(list);
    else *out = list;
    return status;
}

/* cudaFree waits for nothing where memory was allocated in a stream's order. */
void cuda_list_close(void *given) {
    struct cuda_list *list = given;
    struct cuda_visit visit;
    (void)cuda_visit_begin(&visit);
    (void)cuda_make_current(list->device);
    if (list->last) (void)cudaStreamSynchronize(list->last);
    for (int i = 0; i < CUDA_PLANS; i++) {
        cuda_plan_free(&list->plans[i]);
        cuda_room_close(&list->tables[i]);
    }
    cuda_room_close(&list->scratch);
    cuda_room_close(&list->product);
    cuda_memory_close(&list->memory);
    cuda_visit_end(&visit);
    free(list);
}

/* A plan that did not reach the device is none. */
amp_status cuda_use_plan(const struct cuda_run *run, int index, const amp_span *const spans[], uint32_t n_spans,
                         size_t n, struct cuda_table *table) {
    struct cuda_list *list = run->list;
    struct cuda_plan *plan = &list->plans[index];
    struct cuda_room *room = &list->tables[index];
    struct cuda_plan_error error;
    bool changed, fresh;
    if (!cuda_plan_update(plan, spans, n_spans, n, &changed, &error)) return explain_plan(&error);
    cudaError_t failed = cuda_room_fit(&list->memory, room, plan->bytes, changed, run->capturing, run->stream, &fresh);
    if (failed == cudaSuccess && (changed || fresh))
        failed = cuda_room_write(&list->memory, room, plan->table, plan->bytes, run->capturing, run->stream);
    if (failed != cudaSuccess) cuda_plan_free(plan);
    else *table = cuda_plan_table(plan, room->memory);
    return cuda_explain(failed);
}

amp_status cuda_use_scratch(const struct cuda_run *run, size_t bytes, unsigned char **scratch) {
    struct cuda_room *room = &run->list->scratch;
    bool fresh;
    TRY(cuda_explain(cuda_room_fit(&run->list->memory, room, bytes, false, run->capturing, run->stream, &fresh)));
    *scratch = room->memory;
    if (!fresh) return AMP_OK;
    const cudaError_t error = cuda_room_zero(&run->list->memory, room, CUDA_TICKET_BYTES, run->capturing, run->stream);
    if (error != cudaSuccess) cuda_room_close(room);
    return cuda_explain(error);
}

/* ---- calls ---- */

static struct cuda_factor factor_of(const amp_factor *given) {
    return (struct cuda_factor){ given->pointer, given->value, (uint32_t)given->how };
}

static struct cuda_found found_of(const struct amp__list_call *call) {
    return (struct cuda_found){ call->found_inf, call->first, call->base };
}

static amp_status run_check(const struct cuda_run *run, const struct amp__list_call *call) {
    const struct cuda_factor scale = factor_of(&call->factors[0]), factor = factor_of(&call->factors[1]);
    const struct cuda_found found = found_of(call);
    struct cuda_table table;
    unsigned char *scratch;
    TRY(cuda_use_plan(run, CUDA_PLAN_CALL, call->spans, 1, call->n, &table));
    const size_t sums = CUDA_TICKET_BYTES, tensor_sums = sums + table.n_chunks * sizeof(double);
    TRY(cuda_use_scratch(run, tensor_sums + call->n * sizeof(double), &scratch));
    TRY(cuda_explain(cuda_launch_check(&table, &scale, &factor, (void *)(scratch + sums), &found, run->stream)));
    if (!call->norm && !call->norms) return AMP_OK;
    return cuda_explain(cuda_launch_norms(&table, (void *)(scratch + sums), (void *)(scratch + tensor_sums),
                                          call->norms, call->norm, (void *)scratch, run->stream));
}

static amp_status run_statistics(const struct cuda_run *run, const struct amp__list_call *call) {
    struct cuda_table table;
    unsigned char *scratch;
    TRY(cuda_use_plan(run, CUDA_PLAN_CALL, call->spans, 1, call->n, &table));
    TRY(cuda_use_scratch(run, CUDA_TICKET_BYTES + table.n_chunks * sizeof(struct cuda_seen), &scratch));
    return cuda_explain(cuda_launch_statistics(&table, (void *)(scratch + CUDA_TICKET_BYTES), call->statistics,
                                               run->stream));
}

static amp_status run_elementwise(const struct cuda_run *run, const struct amp__list_call *call) {
    static const uint8_t n_spans[] = {
        [AMP__LIST_CAST] = 2,      [AMP__LIST_ZERO] = 1, [AMP__LIST_SCALE] = 2, [AMP__LIST_AXPBY] = 3,
        [AMP__LIST_RECONCILE] = 2, [AMP__LIST_ADD] = 3,  [AMP__LIST_CLAMP] = 2, [AMP__LIST_ROUND] = 2,
    };
    const struct cuda_found found = found_of(call);
    const struct cuda_factor a = factor_of(&call->factors[0]), b = factor_of(&call->factors[1]);
    struct cuda_table table;
    TRY(cuda_use_plan(run, CUDA_PLAN_CALL, call->spans, n_spans[call->kind], call->n, &table));
    switch (call->kind) {
    case AMP__LIST_CAST: return cuda_explain(cuda_launch_cast(&table, call->only_if, run->stream));
    case AMP__LIST_RECONCILE:
        return cuda_explain(cuda_launch_reconcile(&table, call->norms, (uint32_t)call->low, run->stream));
    case AMP__LIST_ROUND: return cuda_explain(cuda_launch_round(&table, (uint32_t)call->low, &found, run->stream));
    case AMP__LIST_ADD: return cuda_explain(cuda_launch_add(&table, &a, &b, &found, run->stream));
    case AMP__LIST_CLAMP: return cuda_explain(cuda_launch_clamp(&table, call->factors[0].value, run->stream));
    case AMP__LIST_ZERO: return cuda_explain(cuda_launch_zero(&table, run->stream));
    case AMP__LIST_SCALE: return cuda_explain(cuda_launch_scale(&table, &a, &found, run->stream));
    default: return cuda_explain(cuda_launch_axpby(&table, &a, &b, &found, run->stream));
    }
}

/* One tensor: there is nothing to plan. */
static amp_status run_pack(const struct cuda_run *run, const struct amp__list_call *call) {
    const amp_pack_args *to = call->pack;
    const amp_unpack_args *from = call->unpack;
    const amp_span *span = to ? &to->src : &from->dst;
    const struct cuda_pack pack = {
        .src = span->data,
        .dst = span->data,
        .packed = to ? to->packed : (void *)(uintptr_t)from->packed,
        .size = span->size,
        .seed = to ? to->seed : 0,
        .type = (uint32_t)span->dtype,
        .bits = (uint32_t)(to ? to->bits : from->bits),
        .found_inf = to ? to->found_inf : NULL,
        .inexact = to ? to->inexact : NULL,
    };
    if (span->size / CUDA_PACK_GROUPS / AMP_PACK_GROUP >= INT32_MAX)
        return cuda_fail(AMP_ERR_UNSUPPORTED, "more elements than one launch can have");
    if ((uintptr_t)span->data % (span->dtype == AMP_FLOAT32 ? 4 : 2))
        return cuda_fail(AMP_ERR_INVALID_ARGUMENT, "data is not aligned for its type");
    return cuda_explain(to ? cuda_launch_pack(&pack, run->stream) : cuda_launch_unpack(&pack, run->stream));
}

/* Of no tensor at all: there is nothing to plan. */
static amp_status run_empty(const struct cuda_run *run, const struct amp__list_call *call) {
    if (call->kind != AMP__LIST_CHECK || !call->norm) return AMP_OK;
    return cuda_explain(cudaMemsetAsync(call->norm, 0, sizeof *call->norm, run->stream));
}

static amp_status run_list_call(struct cuda_list *list, const struct amp__list_call *call) {
    struct cuda_run run = { list, call->stream, false };
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRY(cuda_explain(cuda_make_current(list->device)));
    TRY(cuda_explain(cudaStreamIsCapturing(run.stream, &capture)));
    run.capturing = capture == cudaStreamCaptureStatusActive;
    list->last = call->stream;
    if (call->n == 0) return run_empty(&run, call);
    if (call->kind == AMP__LIST_CHECK) return run_check(&run, call);
    if (call->kind == AMP__LIST_STATISTICS) return run_statistics(&run, call);
    if (call->kind == AMP__LIST_OPTIM) return cuda_run_optim(&run, call);
    if (call->kind == AMP__LIST_PACK) return run_pack(&run, call);
    if (call->kind == AMP__LIST_SPLIT || call->kind == AMP__LIST_JOIN) return cuda_run_split(&run, call);
    return run_elementwise(&run, call);
}

amp_status cuda_list_run(void *list, const struct amp__list_call *call) {
    struct cuda_visit visit;
    amp_status status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = run_list_call(list, call);
    cuda_visit_end(&visit);
    return status;
}
