/* SPDX-License-Identifier: Apache-2.0 */
/* An NCCL of the tests: its communicator is this process and another at the end of a socket. Work waits on its stream
 * like any other; who comes with other work than the other rank ends both. */
#ifndef AMP_TESTS_CUDA_FAKE_NCCL_H
#define AMP_TESTS_CUDA_FAKE_NCCL_H

#include <stddef.h>

struct fake_nccl {
    int rank, ranks, device;
    int socket;                    /* to the other rank; -1: there is none */
    int version;                   /* as NCCL counts; 0: 2.28.9 */
    int calls, fail_at, fail_with; /* this call fails with this ncclResult_t; 0: none */
    int async_error;               /* what ncclCommGetAsyncError shows */
    int sent, groups, open;        /* reductions, groups of them, and groups that were begun and not ended */
    int unwritten;                 /* floats as the fake CUDA's memory has them where nobody wrote */
    int on_wrong_device;           /* calls while another device than the communicator's was current */
    const int *current;            /* the fake CUDA's */
    void (*work_on)(const void *stream, void (*run)(const void *arguments), const void *arguments, size_t bytes);
    void (*written)(const void *address, size_t bytes); /* told of all that reductions write */
};

#define FAKE_NCCL_SYMBOL_NAME "amp_fake_nccl"
extern struct fake_nccl amp_fake_nccl; /* its address is the communicator, too */

/* The other rank's bytes in the place of these. */
#define FAKE_NCCL_SWAP_NAME "amp_fake_nccl_swap"
void amp_fake_nccl_swap(void *bytes, size_t n);

#endif
