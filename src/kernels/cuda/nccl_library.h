/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, which the host has: its functions as far as they are used, with the values of its enumerations, so that it need
 * not be there where libamp is built. They have been the same since 2.10. */
#ifndef AMP_KERNELS_CUDA_NCCL_LIBRARY_H
#define AMP_KERNELS_CUDA_NCCL_LIBRARY_H

#include <stddef.h>

enum { NCCL_OLDEST = 21003 }; /* 2.10.3: bfloat16, and captures in graphs */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_SUM = 0, NCCL_MAX = 2 };
enum { NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_FLOAT64 = 8, NCCL_BFLOAT16 = 9 };

/* name, parameters; all return a ncclResult_t. */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion, (int *version))                                                                                  \
    X(ncclCommCount, (void *comm, int *count))                                                                         \
    X(ncclCommCuDevice, (void *comm, int *device))                                                                     \
    X(ncclCommGetAsyncError, (void *comm, int *error))                                                                 \
    X(ncclGroupStart, (void))                                                                                          \
    X(ncclGroupEnd, (void))                                                                                            \
    X(ncclAllReduce, (const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream))

struct nccl_library {
#define NCCL_MEMBER(name, parameters) int (*name) parameters;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*ncclGetErrorString)(int result);
    void *handle; /* so that it stays while its functions may be called */
};

/* Opens NCCL. Returns NULL, or writes the fault and the remedy to `text`. Searches at every call, since the host may
 * load it late. The caller closes it in either case. */
const char *cuda_nccl_open(struct nccl_library *library, char *text, size_t size);
void cuda_nccl_close(struct nccl_library *library);

#endif
