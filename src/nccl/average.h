/* SPDX-License-Identifier: Apache-2.0 */
/* A list of gradients and its buckets: made in average_open.c, worked with in average.c. */
#ifndef AMP_NCCL_AVERAGE_H
#define AMP_NCCL_AVERAGE_H

#include "nccl/nccl.h"

enum { AMP__SECTIONS = AMP_FLOAT64 };

/* A stretch of the list; in memory a section for each type that is added up in it. */
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
    amp_status failed;      /* the first error, */
    char why[1024];         /* and its words */
};

#endif
