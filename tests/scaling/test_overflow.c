/* SPDX-License-Identifier: Apache-2.0 */
/* What counts as an overflow, what is skipped, and what is said about it. */
#include "bracket.h"

static void use_up(struct rig *rig) { /* the step's skip, and fresh gradients */
    ck_assert_int_eq(net_step(&rig->net), 0);
    net_zero_grad(&rig->net);
}

TEST_TIMES(an_overflow_skips_one_step_and_halves_the_scale, 6) {
    static const double bad[] = { 1.0 / 0.0, -1.0 / 0.0, 0.0 / 0.0 };
    START_AT_SCALE(rig, _i % 2 ? AMP_O2 : AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, bad[_i / 2]), AMP_SKIP);
    ck_assert_float_eq(scale_now(&rig, 0), 64.0f);
    use_up(&rig);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.375);
}

TEST(one_element_is_enough) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, 1.0);
    add_grad(rig.net.bias, 1.0);
    fake_set(rig.net.bias->grad, NET_SIZE - 1, INF);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_assert_float_eq(*scaled.found_inf, 1.0f);
}

DIFFERENCE(finiteness_is_judged_after_the_division) { /* pytorch#96755: finite g, infinite g / S */
    START_AT_SCALE(rig, AMP_O1, 0, 0x1p-20f);
    ck_assert_int_eq(bracket(&rig, 0x1p127 * 2.0), AMP_SKIP); /* 2^108 in the gradient */
}

TEST(finiteness_is_judged_in_the_destinations_type) { /* O3: fp16 gradients in place, scale below 1 */
    START_AT_SCALE(rig, AMP_O3, 0, 0.25f);
    ck_assert_int_eq(bracket(&rig, 65536.0), AMP_SKIP); /* 16384 is a finite fp16, times 4 is not */
}

DIFFERENCE(an_overflow_of_the_sum_is_found) {
    START_AT_SCALE(rig, AMP_O1, 0, 1.0f);
    ck_assert_int_eq(bracket(&rig, 2e38), AMP_STEP);
    ck_assert_int_eq(bracket(&rig, 2e38), AMP_SKIP); /* each finite, their sum is not */
}

DIFFERENCE(growth_backoff_window_and_hysteresis_are_options) {
    RIG_WITH(rig, 0, AMP_O1, .init_scale = 100.0f, .growth = 3.0f, .backoff = 0.25f, .window = 2, .hysteresis = 2);
    const double values[] = { 1.0, 1.0, INF, INF, INF };
    const float scales[] = { 100.0f, 300.0f, 300.0f, 75.0f, 18.75f }; /* one overflow tolerated, then every one */
    const uint32_t left[] = { 2, 2, 1, 1, 1 };
    for (size_t i = 0; i < 5; i++) {
        (void)bracket(&rig, values[i]);
        net_zero_grad(&rig.net);
        ck_assert_float_eq(scale_now(&rig, 0), scales[i]);
        const amp_record record = rig_record(&rig, 0);
        ck_assert_uint_eq(record.hysteresis_left, left[i]);
        ck_assert_float_eq(record.next_scale, scales[i]);
        ck_assert_uint_eq(record.clean_run, 0);
    }
}

/* What decides the scales to come: mxnet's are one bracket late, deepspeed counts on over the growth. */
TEST_TIMES(a_record_has_all_of_a_scaler, 2) {
    RIG_WITH(rig, 0, AMP_O1, .init_scale = 128.0f, .window = 2, .hysteresis = 1,
             .scaler = _i ? AMP_SCALER_DEEPSPEED : AMP_SCALER_MXNET);
    const double values[] = { 1.0, 1.0, 1.0, INF };
    const float scales[2][4] = { { 128.0f, 128.0f, 256.0f, 256.0f }, { 128.0f, 128.0f, 256.0f, 128.0f } };
    const float next[2][4] = { { 128.0f, 256.0f, 256.0f, 128.0f }, { 128.0f, 128.0f, 256.0f, 128.0f } };
    const uint64_t runs[2][4] = { { 0 }, { 1, 2, 3, 0 } };
    for (size_t i = 0; i < 4; i++) {
        (void)bracket(&rig, values[i]);
        net_zero_grad(&rig.net);
        const amp_record record = rig_record(&rig, 0);
        ck_assert_float_eq(record.scale_after, scales[_i][i]);
        ck_assert_float_eq(record.next_scale, next[_i][i]);
        ck_assert_uint_eq(record.clean_run, runs[_i][i]);
    }
}

TEST(a_later_clean_bracket_does_not_cancel_the_skip) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    net_zero_grad(&rig.net);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(net_step(&rig.net), 1);
}

