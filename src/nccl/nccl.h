/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator, as amp_nccl.h's functions share it. */
#ifndef AMP_NCCL_NCCL_H
#define AMP_NCCL_NCCL_H

#include "amp_nccl.h"
#include "common/common.h"
#include "kernels/backend.h"

struct amp_nccl {
    const struct amp__backend *backend;
    struct amp__comm comm;
    void *memory; /* the backend's */
};

/* One call of AMP__COMM_...; of the others than AMP__COMM_REDUCE spans are NULL. */
amp_status amp__nccl_run(const amp_nccl *nccl, int32_t kind, void *stream);
amp_status amp__nccl_reduce(const amp_nccl *nccl, amp_reduction reduction, void *stream, const amp_span *spans,
                            size_t n);

#endif
