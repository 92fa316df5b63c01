/* SPDX-License-Identifier: Apache-2.0 */
/* Work of NCCL's on streams, and the stream beside the host's that it may overlap with. Nothing waits but the close. */
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/nccl_library.h"

#include <stdio.h>
#include <stdlib.h>

struct comm {
    struct nccl_library nccl;
    void *given; /* ncclComm_t */
    int device;
    cudaStream_t own;
    cudaEvent_t forked, joined;
};

/* ---- errors ---- */

static amp_status explain_nccl(const struct comm *comm, const char *function, int result) {
    char text[500];
    if (result == NCCL_SUCCESS) return AMP_OK;
    if (result == NCCL_IN_PROGRESS)
        return cuda_fail(AMP_ERR_UNSUPPORTED, "the communicator does not block, so that NCCL's calls return before "
                                              "they are over: make it with ncclConfig_t.blocking = 1");
    snprintf(text, sizeof text,
             "%s: %.200s. NCCL_DEBUG=WARN has NCCL say more. The ranks may be out of step: end them all "
             "(ncclCommAbort) and go on from a checkpoint",
             function, comm->nccl.ncclGetErrorString(result));
    return cuda_fail(AMP_ERR_BACKEND, text);
}

static amp_status check_comm(const struct comm *comm) {
    int result = NCCL_SUCCESS;
    TRY(explain_nccl(comm, "ncclCommGetAsyncError", comm->nccl.ncclCommGetAsyncError(comm->given, &result)));
    return explain_nccl(comm, "NCCL, in an earlier call", result);
}

/* ---- opening and closing ---- */

static void end_comm(struct comm *comm) {
    if (comm->own) (void)cudaStreamSynchronize(comm->own);
    if (comm->joined) (void)cudaEventDestroy(comm->joined);
    if (comm->forked) (void)cudaEventDestroy(comm->forked);
    if (comm->own) (void)cudaStreamDestroy(comm->own);
    cuda_nccl_close(&comm->nccl);
    free(comm);
}

/* Makes a stream with high priority, since other ranks wait for its messages. */
static amp_status start_comm(struct comm *comm, int *ranks) {
    int least = 0, greatest = 0;
    char text[1000];
    const char *why = cuda_nccl_open(&comm->nccl, text, sizeof text);
    if (why) return cuda_fail(AMP_ERR_BACKEND, why);
    TRY(check_comm(comm));
    TRY(explain_nccl(comm, "ncclCommCount", comm->nccl.ncclCommCount(comm->given, ranks)));
    TRY(explain_nccl(comm, "ncclCommCuDevice", comm->nccl.ncclCommCuDevice(comm->given, &comm->device)));
    TRY(cuda_check_device(comm->device));
    CUDA_TRY(cuda_make_current(comm->device));
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_TRY(cudaStreamCreateWithPriority(&comm->own, cudaStreamNonBlocking, greatest));
    CUDA_TRY(cudaEventCreateWithFlags(&comm->forked, cudaEventDisableTiming));
    return cuda_explain(cudaEventCreateWithFlags(&comm->joined, cudaEventDisableTiming));
}

amp_status cuda_comm_open(void *given, struct amp__comm *made) {
    struct cuda_visit visit;
    struct comm *comm = calloc(1, sizeof *comm);
    int ranks = 0;
    if (!comm) return cuda_fail(AMP_ERR_NO_MEMORY, "out of memory");
    comm->given = given;
    amp_status status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = start_comm(comm, &ranks);
    if (status == AMP_OK) *made = (struct amp__comm){ comm, comm->own, comm->device, ranks };
    else end_comm(comm);
    cuda_visit_end(&visit);
    return status;
}

void cuda_comm_close(void *given) {
    struct comm *comm = given;
    struct cuda_visit visit;
    (void)cuda_visit_begin(&visit);
    (void)cuda_make_current(comm->device);
    end_comm(comm);
    cuda_visit_end(&visit);
}

/* ---- work ---- */

static int nccl_type(amp_dtype dtype) {
    switch (dtype) {
    case AMP_FLOAT16: return NCCL_FLOAT16;
    case AMP_BFLOAT16: return NCCL_BFLOAT16;
    case AMP_FLOAT64: return NCCL_FLOAT64;
    default: return NCCL_FLOAT32;
    }
}

/* All in one launch; a group that was begun is ended. */
static amp_status reduce(const struct comm *comm, const struct amp__comm_call *call) {
    const struct nccl_library *nccl = &comm->nccl;
    const int operation = call->reduction == AMP_REDUCE_MAX ? NCCL_MAX : NCCL_SUM;
    int sent = NCCL_SUCCESS;
    TRY(explain_nccl(comm, "ncclGroupStart", nccl->ncclGroupStart()));
    for (size_t i = 0; i < call->n && sent == NCCL_SUCCESS; i++)
        sent = nccl->ncclAllReduce(call->spans[i].data, call->spans[i].data, (size_t)call->spans[i].size,
                                   nccl_type(call->spans[i].dtype), operation, comm->given, call->stream);
    const int ended = nccl->ncclGroupEnd();
    TRY(explain_nccl(comm, "ncclAllReduce", sent));
    return explain_nccl(comm, "ncclGroupEnd", ended);
}

static amp_status wait_for_stream(cudaStream_t stream, cudaEvent_t event, cudaStream_t before) {
    CUDA_TRY(cudaEventRecord(event, before));
    return cuda_explain(cudaStreamWaitEvent(stream, event, 0));
}

static amp_status run_comm_call(const struct comm *comm, const struct amp__comm_call *call) {
    CUDA_TRY(cuda_make_current(comm->device));
    switch (call->kind) {
    case AMP__COMM_FORK: return wait_for_stream(comm->own, comm->forked, call->stream);
    case AMP__COMM_JOIN: return wait_for_stream(call->stream, comm->joined, comm->own);
    case AMP__COMM_REDUCE: return reduce(comm, call);
    default: return check_comm(comm);
    }
}

amp_status cuda_comm_run(void *given, const struct amp__comm_call *call) {
    struct cuda_visit visit;
    amp_status status = cuda_visit_begin(&visit);
    if (status == AMP_OK) status = run_comm_call(given, call);
    cuda_visit_end(&visit);
    return status;
}
