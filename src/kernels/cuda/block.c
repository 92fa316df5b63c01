/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of device memory, copies to and from the host, and the end of a bracket. Copies of any length pass through two
 * small blocks of pinned memory in turn: one is filled while the device reads the other. A fetch is the only copy that
 * a bracket may need, and nothing waits for it before its handle is used.
 */
#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/scaler.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_BYTES ((size_t)4 << 20)

/* Pinned memory and the event after which the device is done with it. */
struct pinned {
    void *memory;
    cudaEvent_t event;
};

struct block {
    int device;
    bool pools;
    struct pinned stages[2];
};

/* ---- pinned memory ---- */

static amp_status pinned_open(struct pinned *pinned, size_t bytes) {
    if (pinned->memory) return AMP_OK;
    CUDA_TRY(cudaEventCreateWithFlags(&pinned->event, cudaEventDisableTiming));
    const cudaError_t error = cudaMallocHost(&pinned->memory, bytes);
    if (error == cudaSuccess) return AMP_OK;
    pinned->memory = NULL;
    (void)cudaEventDestroy(pinned->event);
    return cuda_explain(error);
}

static void pinned_close(struct pinned *pinned) {
    if (!pinned->memory) return;
    (void)cudaEventSynchronize(pinned->event);
    (void)cudaFreeHost(pinned->memory);
    (void)cudaEventDestroy(pinned->event);
    pinned->memory = NULL;
}

/* Behind work that reads or writes the pinned memory. Without the event the memory is not touched again before all of
 * it is over. */
static amp_status mark_pinned(const struct pinned *pinned, cudaStream_t stream) {
    const cudaError_t error = cudaEventRecord(pinned->event, stream);
    if (error != cudaSuccess) (void)cudaStreamSynchronize(stream);
    return cuda_explain(error);
}

static amp_status copy_in(struct block *block, const struct amp__memory_call *call) {
    for (size_t at = 0, turn = 0; at < call->bytes; at += STAGE_BYTES, turn ^= 1) {
        /* one does, and takes longer */
        if (turn == 1 && pinned_open(&block->stages[1], STAGE_BYTES) != AMP_OK) turn = 0;
        struct pinned *stage = &block->stages[turn];
        const size_t bytes = call->bytes - at < STAGE_BYTES ? call->bytes - at : STAGE_BYTES;
        TRY(pinned_open(stage, STAGE_BYTES));
        CUDA_TRY(cudaEventSynchronize(stage->event));
        memcpy(stage->memory, (const char *)call->src + at, bytes);
        CUDA_TRY(cudaMemcpyAsync((char *)call->dst + at, stage->memory, bytes, cudaMemcpyHostToDevice, call->stream));
        TRY(mark_pinned(stage, call->stream));
    }
    return AMP_OK;
}

static amp_status fetch_stage(struct block *block, const struct amp__memory_call *call, size_t at, size_t turn) {
    const size_t bytes = call->bytes - at < STAGE_BYTES ? call->bytes - at : STAGE_BYTES;
    struct pinned *stage = &block->stages[turn];
    TRY(pinned_open(stage, STAGE_BYTES));
    CUDA_TRY(cudaMemcpyAsync(stage->memory, (const char *)call->src + at, bytes, cudaMemcpyDeviceToHost, call->stream));
    return mark_pinned(stage, call->stream);
}

/* Copies to the host: one piece is in flight while the previous one is read. The first one waits for copies of copy_in
 * that are still in flight. */
static amp_status copy_out(struct block *block, const struct amp__memory_call *call) {
    for (int i = 0; i < 2; i++)
        if (block->stages[i].memory) CUDA_TRY(cudaEventSynchronize(block->stages[i].event));
    if (call->bytes) TRY(fetch_stage(block, call, 0, 0));
    for (size_t at = 0, turn = 0; at < call->bytes; at += STAGE_BYTES, turn ^= 1) {
        const size_t next = at + STAGE_BYTES, bytes = call->bytes - at < STAGE_BYTES ? call->bytes - at : STAGE_BYTES;
        if (next < call->bytes) TRY(fetch_stage(block, call, next, turn ^ 1));
        CUDA_TRY(cudaEventSynchronize(block->stages[turn].event));
        memcpy((char *)call->dst + at, block->stages[turn].memory, bytes);
    }
    return AMP_OK;
}

/* ---- fetches in flight ---- */

static amp_status fetch_start(struct amp__memory_call *call) {
    struct pinned *pinned = call->made ? call->made : calloc(1, sizeof *pinned);
    amp_status status = pinned ? pinned_open(pinned, call->bytes) : cuda_explain(cudaErrorMemoryAllocation);
    if (status == AMP_OK && call->made) status = cuda_explain(cudaEventSynchronize(pinned->event));
    if (status == AMP_OK)
        status = cuda_explain(
            cudaMemcpyAsync(pinned->memory, call->src, call->bytes, cudaMemcpyDeviceToHost, call->stream));
    if (status == AMP_OK) status = mark_pinned(pinned, call->stream);
    if (status != AMP_OK && pinned && !call->made) {
        pinned_close(pinned);
        free(pinned);
    }
    if (status == AMP_OK) call->made = pinned;
    return status;
}

