/* SPDX-License-Identifier: Apache-2.0 */
/* Products on a device: product, product_explain and tensor_cores of the backend table. */
#ifndef AMP_KERNELS_CUDA_BLAS_H
#define AMP_KERNELS_CUDA_BLAS_H

#include "kernels/backend.h"

#include <pthread.h>

void cuda_blas_init(const struct amp__backend_host *host);
amp_status cuda_product(const struct amp__device_product *call);
amp_status cuda_product_explain(const struct amp__device_product *call, char *text, size_t size);
int32_t cuda_tensor_cores(int32_t id, amp_dtype type, int32_t *capability);

/* Held while the table of devices and their caches are read and written. */
extern pthread_mutex_t cuda_blas_lock;

#endif
