/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for groups that measure on one: bench --device cuda. By the driver alone, so that the program starts anywhere. */
#ifndef AMP_BENCH_CUDA_H
#define AMP_BENCH_CUDA_H

#include <stddef.h>

/* Groups of --device cuda, by the names that they have without it. */
#define BENCH_CUDA_GROUPS(X) X(matmul)

#define BENCH_CUDA_GROUP(name) void bench_cuda_##name(void);
BENCH_CUDA_GROUPS(BENCH_CUDA_GROUP)
#undef BENCH_CUDA_GROUP

/* The first GPU; NULL, or why there is none. Once. */
const char *bench_cuda_start(void);
/* "NVIDIA H100 PCIe, driver for CUDA 13.0" */
const char *bench_cuda_name(void);

extern void *bench_cuda_stream;

/* Memory of the device's, each byte `value`; kept to the end. The program ends if there is none. */
void *bench_cuda_memory(size_t bytes, unsigned char value);
void bench_cuda_wait(void);

#endif
