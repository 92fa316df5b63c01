/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that a bracket leaves scaled are the host's: it reduces them over its ranks, and backward adds to them. */
#include "two.h"

static const struct {
    amp_level level;
    unsigned options;
} hosts[] = {
    { AMP_O0, 0 }, { AMP_O1, 0 }, { AMP_O2, 0 }, { AMP_O4, 0 }, { AMP_O5, 0 },
    { AMP_O0, FAKE_NO_SET_GRAD }, { AMP_O1, FAKE_NO_SET_GRAD }, { AMP_O2, FAKE_NO_SET_GRAD },
    { AMP_O1, FAKE_FP32_GRADS }, { AMP_O2, FAKE_NO_SET_GRAD | FAKE_FP32_GRADS },
    { AMP_O2, FAKE_NO_ALLOC }, { AMP_O1, FAKE_NO_VERSION },
};
enum { N_HOSTS = sizeof hosts / sizeof *hosts };

/* This rank made 1/8, 1/4 and 1/2 in three brackets, the other one 1: the mean is what the optimizer sees. */
TEST_TIMES(a_reduction_in_the_closing_bracket_has_all, N_HOSTS) {
    START_AT_SCALE(rig, hosts[_i].level, hosts[_i].options, 256.0f);
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin_many(NULL, &(amp_optimizer *){ &rig.net.optimizer }, 1, 0, i < 2 ? AMP_DELAY_UNSCALE : 0, NULL,
                              &scaled));
        add_grad(rig.net.weight, 0.125 * (1 << i) * 256.0);
        ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.125 * ((2 << i) - 1) * 256.0);
        if (i == 2) fake_fill(rig.net.weight->grad, (fake_get(rig.net.weight->grad, 0) + 256.0) / 2.0);
        ck_ok(amp_scale_loss_end(&scaled));
    }
    ck_assert_float_eq(seen_grad(&rig, 0), (0.875f + 1.0f) / 2.0f);
}

/* A cancel takes back what backward added in its bracket, and no more. */
TEST_TIMES(a_cancelled_bracket_leaves_what_was_delayed, N_HOSTS) {
    START_AT_SCALE(rig, hosts[_i].level, hosts[_i].options, 256.0f);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, 0.25);
    ck_ok(fake_begin_many(NULL, &(amp_optimizer *){ &rig.net.optimizer }, 1, 0, AMP_DELAY_UNSCALE, NULL, &scaled));
    add_grad(rig.net.weight, INF);
    add_grad(rig.net.bias, 256.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.25 * 256.0);
    if (hosts[_i].options & FAKE_NO_SET_GRAD) ck_assert_double_eq(fake_get(rig.net.bias->grad, 0), 0.0);
    else ck_assert_ptr_null(rig.net.bias->grad);
    (void)bracket(&rig, 0.5);
    ck_assert_float_eq(seen_grad(&rig, 0), 0.75f);
}

/* A cancelled reopening has written into the gradient of the bracket; the one that stood there before, which comes back
 * when an end fails, has its own versions, and one of them is the same number. */
TEST_TIMES(a_gradient_that_comes_back_is_read_anew, N_HOSTS) {
    START_AT_SCALE(rig, hosts[_i].level, hosts[_i].options, 256.0f);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    add_grad(rig.net.weight, 0.5);
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, 0.25);
    ck_ok(fake_begin_many(NULL, &(amp_optimizer *){ &rig.net.optimizer }, 1, 0, 0, NULL, &scaled));
    add_grad(rig.net.weight, 256.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 0); /* in an open bracket: its end fails */
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.5);
    add_grad(rig.net.weight, 0.125);
    ck_assert_float_eq(seen_grad(&rig, 0), 0.625f);
}

/* Another optimizer's bracket of the same loss moves the scale in between. */
DIFFERENCE_TIMES(a_scale_that_moved_is_not_mixed_with_the_old_one, 2) {
    amp_scaled_loss scaled;
    TWO_START(two, _i ? AMP_O2 : AMP_O1, 1);
    (void)run(&two, 1, 0, AMP_DELAY_UNSCALE, 0.25, 0);
    ck_assert_int_eq(run(&two, 2, 0, 0, 0, INF), AMP_SKIP);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f);
    ck_ok(begin(&two, 2, 0, AMP_DELAY_UNSCALE, &scaled));
    ck_assert_float_eq(*scaled.scale, 32768.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_refused(AMP_ERR_CONFLICT, "65536", begin(&two, 3, 0, 0, &scaled));
    ck_says("32768");
    ck_ok(begin(&two, 1, 0, 0, &scaled));
    ck_assert_float_eq(*scaled.scale, 65536.0f); /* what the gradients carry */
    ck_assert_float_eq(amp_seed_factor(&scaled), 65536.0f);
    add_grad(two.rig.net.weight, 0.5 * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_float_eq(seen_grad(&two.rig, 0), 0.75f);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f);
    ck_ok(begin(&two, 1, 0, 0, &scaled));
    ck_assert_float_eq(*scaled.scale, 32768.0f);
    ck_ok(amp_scale_loss_cancel(&scaled));
}

/* Gradients of one optimizer, delayed for one loss: the other loss may unscale them at one static scale alone. */
DIFFERENCE_TIMES(delayed_gradients_stay_with_their_loss, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_config config = config_of(AMP_O1);
    config.num_losses = 2;
    if (_i) config.loss_scale = 1024.0f;
    RIG_INIT(rig, 0);
    ck_ok(rig_config(&rig, &config));
    amp_optimizer *optimizers[] = { &rig.net.optimizer };
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, 1.0);
    const amp_status status = fake_begin_many(NULL, optimizers, 1, 1, 0, NULL, &scaled);
    if (_i) {
        ck_assert_int_eq(status, AMP_OK);
        add_grad(rig.net.weight, 2.0 * fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0);
    } else {
        ck_assert_int_eq(status, AMP_ERR_CONFLICT);
        ck_says("gradients still carry the scale of loss_id 0");
        ck_says("end the last bracket of that loss without the flag, or give both losses one loss_id");
    }
}

/* An overflow of a delayed bracket is the closing one's to find. */
TEST_TIMES(an_overflow_waits_for_the_closing_bracket, N_HOSTS) {
    START_AT_SCALE(rig, hosts[_i].level, hosts[_i].options, 256.0f);
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, INF);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_SKIP);
    ck_assert_float_eq(scale_now(&rig, 0), 128.0f);
    ck_assert_int_eq(net_step(&rig.net), 0);
    if (hosts[_i].options & FAKE_NO_SET_GRAD) ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.0);
}
