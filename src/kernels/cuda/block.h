/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory and small work on it: memory_open, memory_close and memory_run of the backend table. */
#ifndef AMP_KERNELS_CUDA_BLOCK_H
#define AMP_KERNELS_CUDA_BLOCK_H

#include "kernels/backend.h"

amp_status cuda_block_open(int32_t id, void **memory);
void cuda_block_close(void *memory);
amp_status cuda_block_run(void *memory, struct amp__memory_call *call);

#endif
