/* SPDX-License-Identifier: Apache-2.0 */
/* A net whose optimizer is libamp's own. */
#ifndef TEST_OPTIM_FUSED_H
#define TEST_OPTIM_FUSED_H

#include "amp_optim.h"
#include "checks.h"

#define INF ((double)__builtin_inff())

static inline amp_optim optim_of(amp_optim_kind kind, double lr) {
    amp_optim rule = AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(kind, &rule));
    rule.lr = lr;
    return rule;
}

/* The net's three parameters under one rule. */
static inline amp_status fused_config(struct rig *rig, amp_optim rule, amp_config config) {
    const amp_fused fused = SIZED(amp_fused, .groups = &rule, .n_groups = 1);
    rig->net.optimizer.fused = &fused;
    rig->net.optimizer.steps = rig->net.optimizer.zero_grads = NULL;
    rig->net.optimizer.n_steps = rig->net.optimizer.n_zero_grads = 0;
    return rig_try(rig, config);
}

static inline void fused_start(struct rig *rig, amp_optim rule, amp_config config, unsigned options) {
    rig_init(rig, options);
    ck_ok(fused_config(rig, rule, config));
}

#define FUSED_START(name, rule, config, options) RIG(name); fused_start(&name, rule, config, options)

/* Backward's part: adds value * (i + 1) to each element of a parameter's gradient, in the gradient's type. */
static inline void add_grad(struct fake_tensor *param, double value) {
    if (!param->grad) fake_put_grad(param, fake_new(param->host, fake_dtype(param), NET_SIZE, 0.0));
    for (int64_t i = 0; i < NET_SIZE; i++)
        fake_set(param->grad, i, fake_get(param->grad, i) + value * (double)(i + 1));
}

/* One bracket whose backward adds `value`, scaled, to all three. */
static inline amp_action bracket(struct rig *rig, double value, uint32_t flags) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig->net.optimizer;
    ck_ok(fake_begin_many(NULL, &optimizer, 1, 0, flags, NULL, &scaled));
    for (int k = 0; k < 3; k++) add_grad(rig->net.trained[k], value * fake_seed(&scaled) / (k + 1));
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

static inline void masters_of(struct rig *rig, amp_master masters[3]) {
    size_t count = 0;
    for (int k = 0; k < 3; k++) masters[k] = (amp_master)AMP_MASTER_INIT;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 3, &count));
    ck_assert_uint_eq(count, 3);
}

#endif
