/* SPDX-License-Identifier: Apache-2.0 */
/* Calls over lists on a device: list_open, list_close and list_run of the backend table. */
#ifndef AMP_KERNELS_CUDA_DEVICE_H
#define AMP_KERNELS_CUDA_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cuda/memory.h"

/* Plans of a list: for the spans of the call, for the tensors with norms that an optimizer needs before its step, and
 * for its moments in 8 bits. */
enum { CUDA_PLAN_CALL, CUDA_PLAN_GRADS, CUDA_PLAN_OTHERS, CUDA_PLAN_CODES, CUDA_PLANS };

struct cuda_list {
    int device;
    cudaStream_t last; /* stream of the last call, for the wait on closing (NULL: none) */
    struct cuda_memory memory;
    struct cuda_plan plans[CUDA_PLANS];
    struct cuda_room tables[CUDA_PLANS], scratch, product; /* product: scratch and workspace of product.c's */
};

/* A call under way. */
struct cuda_run {
    struct cuda_list *list;
    cudaStream_t stream;
    bool capturing;
};

/* Initializes with the functions of libamp for plugins, before any other call. Loads functions of the driver. */
amp_status cuda_device_init(const struct amp__backend_host *host);
amp_status cuda_list_open(int32_t id, void **list);
void cuda_list_close(void *list);
amp_status cuda_list_run(void *list, const struct amp__list_call *call);
amp_status cuda_where(const void *address, amp_device *device);

/* ---- for optim.c, block.c, product.c and nccl.c ---- */

/* The state of CUDA during a call. The current context of the caller is restored, or none if there was none: setting
 * the device would create a context on a device that the caller never used. Operations that a capture on any thread
 * forbids to other code (allocations, queries of events) are allowed, since none goes to a captured stream. */
struct cuda_visit {
    void *context; /* the driver's CUcontext (NULL: none) */
    enum cudaStreamCaptureMode mode; /* of the calling thread, before */
    bool known, relaxed;
};
amp_status cuda_visit_begin(struct cuda_visit *visit);
void cuda_visit_end(struct cuda_visit *visit); /* also where begin failed */

/* Not set again where a context of the device is current: cudaSetDevice makes the primary context current, and a host
 * may have another on the device, made by the driver's functions, that its streams are of. */
cudaError_t cuda_make_current(int device);

/* Is there such a device? */
amp_status cuda_check_device(int device);

/* CUDA's error in words, or AMP_OK. Takes it away from the host's next cudaGetLastError. */
amp_status cuda_explain(cudaError_t error);

/* Sets the thread's last error; returns `status`. */
amp_status cuda_fail(amp_status status, const char *text);

/* A function goes on where there was no error, and returns it else. */
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        const amp_status try_status_ = (expression);                                                                   \
        if (try_status_ != AMP_OK) return try_status_;                                                                 \
    } while (0)
#define CUDA_TRY(expression) TRY(cuda_explain(expression))

/* The table of these spans, on the device. */
amp_status cuda_use_plan(const struct cuda_run *run, int plan, const amp_span *const spans[], uint32_t n_spans,
                         size_t n, struct cuda_table *table);

/* Scratch of `bytes`, of which the first CUDA_TICKET_BYTES hold a ticket and are 0. */
#define CUDA_TICKET_BYTES 16
amp_status cuda_use_scratch(const struct cuda_run *run, size_t bytes, unsigned char **scratch);

amp_status cuda_run_optim(const struct cuda_run *run, const struct amp__list_call *call);
amp_status cuda_run_split(const struct cuda_run *run, const struct amp__list_call *call);

#endif
