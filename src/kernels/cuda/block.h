/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device and the small work around it: what libamp's table of a backend calls memory_open, _close
 * and _run. */
#ifndef AMP_KERNELS_CUDA_BLOCK_H
#define AMP_KERNELS_CUDA_BLOCK_H

#include "kernels/backend.h"

amp_status cuda_block_open(int32_t id, void **memory);
void cuda_block_close(void *memory);
amp_status cuda_block_run(void *memory, struct amp__memory_call *call);

#endif
