/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of minitape's CUDA share. */
#ifndef MINITAPE_CUDA_INTERNAL_H
#define MINITAPE_CUDA_INTERNAL_H

#include "../device.h"

#include <cuda_runtime_api.h>

/* kernels.cu: starts a kernel; args are those of its type. */
cudaError_t mtc_launch(enum mtk_kernel kernel, const void *args, size_t n,
                       cudaStream_t stream);

/* blas.c: finds cuBLASLt.  0, or -1 with a message. */
int mtc_blas_open(void);
int mtc_blas_multiply(const mt_product *product);

#endif
