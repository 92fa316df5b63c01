/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the host: comm_open, comm_close and comm_run of the backend table. */
#ifndef AMP_KERNELS_CUDA_NCCL_H
#define AMP_KERNELS_CUDA_NCCL_H

#include "kernels/backend.h"

amp_status cuda_comm_open(void *given, struct amp__comm *made);
void cuda_comm_close(void *comm);
amp_status cuda_comm_run(void *comm, const struct amp__comm_call *call);

#endif
