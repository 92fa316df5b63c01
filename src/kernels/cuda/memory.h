/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of a list: tables of plans, and scratch memory. It grows and never shrinks. Memory of a captured call
 * is not written or freed before the list is closed, since a graph may be replayed at any time.
 */
#ifndef AMP_KERNELS_CUDA_MEMORY_H
#define AMP_KERNELS_CUDA_MEMORY_H

#include "kernels/cuda/plan.h"

#include <cuda_runtime_api.h>

struct cuda_room {
    void *memory;
    size_t bytes;
    bool captured; /* a graph knows it */
};

struct cuda_retired {
    struct cuda_retired *next;
    void *memory;
};

/* Pinned memory that tables are copied from, and the event after which it may be written again. */
struct cuda_stage {
    void *memory;
    size_t bytes;
    cudaEvent_t copied;
};
enum { CUDA_STAGES = 8 }; /* so many tables may be under way before one has to be waited for */

struct cuda_memory {
    bool pools;       /* the device allocates in a stream's order */
    cudaStream_t own; /* stream for writes while the stream of the caller is being captured */
    struct cuda_stage stages[CUDA_STAGES];
    unsigned next; /* index of the stage with the oldest copy */
    struct cuda_retired *retired;
};

/* The current device's. On an error *m holds nothing. */
cudaError_t cuda_memory_open(struct cuda_memory *m, int device);
/* Rooms first, by cuda_room_close. */
void cuda_memory_close(struct cuda_memory *m);

/* Makes room for `bytes`, in the order of `stream`. `renew`: the room must not be in use by earlier calls, since it
 * will be written. If its address changes, the contents are lost and *fresh is set. */
cudaError_t cuda_room_fit(struct cuda_memory *m, struct cuda_room *room, size_t bytes, bool renew, bool capturing,
                          cudaStream_t stream, bool *fresh);
void cuda_room_close(struct cuda_room *room);

/* Copies `bytes` of the host's into the room, which has them; they may change afterwards. */
cudaError_t cuda_room_write(struct cuda_memory *m, struct cuda_room *room, const void *from, size_t bytes,
                            bool capturing, cudaStream_t stream);
/* Its first `bytes` become 0. Like a write, at once while a stream is being captured: calls may come before the graph's
 * launch. */
cudaError_t cuda_room_zero(struct cuda_memory *m, struct cuda_room *room, size_t bytes, bool capturing,
                           cudaStream_t stream);

#endif
