/* SPDX-License-Identifier: Apache-2.0 */
/* minitape on an NVIDIA GPU: its own kernels, and cuBLASLt for products. */
#ifndef MINITAPE_CUDA_H
#define MINITAPE_CUDA_H

#include "minitape.h"

/*
 * Opens the first GPU, for the life of the process: from then on MT_CUDA
 * works.  0; or -1, and mt_error() says what is missing and what to do.
 */
int mt_cuda_open(void);

#endif
