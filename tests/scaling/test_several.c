/* SPDX-License-Identifier: Apache-2.0 */
/* Several losses and several optimizers; the decision is the brackets' of each optimizer. */
#include "two.h"

TEST(only_the_optimizers_of_the_bracket_skip) {
    TWO_START(two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, 0, INF, 0), AMP_SKIP);
    ck_assert_int_eq(run(&two, 2, 0, 0, 0, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 1);
}

TEST(all_the_optimizers_of_the_bracket_skip) {
    TWO_START(two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 3, 0, 0, INF, 1.0), AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 0);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f); /* once */
}

TEST(each_loss_has_its_scaler) {
    TWO_START(two, AMP_O1, 3);
    ck_assert_int_eq(run(&two, 1, 1, 0, INF, 0), AMP_SKIP);
    ck_assert_float_eq(scale_now(&two.rig, 0), 65536.0f);
    ck_assert_float_eq(scale_now(&two.rig, 1), 32768.0f);
    ck_assert_float_eq(scale_now(&two.rig, 2), 65536.0f);
}

TEST_TIMES(losses_of_different_scales_mix_unscaled, 2) {
    TWO_START(two, _i ? AMP_O2 : AMP_O1, 2);
    (void)run(&two, 2, 1, 0, 0, INF); /* loss 1 is at half the scale now */
    ck_assert_int_eq(run(&two, 1, 0, 0, 0.5, 0), AMP_STEP);
    ck_assert_int_eq(run(&two, 1, 1, 0, 0.25, 0), AMP_STEP);
    ck_assert_float_eq(seen_grad(&two.rig, 0), 0.75f);
}

TEST_TIMES(an_overflow_in_either_loss_skips, 2) {
    TWO_START(two, AMP_O1, 2);
    ck_assert_int_eq(run(&two, 1, 0, 0, _i ? INF : 1.0, 0), _i ? AMP_SKIP : AMP_STEP);
    net_zero_grad(&two.rig.net);
    fake_put_grad(two.rig.net.weight, NULL);
    ck_assert_int_eq(run(&two, 1, 1, 0, _i ? 1.0 : INF, 0), _i ? AMP_STEP : AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
}

/* What the first loss found is in the gradient that the second adds to; the second decides on its own part. */
TEST_TIMES(each_loss_decides_on_what_it_made, 6) {
    static const double second[] = { 0.5, INF, NAN };
    TWO_START(two, _i % 2 ? AMP_O2 : AMP_O1, 2);
    const double made = second[_i / 2];
    ck_assert_int_eq(run(&two, 1, 0, 0, INF, 0), AMP_SKIP);
    (void)run(&two, 1, 1, 0, made, 0);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f);
    ck_assert_float_eq(scale_now(&two.rig, 1), made == 0.5 ? 65536.0f : 32768.0f);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
}

/* That an overflow of one awaits its step excuses no gradient of the other, which would step on it. */
TEST_TIMES(an_overflow_of_one_excuses_nothing_of_the_other, 2) {
    TWO_START(two, _i ? AMP_O2 : AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, 0, INF, 0), AMP_SKIP);
    add_grad(two.rig.net.bias, NAN); /* outside brackets */
    ck_assert_int_eq(run(&two, 3, 0, 0, 0.5, 0.5), AMP_SKIP);
    ck_assert_int_eq(call_other(&two), 0);
}

/* Nor does it where both have the gradient, as long as one of them would step. */
TEST_TIMES(an_overflow_of_one_excuses_no_shared_gradient, 2) {
    TWO_SHARE(two, _i ? AMP_O2 : AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, 0, INF, 0), AMP_SKIP);
    ck_assert_int_eq(run(&two, 3, 0, 0, 0.5, 0), AMP_SKIP);
    ck_assert_int_eq(call_other(&two), 0);
}

TEST(brackets_of_different_losses_may_overlap) {
    amp_scaled_loss a, b;
    TWO_START(two, AMP_O1, 2);
    ck_ok(begin(&two, 1, 0, 0, &a));
    ck_ok(begin(&two, 2, 1, 0, &b));
    add_grad(two.rig.net.weight, 65536.0);
    add_grad(two.rig.net.bias, 65536.0);
    ck_ok(amp_scale_loss_end(&a));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 1.0);
    ck_assert_double_eq(fake_get(two.rig.net.bias->grad, 0), 65536.0);
    ck_ok(amp_scale_loss_end(&b));
    ck_assert_double_eq(fake_get(two.rig.net.bias->grad, 0), 1.0);
}

