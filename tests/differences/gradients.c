/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients between brackets and through them. */
#include "differences.h"

/* O2 with a scale under which gradients of a few units fit fp16. */
static amp_config small_o2(void) {
    amp_config config = config_of(AMP_O2);
    config.init_scale = 1024.0f;
    return config;
}

static void start_o2(struct rig *rig) {
    const amp_config config = small_o2();
    rig_start_config(rig, &config, 0);
}

START_TEST(cancel_gives_gradients_back) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    const struct fake_tensor *before = rig.net.weight->grad;
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    net_backward(&rig.net, 1.0, 1000.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_ptr_eq(rig.net.weight->grad, before);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 1.0);
    rig_end(&rig);
}
END_TEST

START_TEST(sixteen_bit_gradient_shows_the_master) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O2);
    config.init_scale = 3.0f; /* 1/3 is rounded once: the master keeps more bits than fp16 shows */
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, 1.0 / 3.0, 0, &scaled));
    const amp_master master = rig_master(&rig, rig.net.weight);
    const double exact = (double)((const float *)master.grad)[0];
    ck_dtype(rig.net.weight->grad, AMP_FLOAT16); /* Apex: still scaled here */
    ck_assert_double_eq_tol(exact, 1.0 / 3.0, 1e-6);
    ck_assert_double_ne(fake_get(rig.net.weight->grad, 0), exact);
    ck_assert_double_eq_tol(fake_get(rig.net.weight->grad, 0), exact, 0x1p-12);
    rig_end(&rig);
}
END_TEST

START_TEST(gradient_lives_until_zeroed) {
    struct rig rig;
    amp_scaled_loss scaled;
    start_o2(&rig);
    rig.net.rate = 0.0f;
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 1); /* no zero_grad: FP32 training would add up */
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
    ck_assert_double_eq(fake_get(rig.net.gamma->grad, 0), 1.5); /* FP32, like the others: 2 * (0.5 + 0.25) */
    rig_end(&rig);
}
END_TEST

START_TEST(zero_grad_is_the_hosts_own) {
    struct rig rig;
    amp_scaled_loss scaled;
    start_o2(&rig);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    net_zero_grad(&rig.net); /* this host's sets to none */
    ck_assert_ptr_null(rig.net.weight->grad);
    ck_assert_ptr_null(rig.net.gamma->grad);
    ck_assert_ptr_null(rig_master(&rig, rig.net.weight).grad);
    rig_end(&rig);
}
END_TEST

START_TEST(gradients_that_the_host_drops_are_gone) {
    struct rig rig;
    amp_scaled_loss scaled;
    start_o2(&rig);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    fake_put_grad(rig.net.weight, NULL); /* behind libamp's back: model.zero_grad() */
    ck_ok(rig_bracket(&rig, 4.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 4.0);
    ck_assert_double_eq(fake_get(rig.net.bias->grad, 0), 5.0);
    rig_end(&rig);
}
END_TEST

START_TEST(gradients_of_before_initialize_count) {
    struct rig rig;
    amp_scaled_loss scaled;
    const amp_config config = small_o2();
    rig_init(&rig, 0);
    net_backward(&rig.net, 1.0, 1.0);
    ck_ok(rig_config(&rig, &config));
    ck_ok(rig_bracket(&rig, 2.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0);
    rig_end(&rig);
}
END_TEST

START_TEST(static_one_with_masters_accumulates) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O2);
    config.loss_scale = 1.0f;
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.gamma->grad, 0), 1.5); /* Apex loses the first bracket's 0.75 */
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
    rig_end(&rig);
}
END_TEST

START_TEST(delayed_unscale_adds_older_gradients) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(rig_bracket(&rig, 1.0, 0, &scaled));
    ck_ok(rig_bracket(&rig, 2.0, AMP_DELAY_UNSCALE, &scaled));
    ck_ok(rig_bracket(&rig, 4.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 7.0); /* Apex: 1 / 65536 + 6 */
    rig_end(&rig);
}
END_TEST

START_TEST(delayed_unscale_stays_with_its_loss) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.num_losses = 2;
    rig_start_config(&rig, &config, 0);
    amp_optimizer *optimizer = &rig.net.optimizer;
    ck_ok(rig_bracket(&rig, 1.0, AMP_DELAY_UNSCALE, &scaled));
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_fails(AMP_ERR_CONFLICT, amp_scale_loss_begin_many(NULL, &optimizer, 1, 1, 0, NULL, &scaled));
    ck_says("gradients still carry the scale of loss_id 0");
    ck_says("end the last bracket of that loss without the flag, or give both losses one loss_id");
    rig_end(&rig);
    config.loss_scale = 1024.0f; /* one scale, for ever */
    rig_start_config(&rig, &config, 0);
    optimizer = &rig.net.optimizer;
    ck_ok(rig_bracket(&rig, 1.0, AMP_DELAY_UNSCALE, &scaled));
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin_many(NULL, &optimizer, 1, 1, 0, NULL, &scaled));
    net_backward(&rig.net, 2.0, (double)*scaled.scale);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0);
    rig_end(&rig);
}
END_TEST

/* A bracket without optimizers completes the window meanwhile. */
START_TEST(delayed_unscale_keeps_its_scale) {
    struct rig rig;
    amp_scaled_loss scaled;
    amp_config config = config_of(AMP_O1);
    config.window = 1;
    rig_start_config(&rig, &config, 0);
    ck_ok(rig_bracket(&rig, 1.0, AMP_DELAY_UNSCALE, &scaled));
    scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin_many(rig.context, NULL, 0, 0, 0, NULL, &scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(rig_bracket(&rig, 2.0, 0, &scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0); /* Apex: 1 / 2 + 2 */
    rig_end(&rig);
}
END_TEST

START_TEST(step_on_scaled_gradients_is_refused) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(rig_bracket(&rig, 1.0, AMP_DELAY_UNSCALE, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_check(rig.context));
    ck_says("step while gradients are still scaled");
    rig_end(&rig);
}
END_TEST

void add_gradients(TCase *tcase) {
    tcase_add_test(tcase, cancel_gives_gradients_back);
    tcase_add_test(tcase, sixteen_bit_gradient_shows_the_master);
    tcase_add_test(tcase, gradient_lives_until_zeroed);
    tcase_add_test(tcase, zero_grad_is_the_hosts_own);
    tcase_add_test(tcase, gradients_that_the_host_drops_are_gone);
    tcase_add_test(tcase, gradients_of_before_initialize_count);
    tcase_add_test(tcase, static_one_with_masters_accumulates);
    tcase_add_test(tcase, delayed_unscale_adds_older_gradients);
    tcase_add_test(tcase, delayed_unscale_stays_with_its_loss);
    tcase_add_test(tcase, delayed_unscale_keeps_its_scale);
    tcase_add_test(tcase, step_on_scaled_gradients_is_refused);
}
