/* SPDX-License-Identifier: Apache-2.0 */
/* A host with one op, whose tensors are nothing but their type. Its hooks call nothing of libamp. */
#ifndef TEST_TYPED_H
#define TEST_TYPED_H

#include <amp.h>

#include <stdlib.h>

struct tensor {
    amp_dtype dtype;
};

static inline amp_dtype typed_dtype(void *self, void *tensor) { return (void)self, ((struct tensor *)tensor)->dtype; }
static inline amp_status typed_cast(void *self, void *tensor, amp_dtype to, void **out) {
    struct tensor *copy = malloc(sizeof *copy);
    (void)self;
    (void)tensor;
    if (!copy) return AMP_ERR_NO_MEMORY;
    copy->dtype = to;
    *out = copy;
    return AMP_OK;
}
static inline void typed_release(void *self, void *tensor) {
    (void)self;
    free(tensor);
}

typedef int32_t (*linear_fn)(struct tensor *);
static inline int32_t linear(struct tensor *x) { return x->dtype; }

struct setup {
    amp_host host;
    amp_op op;
    amp_model model;
};

static inline void describe(struct setup *setup, linear_fn *slot) {
    *setup = (struct setup){ AMP_HOST_INIT, AMP_OP_INIT, AMP_MODEL_INIT };
    setup->host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    setup->host.dtype = typed_dtype;
    setup->host.cast = typed_cast;
    setup->host.release = typed_release;
    setup->op.name = "linear";
    setup->op.schema = "linear(Tensor input) -> int32";
    setup->op.slot = (amp_fn *)(void *)slot;
    setup->model.host = &setup->host;
    setup->model.ops = &setup->op;
    setup->model.n_ops = 1;
}

#endif
