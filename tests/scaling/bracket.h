/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of brackets: gradients put there by hand. */
#ifndef TEST_BRACKET_H
#define TEST_BRACKET_H

#include "checks.h"

#define INF ((double)__builtin_inff())

/* A context at `level` with a dynamic scale that starts at `scale`. */
#define START_AT_SCALE(name, level_, options, scale)                                                                   \
    RIG_WITH(name, options, level_, .loss_scale = AMP_DYNAMIC, .init_scale = (scale))

/* Backward's part: adds `value` to each element of a parameter's gradient, in the parameter's type. */
static inline void add_grad(struct fake_tensor *param, double value) {
    if (!param->grad) fake_put_grad(param, fake_new(param->host, fake_dtype(param), NET_SIZE, 0.0));
    for (int64_t i = 0; i < NET_SIZE; i++) fake_set(param->grad, i, fake_get(param->grad, i) + value);
}

/* One whole bracket whose backward adds `value` (times the scale) to the weight's gradient. */
static inline amp_action bracket_with(struct rig *rig, uint32_t flags, double value) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(NULL, &(amp_optimizer *){ &rig->net.optimizer }, 1, 0, flags, NULL, &scaled));
    add_grad(rig->net.weight, value * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

static inline amp_action bracket(struct rig *rig, double value) { return bracket_with(rig, 0, value); }

/* What the optimizer will see of parameter `i` of the net's optimizer; element 0. */
static inline float seen_grad(struct rig *rig, size_t i) {
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t count = 0;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 3, &count));
    ck_assert_ptr_nonnull(masters[i].grad);
    ck_assert_int_eq(masters[i].dtype, AMP_FLOAT32);
    return *(float *)masters[i].grad;
}

static inline float scale_now(struct rig *rig, uint32_t loss_id) {
    const amp_record record = rig_record(rig, loss_id);
    return record.scale_after;
}

#endif
