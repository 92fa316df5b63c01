/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a step that was taken, still there in the next bracket: told once, and not of hosts that are right. */
#include "findings.h"
#include "levels.h"

static void start(struct rig *rig, amp_level level, unsigned options, uint32_t flags) {
    rig_init(rig, options);
    rig->net.optimizer.flags = flags;
    rig_wire(rig, CONFIG(level, .loss_scale = 256.0f, .log = AMP_LOG_OFF));
}

static void step(struct rig *rig) { ck_assert_int_eq(net_step(&rig->net), 1); }

/* Fixed buffers and gradients that come and go, at each level. */
TEST_TIMES(what_is_not_cleared_is_told_once, 2 * N_EACH_LEVEL) {
    RIG(rig);
    start(&rig, each_level[_i / 2], _i % 2 ? FAKE_NO_SET_GRAD : 0, 0);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
        ck_assert_uint_eq(found(rig.context, "AMP-M68"), i > 0);
        step(&rig);
    }
    ck_health(&rig, "optimizer 0: the gradient of weight was the same after a step");
    ck_health(&rig, "AMP_OPTIMIZER_GRADS_STAY");
}

/* Its own gradients alone, with fixed buffers at O0, O1 and O4; sums at the others. */
TEST_TIMES(a_backward_that_clears_is_told, N_EACH_LEVEL) {
    RIG(rig);
    start(&rig, each_level[_i], FAKE_NO_SET_GRAD, 0);
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        if (rig.net.weight->grad) fake_fill(rig.net.weight->grad, 0.0);
        add_grad(rig.net.weight, 0.5 * fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        step(&rig);
    }
    ck_found(&rig, "AMP-M68");
}

/* ---- hosts that are right ---- */

static void keep_quiet(struct rig *rig) {
    ck_assert_msg(!found(rig->context, "AMP-M68"), "%s", health(rig->context));
}

enum cleared { AFTER, BEFORE, INSIDE, BY_ZERO, NEVER, N_WAYS };

TEST_TIMES(what_is_cleared_is_not_told, 2 * N_EACH_LEVEL * N_WAYS) {
    RIG(rig);
    const enum cleared way = (enum cleared)(_i / 2 % N_WAYS);
    start(&rig, each_level[_i / 2 / N_WAYS], _i % 2 ? FAKE_NO_SET_GRAD : 0,
          way == NEVER ? AMP_OPTIMIZER_GRADS_STAY : 0);
    for (int i = 0; i < 6; i++) {
        if (i && way == BEFORE) net_zero_grad(&rig.net);
        if (i && way == BY_ZERO) fake_fill(rig.net.weight->grad, -0.0);
        amp_scaled_loss scaled = rig_begin(&rig);
        if (way == INSIDE) net_zero_grad(&rig.net);
        add_grad(rig.net.weight, 0.5 * fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        step(&rig);
        if (way == AFTER) net_zero_grad(&rig.net);
    }
    keep_quiet(&rig);
}

/* Several brackets to a step, delayed ones among them; and a step that was skipped, or did not come. */
TEST_TIMES(what_is_accumulated_is_not_told, 2 * N_EACH_LEVEL) {
    RIG(rig);
    rig_init(&rig, _i % 2 ? FAKE_NO_SET_GRAD : 0);
    rig_wire(&rig, CONFIG(each_level[_i / 2], .loss_scale = AMP_DYNAMIC, .init_scale = 256.0f, .log = AMP_LOG_OFF));
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 3; k++) (void)bracket_with(&rig, k < 2 && i % 2 ? AMP_DELAY_UNSCALE : 0, 0.5);
        step(&rig);
        net_zero_grad(&rig.net);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
        ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
        ck_assert_int_eq(net_step(&rig.net), 0);
        if (i == 3) (void)bracket(&rig, 0.5);
        net_zero_grad(&rig.net);
    }
    keep_quiet(&rig);
}

/* It reads gradients, so it is looked in four brackets alone: those that follow the first four steps. */
TEST_TIMES(later_brackets_are_not_looked_at, 2) {
    RIG(rig);
    start(&rig, AMP_O1, FAKE_NO_SET_GRAD, 0);
    for (int i = 0; i < 8; i++) {
        (void)bracket(&rig, 0.5);
        step(&rig);
        if (i != (_i ? 3 : 4)) net_zero_grad(&rig.net);
    }
    ck_assert_uint_eq(found(rig.context, "AMP-M68"), _i != 0);
}

/* The next one does, if they are still there; here they are not. */
TEST(a_cancelled_bracket_tells_nothing) {
    RIG(rig);
    start(&rig, AMP_O2, 0, 0);
    (void)bracket(&rig, 0.5);
    step(&rig);
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_ok(amp_scale_loss_cancel(&scaled));
    net_zero_grad(&rig.net);
    (void)bracket(&rig, 0.5);
    keep_quiet(&rig);
}
