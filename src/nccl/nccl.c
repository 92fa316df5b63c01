/* SPDX-License-Identifier: Apache-2.0 */
/* amp_nccl.h but for averaging: arguments are checked here, and the backend does the rest. */
#include "nccl/nccl.h"

#include <inttypes.h>

AMP_API amp_status amp_nccl_open(void *comm, amp_nccl **nccl) {
    amp_status status = AMP_OK;
    AMP_RETURN_IF(!comm || !nccl, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_open: %s is NULL", comm ? "nccl" : "comm");
    const struct amp__backend *backend = amp__backend_get(AMP__BACKEND_cuda, &status);
    if (!backend) return status;
    AMP_RETURN_IF(!backend->comm_open, AMP_ERR_BACKEND,
                  "amp_nccl_open: libamp_cuda.so was built without it: build it with -Dnccl=enabled");
    amp_nccl *made = amp__alloc(1, sizeof *made);
    if (!made) return amp__fail_memory();
    made->backend = backend;
    status = backend->comm_open(comm, &made->comm);
    if (status != AMP_OK) {
        amp__free(made);
        return amp__fail_prefix(status, "amp_nccl_open");
    }
    status = backend->memory_open(made->comm.id, &made->memory);
    if (status == AMP_OK) *nccl = made;
    else backend->comm_close(made->comm.comm), amp__free(made);
    return status;
}

AMP_API void amp_nccl_close(amp_nccl *nccl) {
    if (!nccl) return;
    nccl->backend->comm_close(nccl->comm.comm);
    nccl->backend->memory_close(nccl->memory);
    amp__free(nccl);
}

amp_status amp__nccl_run(const amp_nccl *nccl, int32_t kind, void *stream) {
    const struct amp__comm_call call = { .kind = kind, .stream = stream };
    return nccl->backend->comm_run(nccl->comm.comm, &call);
}

amp_status amp__nccl_reduce(const amp_nccl *nccl, amp_reduction reduction, void *stream, const amp_span *spans,
                            size_t n) {
    const struct amp__comm_call call = { AMP__COMM_REDUCE, reduction, stream, spans, n };
    return nccl->backend->comm_run(nccl->comm.comm, &call);
}

AMP_API amp_status amp_nccl_reduce(amp_nccl *nccl, amp_reduction reduction, void *stream, float *values, size_t n) {
    const amp_span span = { values, n, AMP_FLOAT32, 0 };
    AMP_RETURN_IF(!nccl, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_reduce: nccl is NULL");
    AMP_RETURN_IF(reduction != AMP_REDUCE_MAX && reduction != AMP_REDUCE_SUM, AMP_ERR_INVALID_ARGUMENT,
                  "amp_nccl_reduce: reduction is %" PRId32 ": AMP_REDUCE_MAX or AMP_REDUCE_SUM", reduction);
    AMP_RETURN_IF(!stream, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_reduce: stream is NULL, CUDA's legacy default stream");
    AMP_RETURN_IF(n && !values, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_reduce: values is NULL and n is %zu", n);
    if (!n) return AMP_OK;
    const amp_status status = amp__nccl_reduce(nccl, reduction, stream, &span, 1);
    return status == AMP_OK ? AMP_OK : amp__fail_prefix(status, "amp_nccl_reduce");
}
