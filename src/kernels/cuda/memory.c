/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

#define CUDA_TRY(expression)                                                                                           \
    do {                                                                                                               \
        const cudaError_t cuda_try_error_ = (expression);                                                              \
        if (cuda_try_error_ != cudaSuccess) return cuda_try_error_;                                                    \
    } while (0)

cudaError_t cuda_memory_open(struct cuda_memory *m, int device) {
    int pools = 0;
    *m = (struct cuda_memory){ 0 };
    CUDA_TRY(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
    m->pools = pools != 0;
    CUDA_TRY(cudaStreamCreateWithFlags(&m->own, cudaStreamNonBlocking));
    const cudaError_t error = cudaEventCreateWithFlags(&m->copied, cudaEventDisableTiming);
    if (error != cudaSuccess) (void)cudaStreamDestroy(m->own);
    return error;
}

void cuda_memory_close(struct cuda_memory *m) {
    while (m->retired) {
        struct cuda_retired *next = m->retired->next;
        (void)cudaFree(m->retired->memory);
        free(m->retired);
        m->retired = next;
    }
    if (m->pinned) (void)cudaFreeHost(m->pinned);
    (void)cudaEventDestroy(m->copied);
    (void)cudaStreamDestroy(m->own);
}

/* ---- rooms ---- */

/* While a stream is being captured an allocation in its order would become a part of the graph. This one is not: the calling
 * thread says that it knows what it does. */
static cudaError_t allocate_aside(void **memory, size_t bytes) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t error = cudaMalloc(memory, bytes);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return error;
}

static cudaError_t retire(struct cuda_memory *m, void *memory) {
    struct cuda_retired *retired = malloc(sizeof *retired);
    if (!retired) return cudaErrorMemoryAllocation;
    retired->next = m->retired, retired->memory = memory;
    m->retired = retired;
    return cudaSuccess;
}

/* A quarter more than needed: lists that grow a little every time are not moved every time. */
cudaError_t cuda_room_fit(struct cuda_memory *m, struct cuda_room *room, size_t bytes, bool renew, bool capturing,
                          cudaStream_t stream, bool *fresh) {
    struct cuda_room made = { NULL, bytes + bytes / 4 + 256, capturing };
    *fresh = false;
    if (room->memory && bytes <= room->bytes && !(renew && (room->captured || capturing))) {
        room->captured = room->captured || capturing;
        return cudaSuccess;
    }
    if (capturing) CUDA_TRY(allocate_aside(&made.memory, made.bytes));
    else if (m->pools) CUDA_TRY(cudaMallocAsync(&made.memory, made.bytes, stream));
    else CUDA_TRY(cudaMalloc(&made.memory, made.bytes));
    if (room->memory && (room->captured || capturing)) {
        const cudaError_t error = retire(m, room->memory);
        if (error != cudaSuccess) {
            (void)cudaFree(made.memory);
            return error;
        }
    } else if (room->memory) {
        (void)(m->pools ? cudaFreeAsync(room->memory, stream) : cudaFree(room->memory));
    }
    *room = made;
    *fresh = true;
    return cudaSuccess;
}

void cuda_room_close(struct cuda_room *room) {
    if (room->memory) (void)cudaFree(room->memory);
    *room = (struct cuda_room){ 0 };
}

/* ---- copies ---- */

static cudaError_t write_aside(struct cuda_memory *m, struct cuda_room *room, const void *from, size_t bytes) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
    cudaError_t error = cudaMemcpyAsync(room->memory, from, bytes, cudaMemcpyHostToDevice, m->own);
    if (error == cudaSuccess) error = cudaStreamSynchronize(m->own);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return error;
}

/* The copy before this one has read the pinned memory once its event is reached, which it was long ago in most cases. */
static cudaError_t fit_pinned(struct cuda_memory *m, size_t bytes) {
    CUDA_TRY(cudaEventSynchronize(m->copied));
    if (bytes <= m->pinned_bytes) return cudaSuccess;
    if (m->pinned) (void)cudaFreeHost(m->pinned);
    m->pinned = NULL, m->pinned_bytes = 0;
    CUDA_TRY(cudaMallocHost(&m->pinned, bytes + bytes / 4));
    m->pinned_bytes = bytes + bytes / 4;
    return cudaSuccess;
}

cudaError_t cuda_room_write(struct cuda_memory *m, struct cuda_room *room, const void *from, size_t bytes, bool capturing,
                            cudaStream_t stream) {
    if (capturing) return write_aside(m, room, from, bytes);
    CUDA_TRY(fit_pinned(m, bytes));
    memcpy(m->pinned, from, bytes);
    CUDA_TRY(cudaMemcpyAsync(room->memory, m->pinned, bytes, cudaMemcpyHostToDevice, stream));
    return cudaEventRecord(m->copied, stream);
}
