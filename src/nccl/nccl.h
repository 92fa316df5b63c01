/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator and a list of gradients, as amp_nccl.h's functions share them. */
#ifndef AMP_NCCL_NCCL_H
#define AMP_NCCL_NCCL_H

#include "amp_nccl.h"
#include "common/common.h"
#include "kernels/backend.h"

struct amp_nccl {
    const struct amp__backend *backend;
    struct amp__comm comm;
    void *memory; /* the backend's */
};

/* One call of AMP__COMM_...; of the others than AMP__COMM_REDUCE spans are NULL. */
amp_status amp__nccl_run(const amp_nccl *nccl, int32_t kind, void *stream);
amp_status amp__nccl_reduce(const amp_nccl *nccl, amp_reduction reduction, void *stream, const amp_span *spans,
                            size_t n);

/* ---- a list of gradients and its buckets: made in average_open.c, worked with in average.c ---- */

enum { AMP__SECTIONS = AMP_FLOAT64 };

/* A part of the list, with a section in memory for each type of sum. */
struct amp__bucket {
    size_t begin, end; /* of the list */
    size_t missing;    /* gradients that were not announced yet */
    amp_span sections[AMP__SECTIONS];
    size_t n_sections;
    amp_device_list *pack, *unpack;
};

struct amp_nccl_average {
    amp_nccl *nccl;
    size_t n, n_buckets;
    amp_dtype *dtypes;      /* of the list */
    amp_span *slots;        /* where each lies in its bucket */
    size_t *bucket_of;
    struct amp__bucket *buckets;
    char *memory;           /* of all buckets */
    uint64_t bytes;
    amp_device_list *zeros;
    amp_factor before, after;
    /* Of the open pass: */
    void *stream;           /* NULL: none is open */
    amp_span *grads;        /* where they were announced */
    bool *announced;
    size_t next;            /* the bucket that is sent next */
    amp_status failed;      /* first error of the pass */
    char why[1024];         /* and its words */
};

#endif