static amp_status arrived(struct amp__memory_call *call) {
    const struct pinned *pinned = call->made;
    const cudaError_t state = cudaEventQuery(pinned->event);
    call->arrived = state == cudaSuccess;
    if (state != cudaErrorNotReady) return cuda_explain(state);
    (void)cudaGetLastError(); /* an answer, not an error */
    return AMP_OK;
}

static amp_status fetched(const struct amp__memory_call *call) {
    struct pinned *pinned = call->made;
    CUDA_TRY(cudaEventSynchronize(pinned->event));
    memcpy(call->dst, pinned->memory, call->bytes);
    return AMP_OK;
}

/* ---- the rest ---- */

/* Allocates as if outside the graph. The caller must keep memory that a captured launch uses. */
static amp_status allocate_memory(const struct block *block, struct amp__memory_call *call, bool capturing) {
    return cuda_explain(block->pools && !capturing ? cudaMallocAsync(&call->made, call->bytes, call->stream)
                                                   : cudaMalloc(&call->made, call->bytes));
}

static amp_status run_scaler(const struct amp__memory_call *call) {
    struct cuda_scaler scaler = { .scaler = call->scaler, .settings = *call->settings, .decides = call->decides,
                                  .found_elsewhere = call->found_elsewhere, .skips = call->skips };
    const size_t n = call->decides ? call->n : 0;
    size_t done = 0;
    do {
        scaler.n = (uint32_t)(n - done < CUDA_SKIPS ? n - done : CUDA_SKIPS);
        if (scaler.n) memcpy(scaler.which, call->which + done, scaler.n * sizeof *scaler.which);
        CUDA_TRY(cuda_launch_scaler(&scaler, call->stream));
        scaler.again = true;
        done += scaler.n;
    } while (done < n);
    return AMP_OK;
}

/* Frees, on a lost device too: CUDA refuses other calls there, but removes the memory from its accounts. */
static amp_status free_on_device(const struct block *block, const struct amp__memory_call *call) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)cuda_make_current(block->device);
    (void)cudaStreamIsCapturing(call->stream, &capture);
    return cuda_explain(block->pools && capture == cudaStreamCaptureStatusNone ? cudaFreeAsync(call->dst, call->stream)
                                                                               : cudaFree(call->dst));
}

/* Whatever CUDA says, the host's part of a pinned is given back. */
static amp_status end_fetch(const struct amp__memory_call *call) {
    if (call->made) pinned_close(call->made);
    free(call->made);
    return AMP_OK;
}

static amp_status run_memory_call(struct block *block, struct amp__memory_call *call) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_TRY(cuda_make_current(block->device));
    if (call->kind != AMP__MEMORY_FILL && call->kind != AMP__MEMORY_FETCHED && call->kind != AMP__MEMORY_SCALER)
        CUDA_TRY(cudaStreamIsCapturing(call->stream, &capture));
    const bool capturing = capture != cudaStreamCaptureStatusNone;
    /* a replay would copy whatever lies in the pinned memory by then, and its events are the graph's */
    if (capturing && call->kind != AMP__MEMORY_ALLOC && call->kind != AMP__MEMORY_CAPTURING)
        return cuda_explain(cudaErrorStreamCaptureUnsupported);
    switch (call->kind) {
    case AMP__MEMORY_ALLOC: return allocate_memory(block, call, capturing);
    case AMP__MEMORY_FILL: return cuda_explain(cudaMemsetAsync(call->dst, call->value, call->bytes, call->stream));
    case AMP__MEMORY_IN: return copy_in(block, call);
    case AMP__MEMORY_OUT: return copy_out(block, call);
    case AMP__MEMORY_FETCH: return fetch_start(call);
    case AMP__MEMORY_ARRIVED: return arrived(call);
    case AMP__MEMORY_FETCHED: return fetched(call);
    case AMP__MEMORY_SCALER: return run_scaler(call);
    default: call->capturing = capturing; return AMP_OK;
    }
}

amp_status cuda_block_run(void *memory, struct amp__memory_call *call) {
    struct cuda_visit visit;
    amp_status status = cuda_visit_begin(&visit);
    if (call->kind == AMP__MEMORY_FETCH_FREE) status = end_fetch(call);
    else if (call->kind == AMP__MEMORY_FREE) status = free_on_device(memory, call);
    else if (status == AMP_OK) status = run_memory_call(memory, call);
    cuda_visit_end(&visit);
    return status;
}

amp_status cuda_block_open(int32_t id, void **memory) {
    int pools = 0;
    TRY(cuda_check_device(id));
    struct block *block = calloc(1, sizeof *block);
    if (!block) return cuda_explain(cudaErrorMemoryAllocation);
    block->device = id;
    cudaError_t error = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, id);
    block->pools = pools != 0;
    if (error == cudaSuccess) *memory = block;
    else free(block);
    return cuda_explain(error);
}

void cuda_block_close(void *memory) {
    struct block *block = memory;
    struct cuda_visit visit;
    (void)cuda_visit_begin(&visit);
    (void)cuda_make_current(block->device);
    for (int i = 0; i < 2; i++) pinned_close(&block->stages[i]);
    cuda_visit_end(&visit);
    free(block);
}
