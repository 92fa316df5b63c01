/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of lists for a kernel, in device memory, written by plan.c. For C and for nvcc.
 *
 * The lists of a call are its spans: tensor i of a call is entry i of each list. Tensors are cut into chunks, one a
 * block of threads. A chunk has elements of one tensor only, and the chunks of a tensor are adjacent and in order.
 *
 * A thread moves CUDA_GROUP elements at a time. If the addresses of a tensor allow it, its elements from `head` on are
 * on 16-byte boundaries in the spans that are `wide`, and are moved 16 bytes at a time. The head before them, the rest
 * at the end, and other spans are moved element by element.
 */
#ifndef AMP_KERNELS_CUDA_TABLE_H
#define AMP_KERNELS_CUDA_TABLE_H

#include <stdint.h>

#define CUDA_SPANS 6
#define CUDA_THREADS 256
#define CUDA_GROUP 8                            /* 16 bytes of a 16-bit type */
#define CUDA_HALF (CUDA_GROUP / 2)
#define CUDA_TILE (CUDA_THREADS * CUDA_GROUP)   /* elements that a block moves at a time */
#define CUDA_CHUNK_MIN CUDA_TILE                /* elements of a chunk, but for the last of a tensor and the head */
#define CUDA_CHUNK_MAX(n_spans) ((n_spans) > 1 ? 8 * CUDA_TILE : 32 * CUDA_TILE) /* of one span: it is read alone */
#ifndef CUDA_CHUNKS_WANTED                      /* the tests' plugin: so that short lists have chunks of many tiles */
#define CUDA_CHUNKS_WANTED 1024                 /* smaller chunks rather than fewer: more than any GPU runs at a time */
#endif

struct cuda_chunk {
    uint64_t begin; /* its first element in its tensor */
    uint32_t count; /* elements; at least 1 */
    uint32_t tensor;
};

/* The shape of a tensor. Span k: bits 4k to 4k + 2 the amp_dtype (0: no such span), bit 4k + 3 wide. Bits 24 to 26: the
 * head. Bit 27: a span has elements of more than 16 bits. Bit 28: all spans are wide, and none has 64 bits. */
#define CUDA_TYPE(shape, k) ((shape) >> (4 * (k)) & 7u)
#define CUDA_WIDE(shape, k) ((shape) >> (4 * (k) + 3) & 1u)
#define CUDA_HEAD(shape) ((shape) >> 24 & 7u)
#define CUDA_SPREAD(shape) ((shape) >> 27 & 1u)
#define CUDA_EVEN(shape) ((shape) >> 28 & 1u)
#define CUDA_ALL_WIDE 0x00888888u

struct cuda_table {
    const struct cuda_chunk *chunks;
    const uint64_t *addresses;    /* of span k of tensor i: [k * n_tensors + i] */
    const uint32_t *shapes;       /* of tensor i */
    const uint32_t *first_chunks; /* of tensor i; [n_tensors] is n_chunks */
    uint32_t n_tensors, n_chunks;
};

#endif
