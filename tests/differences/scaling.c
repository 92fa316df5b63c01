/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale: limits, options, what counts as an overflow, what follows from one. */
#include "differences.h"

#include <math.h>

static amp_record record_of(struct rig *rig) {
    amp_record record = AMP_RECORD_INIT;
    ck_ok(amp_get_record(rig->context, 0, &record));
    return record;
}

START_TEST(scale_has_a_floor) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.init_scale = 0x1p-124f;
    rig_start_config(&rig, &config, 0);
    for (int i = 0; i < 10; i++) {
        ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
        net_zero_grad(&rig.net);
    }
    ck_assert_float_eq(record_of(&rig).scale_after, 0x1p-126f);
    rig_end(&rig);
}
END_TEST

START_TEST(many_skips_are_reported) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.max_skips = 3;
    rig_start_config(&rig, &config, 0);
    for (int i = 0; i < 2; i++) {
        ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
        net_zero_grad(&rig.net);
    }
    ck_fails(AMP_ERR_TOO_MANY_SKIPS, rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_says("3 steps in a row were skipped");
    ck_says("the first gradient that was not finite is weight's");
    rig_end(&rig);
}
END_TEST

START_TEST(static_scale_skips) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.loss_scale = 128.0f;
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_assert_float_eq(record_of(&rig).scale_after, 128.0f);
    rig_end(&rig);
    rig_start(&rig, AMP_O5, 0); /* static 1, masters: steps on, as Apex */
    ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    ck_assert_float_eq(*scaled.found_inf, 1.0f);
    rig_end(&rig);
}
END_TEST

START_TEST(growth_backoff_window_and_hysteresis_are_options) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.init_scale = 100.0f;
    config.growth = 3.0f;
    config.backoff = 0.25f;
    config.window = 2;
    config.hysteresis = 2;
    rig_start_config(&rig, &config, 0);
    const double factors[] = { 1.0, 1.0, INFINITY, INFINITY, INFINITY };
    const float scales[] = { 100.0f, 300.0f, 300.0f, 75.0f, 18.75f }; /* one overflow tolerated, then every one */
    for (size_t i = 0; i < 5; i++) {
        ck_ok(rig_bracket(&rig, factors[i], 0, &scaled));
        net_zero_grad(&rig.net);
        ck_assert_float_eq(record_of(&rig).scale_after, scales[i]);
    }
    rig_end(&rig);
}
END_TEST

START_TEST(overflow_of_the_product_is_found) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.loss_scale = 0x1p-10f;
    rig_start_config(&rig, &config, 0);
    amp_optimizer *optimizer = &rig.net.optimizer;
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(optimizer, NULL, &scaled));
    net_backward(&rig.net, 1.0, 3e38); /* finite; 1024 times it is not */
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    rig_end(&rig);
}
END_TEST

START_TEST(overflow_of_the_sum_is_found) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.init_scale = 1.0f;
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, 2e38, 0, &scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    ck_ok(rig_bracket(&rig, 2e38, 0, &scaled)); /* each finite, their sum is not */
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    rig_end(&rig);
}
END_TEST

START_TEST(skip_is_an_event) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_SKIP], 1);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_SCALE_CHANGE], 1);
    ck_assert_float_eq(rig.host.last[AMP_EVENT_SCALE_CHANGE].scale_before, 65536.0f);
    ck_assert_float_eq(rig.host.last[AMP_EVENT_SCALE_CHANGE].scale_after, 32768.0f);
    rig_end(&rig);
}
END_TEST

START_TEST(skipped_step_returns_a_stated_value) {
    struct rig rig;
    amp_scaled_loss scaled;
    static const int32_t skipped = -7;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, 0);
    rig.net.step_op.on_skip = &skipped;
    ck_ok(rig_config(&rig, &config));
    const amp_fn slot = rig.net.step;
    ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_assert_int_eq(net_step(&rig.net), -7);
    ck_assert(rig.net.step == slot); /* nothing is replaced for a skip */
    net_zero_grad(&rig.net);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 1);
    rig_end(&rig);
}
END_TEST

START_TEST(fixed_buffers_come_back_after_an_overflow) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, FAKE_NO_SET_GRAD);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 1.0);
    ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 1.0);
    rig_end(&rig);
}
END_TEST

START_TEST(words_become_rare) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    rig_start_config(&rig, &config, 0);
    for (unsigned i = 1; i <= 20; i++) {
        rig.host.last_message[AMP_EVENT_SKIP][0] = 0;
        ck_ok(rig_bracket(&rig, INFINITY, 0, &scaled));
        net_zero_grad(&rig.net);
        ck_assert_uint_eq(rig.host.events[AMP_EVENT_SKIP], i);
        ck_assert_int_eq(rig.host.last_message[AMP_EVENT_SKIP][0] != 0, i <= 10 || i == 16);
    }
    rig_end(&rig);
}
END_TEST

START_TEST(delayed_check_is_decided_later) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, INFINITY, AMP_DELAY_OVERFLOW_CHECK, &scaled));
    ck_assert_uint_eq(record_of(&rig).brackets, 0);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    ck_assert_uint_eq(record_of(&rig).brackets, 1);
    ck_assert_float_eq(record_of(&rig).scale_after, 32768.0f);
    ck_assert_int_eq(net_step(&rig.net), 0);
    rig_end(&rig);
}
END_TEST

START_TEST(undecided_step_is_refused) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, INFINITY, AMP_DELAY_OVERFLOW_CHECK, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_check(rig.context));
    ck_says("AMP_DELAY_OVERFLOW_CHECK");
    rig_end(&rig);
}
END_TEST

void add_scaling(TCase *tcase) {
    tcase_add_test(tcase, scale_has_a_floor);
    tcase_add_test(tcase, many_skips_are_reported);
    tcase_add_test(tcase, static_scale_skips);
    tcase_add_test(tcase, growth_backoff_window_and_hysteresis_are_options);
    tcase_add_test(tcase, overflow_of_the_product_is_found);
    tcase_add_test(tcase, overflow_of_the_sum_is_found);
    tcase_add_test(tcase, skip_is_an_event);
    tcase_add_test(tcase, words_become_rare);
    tcase_add_test(tcase, delayed_check_is_decided_later);
    tcase_add_test(tcase, undecided_step_is_refused);
    tcase_add_test(tcase, skipped_step_returns_a_stated_value);
    tcase_add_test(tcase, fixed_buffers_come_back_after_an_overflow);
}
