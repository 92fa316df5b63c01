/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products: oneDNN's matmul primitives, made once for each shape and kept, and weights packed for them. The unit in
 * which matmul.c speaks to oneDNN.
 */
#ifndef AMP_ONEDNN_PRODUCT_H
#define AMP_ONEDNN_PRODUCT_H

#include "kernels/backend.h"
#include "kernels/onednn/compat.h"

#include <pthread.h>
#include <stdbool.h>

/* A product's shape: compared by its bytes, so that there is no padding. Strides in elements: of the batch, of rows, of
 * columns. dst's columns lie side by side. */
struct shape {
    int64_t batch, m, n, k;
    int64_t a[3], b[3], d[2]; /* a batch stride 0: one for all */
    int32_t type, d_type;     /* amp_dtype of a and b, and of d */
    int32_t activation, has_bias; /* not relu */
    int32_t packed;  /* b is in the order preferred by oneDNN, and b[] is 0 */
    int32_t threads; /* at most */
};

/* Starts the only engine, before anything else. Not thread safe. */
dnnl_status_t product_init(void);

struct product; /* counted */

/* Gets the product of this shape, to be given back. NULL: *status is dnnl_unimplemented or another error. */
struct product *product_get(const struct shape *shape, dnnl_status_t *status);
void product_put(struct product *product);

/* oneDNN's name for the code it chose. */
const char *product_name(const struct product *product);
/* Whether that is oneDNN's own reference: a plain loop. */
bool product_is_slow(const struct product *product);

/* d = activation(a b + bias), with an fp32 bias. dnnl_out_of_memory: nothing was written. */
dnnl_status_t product_run(const struct product *product, const void *a, const void *b, const float *bias, void *d,
                          int32_t threads);

/* For pack.c. */
const struct shape *product_shape(const struct product *product);
desc_ref product_weights(const struct product *product); /* in its preferred order, valid as long as the product */
void product_retain(struct product *product);
/* Brings b, k rows of n with these strides, into that order. */
dnnl_status_t product_reorder(const struct product *product, const void *b, const int64_t strides[2], void *packed,
                              int32_t threads);

/* ---- packed weights (pack.c) ---- */

/* A part of op(b): columns from `first` on, of the caller's b_id and b_version. */
struct pack_name {
    uint64_t id, version;
    int64_t first;
};

struct pack; /* counted */

/* The weights packed for a `packed` product. NULL: not there. */
struct pack *pack_find(const struct product *product, const struct pack_name *name);
/* Packs b, which lies with these strides, for the product, and keeps it while there is room. NULL: *status says why. */
struct pack *pack_make(struct product *product, const struct pack_name *name, const void *b, const int64_t strides[2],
                       int32_t threads, dnnl_status_t *status);
const void *pack_data(const struct pack *pack);
void pack_put(struct pack *pack);

/* ---- scratch (scratch.c) ---- */

/* 64-byte aligned, not zeroed. The largest blocks are reused after they are given back. NULL: no memory. */
void *scratch_get(size_t bytes);
void scratch_put(void *block);

/* ---- locks: each file's, for fork ---- */

extern pthread_mutex_t product_lock, pack_lock, scratch_lock;

/* ---- children (children.c) ---- */

void children_init(void);
/* Around every use of oneDNN. False: it must not be used, for this process was forked while another thread was using
 * it. */
bool children_enter(void);
void children_leave(void);
/* Returns the number of `threads` that may be used in between. Threads of OpenMP do not survive a fork, and GNU's
 * OpenMP waits for them for ever, so a child uses one thread if its parent had several. */
int32_t children_threads(int32_t threads);

/* ---- threads (threads.c) ---- */

/* Sets the number of threads that OpenMP offers to the calling thread, which oneDNN uses, until threads_leave gets the
 * result of threads_enter. No effect if oneDNN runs without OpenMP. */
int32_t threads_enter(int32_t threads);
void threads_leave(int32_t before);

#endif