DIFFERENCE(a_skipped_step_returns_on_skip) {
    static const int32_t skipped = -5;
    RIG_INIT(rig, 0);
    rig.net.step_op.on_skip = &skipped;
    rig_wire(&rig, config_of(AMP_O1));
    const amp_fn slot = rig.net.step;
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_int_eq(net_step(&rig.net), -5);
    ck_assert(rig.net.step == slot); /* nothing is replaced for a skip */
    ck_assert_int_eq(net_step(&rig.net), 1);
}

DIFFERENCE_TIMES(fixed_buffers_hold_what_stood_there_before, 2) {
    START_AT_SCALE(rig, _i ? AMP_O2 : AMP_O1, FAKE_NO_SET_GRAD, 128.0f);
    fake_fill(rig.net.weight->grad, 2.0);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
}

TEST(a_skipped_step_forgets_all_brackets_since_the_last) { /* many hosts have no zero_grad */
    START_AT_SCALE(rig, AMP_O1, FAKE_NO_SET_GRAD, 128.0f);
    fake_fill(rig.net.weight->grad, 2.0);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
}

/* ---- what is said ---- */

TEST_TIMES(the_first_gradient_that_was_not_finite_is_named, 2) {
    START_AT_SCALE(rig, _i ? AMP_O2 : AMP_O1, 0, 128.0f);
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, 1.0);
    add_grad(rig.net.bias, INF);
    add_grad(rig.net.gamma, INF);
    ck_ok(amp_scale_loss_end(&scaled));
    const amp_record record = rig_record(&rig, 0);
    ck_assert_str_eq(record.first_nonfinite, "bias");
    ck_assert_int_eq(record.action, AMP_SKIP);
    ck_assert_float_eq(record.scale_before, 128.0f);
    ck_assert_float_eq(record.scale_after, 64.0f);
    ck_assert_uint_eq(record.brackets, 1);
    ck_assert_uint_eq(record.skipped, 1);
    ck_assert_uint_eq(record.skips_in_row, 1);
}

DIFFERENCE(events_tell_of_skip_and_scale) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_SKIP], 1);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_SCALE_CHANGE], 1);
    ck_assert_float_eq(rig.host.last[AMP_EVENT_SCALE_CHANGE].scale_before, 128.0f);
    ck_assert_float_eq(rig.host.last[AMP_EVENT_SCALE_CHANGE].scale_after, 64.0f);
    ck_assert_ptr_eq(rig.host.last[AMP_EVENT_SKIP].context, rig.context);
}

DIFFERENCE_TIMES(too_many_skips_are_a_status, 2) {
    RIG_WITH(rig, 0, AMP_O1, .max_skips = _i ? AMP_NEVER : 3);
    for (int i = 1; i <= 4; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        add_grad(rig.net.bias, INF);
        const amp_status status = amp_scale_loss_end(&scaled);
        ck_assert_int_eq(status, !_i && i == 3 ? AMP_ERR_TOO_MANY_SKIPS : AMP_OK); /* once */
        ck_assert_int_eq(scaled.action, AMP_SKIP); /* after a completed end */
        if (status != AMP_OK) {
            ck_says("3 steps in a row were skipped");
            ck_says("the first gradient that was not finite is that of bias");
        }
        use_up(&rig);
    }
    ck_assert_float_eq(scale_now(&rig, 0), 4096.0f);
}

/* ---- static scales ---- */

DIFFERENCE_TIMES(a_static_scale_skips_what_it_may_have_broken, 2) {
    amp_config config = config_of(AMP_O1);
    config.loss_scale = _i ? 1.0f : 128.0f;
    RIG_INIT(rig, 0);
    ck_ok(rig_config(&rig, &config));
    ck_assert_int_eq(bracket(&rig, INF), _i ? AMP_STEP : AMP_SKIP);
    ck_assert_float_eq(scale_now(&rig, 0), config.loss_scale);
}

TEST(scale_one_without_masters_touches_no_gradient) {
    RIG_START(rig, AMP_O4, 0);
    add_grad(rig.net.weight, 1.0);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP); /* which libamp looks at */
    const uint64_t looks = rig.host.calls[FAKE_GRAD];
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_uint_eq(rig.host.calls[FAKE_GRAD] - looks + rig.host.calls[FAKE_SET_GRAD], 0);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 4.0);
}

/* ---- kept errors ---- */

DIFFERENCE(a_kept_error_closes_the_bracket_as_cancel) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 0.75), AMP_STEP);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    (void)net_bce(&rig.net, x, x);
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, 1.0);
    ck_refused(AMP_ERR_BANNED, "binary_cross_entropy", amp_scale_loss_end(&scaled));
    ck_assert_float_eq(seen_grad(&rig, 0), 0.75f);
    ck_assert_float_eq(scale_now(&rig, 0), 128.0f);
    ck_assert_int_eq(net_step(&rig.net), 0);
    net_zero_grad(&rig.net);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&rig.net), 1);
}
