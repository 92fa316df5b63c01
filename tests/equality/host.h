/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small framework with a tape: tensors of up to two dimensions in FP32, fp16 and bf16, with shapes and strides, and
 * four ops behind a table of function pointers. It runs without libamp as well as with it.
 */
#ifndef EQUALITY_HOST_H
#define EQUALITY_HOST_H

#include "amp_all.h"

#include <stdbool.h>

enum { HOST_MOST = 9, HOST_TAPE = 64 };

struct tensor {
    struct host *host;
    int refs;
    amp_storage storage;
    int32_t ndim;
    int64_t shape[2], strides[2], first; /* first: elements before element 0, unless another block is lent */
    int64_t lent_first;
    uint64_t id, version;
    bool requires_grad, leaf;
    struct tensor *grad;
    float work[HOST_MOST]; /* the gradient that this backward makes, in the tensor's own type */
    bool has_work;
};

enum host_op { OP_LINEAR, OP_MUL, OP_SUM, OP_ADD, N_HOST_OPS };

struct node {
    void (*backward)(struct node *);
    struct tensor *in[3], *out;
    float factor;
};

struct host {
    amp_host hooks;
    amp_fn table[N_HOST_OPS];
    struct node tape[HOST_TAPE];
    int n_tape;
    int64_t live_tensors, live_blocks;
    uint64_t next_id;
    /* fixed: FP32 buffers that backward adds into, transposed and with gaps if strided */
    bool fixed_grads, strided_grads;
    unsigned skips, changes;         /* events */
};

enum { HOST_NO_SET_GRAD = 1, HOST_NO_VERSION = 2, HOST_NO_SCALE = 4, HOST_STRIDED_GRADS = 8 };
void host_init(struct host *host, unsigned options);

/* strided: the first dimension is the fast one, every second element is a gap. */
struct tensor *tensor_new(struct host *host, amp_dtype dtype, int32_t ndim, const int64_t *shape, bool strided);
void tensor_release(struct tensor *tensor);
int64_t tensor_size(const struct tensor *tensor);
float tensor_get(const struct tensor *tensor, int64_t i); /* the i-th in row-major order */
void tensor_set(struct tensor *tensor, int64_t i, float value);

/* Through the table. Results belong to the caller; the tape holds its own references. */
struct tensor *host_linear(struct tensor *x, struct tensor *w, struct tensor *bias);
struct tensor *host_mul(struct tensor *a, struct tensor *b);
struct tensor *host_sum(struct tensor *x);
struct tensor *host_add(struct tensor *a, struct tensor *b);
/* The gradient of W x at x, recorded, so that it can be differentiated again: W^T dy. Not in the table. */
struct tensor *host_linear_grad(struct tensor *dy, struct tensor *w);
void host_backward(struct tensor *loss, float seed); /* and clears the tape */
void host_drop_tape(struct host *host);
void host_zero_grad(struct tensor *param);

#endif
