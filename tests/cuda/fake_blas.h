/* SPDX-License-Identifier: Apache-2.0 */
/* A cuBLASLt of the tests: it multiplies on the processor what its descriptors say, column by column and with every
 * epilogue, and refuses what does not agree: an algorithm made for other sizes, an address less aligned than was
 * promised. */
#ifndef AMP_TESTS_CUDA_FAKE_BLAS_H
#define AMP_TESTS_CUDA_FAKE_BLAS_H

#include <stddef.h>
#include <stdint.h>

struct fake_blas {
    int objects, handles;        /* made and not destroyed; without handles, and these */
    int calls, fail_at, fail_with; /* this call fails with this cublasStatus_t; 0: none */
    int asked, products;         /* heuristics, matmuls */
    uint32_t refused;            /* an epilogue that there is no algorithm for; UINT32_MAX: any but the default */
    int refuses_all;             /* there is no algorithm for anything */
    int refuses_late;            /* what is refused is proposed, and not run */
    int candidates, fastest;     /* how many algorithms there are, and which one takes half the others' time */
    uint64_t workspace;          /* that each algorithm needs, if it may */
    float *clock;                /* a product's time is added here */
    /* the stream; NULL: at once */
    void (*work)(const void *stream, void (*run)(const void *arguments), const void *arguments, size_t bytes);
    void (*written)(const void *address, size_t bytes); /* told of all that products write; or NULL */
    /* of the last product */
    uint32_t epilogue, schemes;
    int32_t compute, algorithm;
    uint32_t alignments[4];
    uint64_t limit, workspace_bytes;
    const void *workspace_at, *d;
};

#define FAKE_BLAS_SYMBOL_NAME "amp_fake_blas"
extern struct fake_blas amp_fake_blas;

#endif
