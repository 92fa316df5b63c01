/* SPDX-License-Identifier: Apache-2.0 */
/* A model of one parameter on the host, under libamp. */
#ifndef EQUALITY_ONE_H
#define EQUALITY_ONE_H

#include "asserts.h"
#include "host.h"

struct one {
    struct host host;
    struct tensor *param;
    void *params[1];
    amp_param listed;
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

/* options: the host's. Values are those of `value`. */
static inline void one_init(struct one *one, unsigned options, const int64_t shape[2], float (*value)(int)) {
    memset(one, 0, sizeof *one);
    host_init(&one->host, options);
    one->params[0] = one->param = tensor_new(&one->host, AMP_FLOAT32, 2, shape, false);
    for (int i = 0; i < tensor_size(one->param); i++) tensor_set(one->param, i, value(i));
    one->listed = (amp_param){ sizeof(amp_param), 0, one->param, "p" };
    one->model = SIZED(amp_model, .host = &one->host.hooks, .params = &one->listed, .n_params = 1);
    one->optimizer = SIZED(amp_optimizer, .host = &one->host.hooks, .params = one->params, .n_params = 1);
}

static inline void one_start(struct one *one, amp_config config) {
    amp_model *model = &one->model;
    amp_optimizer *optimizer = &one->optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &one->context));
}

/* What the test made is gone by now. */
static inline void one_end(struct one *one) {
    ck_ok(amp_shutdown(one->context));
    tensor_release(one->param);
    ck_assert_int_eq(one->host.live_tensors, 0);
    ck_assert_int_eq(one->host.live_blocks, 0);
}

#endif
