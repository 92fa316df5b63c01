/* SPDX-License-Identifier: Apache-2.0 */
/* What every suite over the fake host shares: assertions on statuses and messages, and a runner. */
#ifndef TEST_CHECKS_H
#define TEST_CHECKS_H

#include "fakenet.h"
#include "test.h"

#include <fenv.h> /* feenableexcept: the project defines _GNU_SOURCE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())
#define ck_fails(status, expression)                                                                                   \
    do {                                                                                                               \
        const amp_status ck_status_ = (expression);                                                                    \
        ck_assert_msg(ck_status_ == (status), #expression ": %s instead of " #status, amp_status_name(ck_status_));    \
    } while (0)
#define ck_says(text) ck_assert_msg(strstr(amp_last_error(), (text)), "\"%s\" not in: %s", (text), amp_last_error())
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

static inline void rig_start(struct rig *rig, amp_level level, unsigned options) {
    const amp_config config = config_of(level);
    rig_init(rig, options);
    ck_ok(rig_config(rig, &config));
}

static inline struct fake_tensor *rig_tensor(struct rig *rig, amp_dtype dtype, double value) {
    return fake_new(&rig->host, dtype, NET_SIZE, value);
}

/* Ends everything and looks at the books: slots as before, nothing alive, nothing released twice. */
static inline void rig_end(struct rig *rig) {
    ck_ok(amp_shutdown(rig->context));
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
