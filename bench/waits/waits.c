/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp_cuda.so once more, for the bench: the same objects, linked so that what waits for the device passes here and
 * is counted (ld's --wrap). What costs time is untouched.
 */
#include <cuda_runtime_api.h>

/* For streams and the device, which allocating and freeing are too; for events. By dlsym. */
__attribute__((visibility("default"))) extern int amp_bench_waits[2];
int amp_bench_waits[2];

#define COUNTED(kind, name, parameters, arguments)                                                                     \
    cudaError_t __real_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters;                                                                              \
    cudaError_t __wrap_##name parameters {                                                                             \
        amp_bench_waits[kind]++;                                                                                       \
        return __real_##name arguments;                                                                                \
    }

COUNTED(0, cudaStreamSynchronize, (cudaStream_t stream), (stream))
COUNTED(0, cudaDeviceSynchronize, (void), ())
COUNTED(0, cudaMemcpy, (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind), (dst, src, bytes, kind))
COUNTED(0, cudaMalloc, (void **memory, size_t bytes), (memory, bytes))
COUNTED(0, cudaFree, (void *memory), (memory))
COUNTED(0, cudaMallocHost, (void **memory, size_t bytes), (memory, bytes))
COUNTED(0, cudaFreeHost, (void *memory), (memory))
COUNTED(1, cudaEventSynchronize, (cudaEvent_t event), (event))