TEST(a_bracket_without_optimizers_only_counts) {
    TWO_START(two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 0, 0, 0, 0, 0), AMP_STEP);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
}

TEST_TIMES(a_parameter_of_two_optimizers_is_unscaled_once, 2) {
    TWO_SHARE(two, _i ? AMP_O2 : AMP_O1, 1);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(run(&two, 3, 0, 0, 0.5, 0), AMP_STEP);
    ck_assert_float_eq(seen_grad(&two.rig, 0), 1.0f);
}

/* One gradient cannot carry the scales of two losses at once. */
DIFFERENCE_TIMES(brackets_that_overlap_share_no_parameter, 2) {
    amp_scaled_loss a, b;
    TWO_SHARE(two, _i ? AMP_O2 : AMP_O1, 2);
    ck_ok(begin(&two, 1, 0, 0, &a));
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_refused(AMP_ERR_WRONG_STATE, "weight is in the open bracket of another optimizer", begin(&two, 2, 1, 0, &b));
    ck_ok(amp_scale_loss_end(&a));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.5);
    ck_ok(begin(&two, 2, 1, 0, &b));
    add_grad(two.rig.net.weight, 65536.0 / 4.0);
    ck_ok(amp_scale_loss_end(&b));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.75);
}

/* What one optimizer's bracket delayed, a bracket of the other unscales only if the loss is the same; nobody reads it
 * before. */
DIFFERENCE_TIMES(delayed_for_one_is_scaled_for_both, 2) {
    amp_scaled_loss scaled;
    amp_master master = AMP_MASTER_INIT;
    size_t count = 0;
    TWO_SHARE(two, _i ? AMP_O2 : AMP_O1, 2);
    ck_ok(begin(&two, 1, 0, AMP_DELAY_UNSCALE, &scaled));
    add_grad(two.rig.net.weight, 65536.0 / 4.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_fails(AMP_ERR_CONFLICT, begin(&two, 2, 1, 0, &scaled));
    ck_says("weight, which another optimizer shares, still carries the scale of loss_id 0");
    ck_refused(AMP_ERR_WRONG_STATE, "weight", amp_master_params(&two.other, &master, 1, &count));
    ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_norm(&two.other, 1.0f, NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_value(&two.other, 1.0f));
    ck_ok(begin(&two, 2, 0, 0, &scaled));
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_master_params(&two.other, &master, 1, &count));
    ck_assert_float_eq(*(float *)master.grad, 0.75f);
}

/* The gradients go, the bracket of the other optimizer stays open for those that come. */
TEST_TIMES(zero_grad_of_one_in_a_bracket_of_the_other, 2) {
    amp_scaled_loss scaled;
    TWO_SHARE(two, _i ? AMP_O2 : AMP_O1, 1);
    ck_ok(begin(&two, 2, 0, 0, &scaled));
    add_grad(two.rig.net.weight, 65536.0);
    net_zero_grad(&two.rig.net);
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.5);
}

TEST(one_decision_for_all_step_slots_of_an_optimizer) { /* hosts with a step per layer */
    amp_op steps[2];
    amp_config config = config_of(AMP_O1);
    TWO_START(two, AMP_O1, 1);
    ck_ok(amp_shutdown(two.rig.context));
    steps[0] = two.rig.net.step_op;
    steps[1] = two.second_op;
    two.rig.net.optimizer.steps = steps;
    two.rig.net.optimizer.n_steps = 2;
    two.other.self = two.rig.net.optimizer.self;
    ck_ok(rig_config(&two.rig, &config));
    ck_assert_int_eq(bracket(&two.rig, INF), AMP_SKIP);
    int32_t (*const second)(void *) = (int32_t (*)(void *))two.second_step;
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(net_step(&two.rig.net), round);
        ck_assert_int_eq(second(&two.rig.net), round);
    }
}
