/* SPDX-License-Identifier: Apache-2.0 */
/* A host without tensors: memory of its own behind amp_buffers, ops on `float *`, and their descriptors, which a test
 * may change before it starts. A struct raw stays where it is: its descriptors point into it. */
#ifndef TEST_RAW_H
#define TEST_RAW_H

#include "asserts.h"

enum { RAW_PARAMS = 6, RAW_OPS = 8, RAW_STRUCTS = 2 };

struct raw {
    amp_host host; /* amp_buffer_host's hooks, and those that a test adds */
    amp_buffer buffers[RAW_PARAMS], grads[RAW_PARAMS];
    amp_param params[RAW_PARAMS];
    void *trained[RAW_PARAMS];
    amp_struct structs[RAW_STRUCTS];
    amp_op ops[RAW_OPS];
    amp_model model;
    amp_optimizer optimizer; /* initialized if it has parameters */
    amp_context *context;
};

static inline void raw_init(struct raw *raw) {
    memset(raw, 0, sizeof *raw);
    raw->host = *amp_buffer_host();
    raw->model = SIZED(amp_model, .host = &raw->host, .ops = raw->ops, .params = raw->params, .structs = raw->structs);
    raw->optimizer = SIZED(amp_optimizer, .host = &raw->host, .params = raw->trained);
}

static inline amp_buffer raw_buffer(float *data, size_t size) {
    return SIZED(amp_buffer, .dtype = AMP_FLOAT32, .data = data, .size = (int64_t)size);
}

/* `size` elements at `data`; grad NULL: they are not trained. */
static inline amp_param *raw_param(struct raw *raw, const char *name, float *data, float *grad, size_t size) {
    const size_t i = raw->model.n_params++;
    ck_assert_uint_lt(i, RAW_PARAMS);
    raw->grads[i] = raw_buffer(grad, size);
    raw->buffers[i] = raw_buffer(data, size);
    raw->params[i] = SIZED(amp_param, .tensor = &raw->buffers[i], .name = name);
    if (grad) {
        raw->buffers[i].grad = &raw->grads[i];
        raw->trained[raw->optimizer.n_params++] = &raw->buffers[i];
    }
    return &raw->params[i];
}

static inline amp_op *raw_op(struct raw *raw, amp_op op) {
    ck_assert_uint_lt(raw->model.n_ops, RAW_OPS);
    raw->ops[raw->model.n_ops] = op;
    return &raw->ops[raw->model.n_ops++];
}

/* One that is only ever passed by pointer needs no size. */
static inline amp_struct *raw_struct(struct raw *raw, const char *name) {
    ck_assert_uint_lt(raw->model.n_structs, RAW_STRUCTS);
    amp_struct *described = &raw->structs[raw->model.n_structs++];
    *described = SIZED(amp_struct, .name = name);
    return described;
}

static inline amp_status raw_initialize(struct raw *raw, amp_config config) {
    amp_model *model = &raw->model;
    amp_optimizer *optimizer = &raw->optimizer;
    return amp_initialize_many(&model, 1, &optimizer, optimizer->n_params > 0, &config, &raw->context);
}

static inline void raw_start(struct raw *raw, amp_config config) { ck_ok(raw_initialize(raw, config)); }

/* If it started: nothing failed that a test has not looked at. */
static inline void raw_stop(struct raw *raw) {
    if (!raw->context) return;
    ck_ok(amp_check(raw->context));
    ck_ok(amp_shutdown(raw->context));
    raw->context = NULL;
}

static inline amp_op_stats raw_stats(const struct raw *raw, size_t op) {
    amp_op_stats stats[RAW_OPS] = { AMP_OP_STATS_INIT };
    size_t n;
    ck_ok(amp_get_op_stats(raw->context, stats, RAW_OPS, &n));
    ck_assert_uint_lt(op, n);
    return stats[op];
}

#endif
