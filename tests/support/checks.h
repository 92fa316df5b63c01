/* SPDX-License-Identifier: Apache-2.0 */
/* What every suite over the fake host shares: its host, net and context, and what is asked of them. */
#ifndef TEST_CHECKS_H
#define TEST_CHECKS_H

#include "asserts.h"
#include "fakenet.h"

#include <fenv.h> /* feenableexcept: the project defines _GNU_SOURCE */
#include <stdio.h>
#include <stdlib.h>

#define ck_dtype(tensor, expected) ck_assert_int_eq(fake_dtype(tensor), (expected))

static inline amp_config config_of(amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    return config;
}

/* Host, net and context of one test. */
struct rig {
    struct fake host;
    struct net net;
    amp_context *context;
};

static inline amp_status rig_config(struct rig *rig, const amp_config *config) {
    amp_model *model = &rig->net.model;
    amp_optimizer *optimizer = &rig->net.optimizer;
    return amp_initialize_many(&model, 1, &optimizer, 1, config, &rig->context);
}

static inline void rig_init(struct rig *rig, unsigned options) {
    fake_init(&rig->host, options);
    net_init(&rig->net, &rig->host);
    rig->context = NULL;
}

/* By itself where descriptors were changed after rig_init. */
static inline amp_status rig_try(struct rig *rig, amp_config config) { return rig_config(rig, &config); }
static inline void rig_wire(struct rig *rig, amp_config config) { ck_ok(rig_try(rig, config)); }

/* With a second optimizer. */
static inline void rig_wire_two(struct rig *rig, amp_optimizer *second, amp_config config) {
    amp_model *model = &rig->net.model;
    amp_optimizer *both[] = { &rig->net.optimizer, second };
    ck_ok(amp_initialize_many(&model, 1, both, 2, &config, &rig->context));
}

static inline void rig_start(struct rig *rig, amp_level level, unsigned options) {
    rig_init(rig, options);
    rig_wire(rig, config_of(level));
}

static inline struct fake_tensor *rig_tensor(struct rig *rig, amp_dtype dtype, double value) {
    return fake_new(&rig->host, dtype, NET_SIZE, value);
}

static inline amp_op_stats rig_stats(struct rig *rig, enum net_op op) {
    amp_op_stats stats[N_NET_OPS] = { AMP_OP_STATS_INIT };
    size_t count = 0;
    ck_ok(amp_get_op_stats(rig->context, stats, N_NET_OPS, &count));
    ck_assert_uint_eq(count, N_NET_OPS);
    return stats[op];
}

static inline amp_record rig_record(const struct rig *rig, uint32_t loss_id) {
    amp_record record = AMP_RECORD_INIT;
    ck_ok(amp_get_record(rig->context, loss_id, &record));
    return record;
}

/* A bracket of the net's optimizer, as fake_begin's without a loss; around a loss. */
static inline amp_scaled_loss rig_begin(struct rig *rig) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin(&rig->net.optimizer, NULL, &scaled));
    return scaled;
}
static inline amp_scaled_loss rig_begin_with(struct rig *rig, void *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&rig->net.optimizer, loss, &scaled));
    return scaled;
}

static inline amp_step_info rig_step_begin(struct rig *rig) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    ck_ok(amp_step_begin(&rig->net.optimizer, &info));
    return info;
}

/* What the net's optimizer sees of its parameter `i`. */
static inline amp_master rig_master(struct rig *rig, size_t i) {
    amp_master masters[4] = { AMP_MASTER_INIT };
    size_t count = 0;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 4, &count));
    ck_assert_uint_eq(count, rig->net.optimizer.n_params);
    return masters[i];
}

/* The type that FP32 arrives in at linear. */
static inline amp_dtype rig_linear_gets(struct rig *rig) {
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 2.0);
    fake_release(net_linear(&rig->net, x, rig->net.weight, rig->net.bias));
    fake_release(x);
    return fake_last(&rig->host)->dtypes[0];
}

/* Before it is wired: the model gets another handle on the weight, the last of params[NET_PARAMS + 1]. */
static inline struct fake_tensor *rig_tie(struct rig *rig, amp_param *params) {
    struct fake_tensor *tied = fake_alias(rig->net.weight);
    const amp_param last = { sizeof(amp_param), 0, tied, "tied" };
    memcpy(params, rig->net.params, sizeof rig->net.params);
    params[NET_PARAMS] = last;
    rig->net.model.params = params;
    rig->net.model.n_params = NET_PARAMS + 1;
    return tied;
}

/* A context of its own for the ops alone, on the same slots. */
static inline amp_context *rig_second(struct rig *rig, amp_model *second, amp_level level) {
    const amp_config config = config_of(level);
    amp_context *context = NULL;
    *second = rig->net.model;
    second->amp = NULL;
    second->forward = NULL;
    second->n_params = 0;
    ck_ok(amp_initialize_many(&second, 1, NULL, 0, &config, &context));
    return context;
}

/* What the host does after a bracket, whatever that decided. */
static inline void rig_step_and_clear(struct rig *rig) {
    (void)net_step(&rig->net);
    net_zero_grad(&rig->net);
}

/* The last warning is in such words. */
#define ck_warned(rig, words)                                                                                          \
    ck_assert_msg(strstr((rig)->host.last_message[AMP_EVENT_WARNING], (words)) != NULL, "%s",                          \
                  (rig)->host.last_message[AMP_EVENT_WARNING])

/* The context alone. */
static inline void rig_stop(struct rig *rig) {
    ck_ok(amp_shutdown(rig->context));
    rig->context = NULL;
}

/* Ends everything and looks at the books: slots as before, nothing alive, nothing released twice. */
static inline void rig_end(struct rig *rig) {
    rig_stop(rig);
    ck_assert_msg(net_slots_restored(&rig->net), "a slot is not what it was");
    fake_tape_clear(&rig->host);
    net_destroy(&rig->net);
    ck_assert_int_eq(rig->host.live_tensors, 0);
    ck_assert_int_eq(rig->host.live_blocks, 0);
    ck_assert_uint_eq(rig->host.over_released, 0);
    ck_assert_uint_eq(rig->host.wrong_frees, 0);
    fake_destroy(&rig->host);
}

static inline void tensor_end(struct fake_tensor *const *tensor) {
    if (*tensor) fake_release(*tensor);
}

/* What ends with its block: a rig, and a tensor, which is released. What they are told of must be declared before.
 * unused: clang calls one that is only released so. */
#define RIG(name) __attribute__((cleanup(rig_end), unused)) struct rig name
#define RIG_INIT(name, options) RIG(name); rig_init(&name, options)
#define RIG_WITH(name, options, ...) RIG_INIT(name, options); rig_wire(&name, CONFIG(__VA_ARGS__))
#define RIG_START(name, level, options) RIG(name); rig_start(&name, level, options)
#define OWN_TENSOR __attribute__((cleanup(tensor_end), unused)) struct fake_tensor

/* 1, or 0 where the machine has no floating-point traps, as valgrind's: how often a test of them runs. */
static inline int traps_work(void) {
    int works = 0;
#if defined(__GLIBC__)
    works = feenableexcept(FE_OVERFLOW) != -1 && (fegetexcept() & FE_OVERFLOW);
    fedisableexcept(FE_ALL_EXCEPT);
#endif
    if (!works) puts("# no floating-point traps here: their tests are left out");
    return works ? 1 : 0;
}

#endif
