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
    return cudaStreamCreateWithFlags(&m->own, cudaStreamNonBlocking);
}

void cuda_memory_close(struct cuda_memory *m) {
    while (m->retired) {
        struct cuda_retired *next = m->retired->next;
        (void)cudaFree(m->retired->memory);
        free(m->retired);
        m->retired = next;
    }
    for (int i = 0; i < CUDA_STAGES; i++) {
        if (m->stages[i].memory) (void)cudaFreeHost(m->stages[i].memory);
        if (m->stages[i].copied) (void)cudaEventDestroy(m->stages[i].copied);
    }
    (void)cudaStreamDestroy(m->own);
}

/* ---- rooms ---- */

static cudaError_t retire_memory(struct cuda_memory *m, void *memory) {
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
    /* while a stream is being captured an allocation in its order would become a part of the graph */
    if (m->pools && !capturing) CUDA_TRY(cudaMallocAsync(&made.memory, made.bytes, stream));
    else CUDA_TRY(cudaMalloc(&made.memory, made.bytes));
    if (room->memory && (room->captured || capturing)) {
        const cudaError_t error = retire_memory(m, room->memory);
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
    CUDA_TRY(cudaMemcpyAsync(room->memory, from, bytes, cudaMemcpyHostToDevice, m->own));
    return cudaStreamSynchronize(m->own);
}

cudaError_t cuda_room_zero(struct cuda_memory *m, struct cuda_room *room, size_t bytes, bool capturing,
                           cudaStream_t stream) {
    CUDA_TRY(cudaMemsetAsync(room->memory, 0, bytes, capturing ? m->own : stream));
    return capturing ? cudaStreamSynchronize(m->own) : cudaSuccess;
}

/* A stage that no copy reads any more: the one before, if its copy is over, else another one. Only where all of them
 * are under way is the oldest waited for. */
static cudaError_t find_stage(struct cuda_memory *m, struct cuda_stage **out) {
    struct cuda_stage *last = &m->stages[(m->next + CUDA_STAGES - 1) % CUDA_STAGES], *oldest = &m->stages[m->next];
    const cudaError_t state = last->copied ? cudaEventQuery(last->copied) : cudaErrorNotReady;
    if (state != cudaSuccess && state != cudaErrorNotReady) return state;
    if (state == cudaErrorNotReady && last->copied) (void)cudaGetLastError(); /* an answer, not an error */
    *out = state == cudaSuccess ? last : oldest;
    if (state == cudaSuccess) return cudaSuccess;
    if (oldest->copied) CUDA_TRY(cudaEventSynchronize(oldest->copied));
    else CUDA_TRY(cudaEventCreateWithFlags(&oldest->copied, cudaEventDisableTiming));
    m->next = (m->next + 1) % CUDA_STAGES;
    return cudaSuccess;
}

static cudaError_t fit_stage(struct cuda_stage *stage, size_t bytes) {
    if (bytes <= stage->bytes) return cudaSuccess;
    if (stage->memory) (void)cudaFreeHost(stage->memory);
    stage->memory = NULL, stage->bytes = 0;
    CUDA_TRY(cudaMallocHost(&stage->memory, bytes + bytes / 4));
    stage->bytes = bytes + bytes / 4;
    return cudaSuccess;
}

cudaError_t cuda_room_write(struct cuda_memory *m, struct cuda_room *room, const void *from, size_t bytes,
                            bool capturing, cudaStream_t stream) {
    if (capturing) return write_aside(m, room, from, bytes);
    struct cuda_stage *stage = NULL;
    CUDA_TRY(find_stage(m, &stage));
    CUDA_TRY(fit_stage(stage, bytes));
    memcpy(stage->memory, from, bytes);
    CUDA_TRY(cudaMemcpyAsync(room->memory, stage->memory, bytes, cudaMemcpyHostToDevice, stream));
    const cudaError_t error = cudaEventRecord(stage->copied, stream);
    if (error != cudaSuccess) (void)cudaStreamSynchronize(stream); /* the stage is written again once it was read */
    return error;
}
