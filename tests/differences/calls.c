/* SPDX-License-Identifier: Apache-2.0 */
/* What happens around a wrapped call: the cache, nesting, backward, errors. */
#include "differences.h"

START_TEST(weight_used_twice_is_cast_once) {
    struct rig rig;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    const struct fake_tensor *first = fake_last(&rig.host)->args[1];
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    ck_assert_ptr_eq(fake_last(&rig.host)->args[1], first);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 1);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(cache_follows_versions) {
    struct rig rig;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    rig.host.no_grad = true; /* evaluation, and no bracket between */
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    fake_fill(rig.net.weight, 4.0);
    struct fake_tensor *out = net_linear(&rig.net, x, rig.net.weight, NULL);
    ck_assert_double_eq(fake_get(out, 0), 4.0); /* Apex: 0.5, from the stale cast */
    fake_release(out);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(nested_calls_run_as_they_come) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "relu", AMP_LOWER));
    ck_ok(rig_config(&rig, &config));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_unary(&rig.net, OP_relu, x)); /* calls add(x, an FP32 zero) through the table */
    const struct fake_call *add = &rig.host.log[0];
    ck_assert_str_eq(add->op, "add");
    ck_assert_int_eq(add->dtypes[0], AMP_FLOAT16);
    ck_assert_int_eq(add->dtypes[1], AMP_FLOAT32);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(backward_runs_as_it_comes) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0), *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL)); /* as a backward function would */
    ck_last(&rig.host, "linear", AMP_FLOAT32, AMP_FLOAT32);
    ck_ok(amp_scale_loss_end(&scaled));
    fake_release(x);
    fake_release(loss);
    rig_end(&rig);
}
END_TEST

START_TEST(errors_wait_for_the_end_of_the_bracket) {
    struct rig rig;
    amp_scaled_loss scaled;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT16, 0.5);
    ck_assert_int_eq(net_bce(&rig.net, x, x), 0); /* on_failure: zeros; not called */
    ck_assert_uint_eq(rig.host.n_log, 0);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_ERROR], 1);
    ck_fails(AMP_ERR_BANNED, rig_bracket(&rig, 1.0, 0, &scaled));
    ck_says("op binary_cross_entropy is banned with fp16 arguments");
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(rig.net.steps, 0);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(step_inside_the_bracket_is_refused) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_end(&scaled));
    ck_says("step inside the bracket");
    rig_end(&rig);
}
END_TEST

START_TEST(brackets_of_one_optimizer_do_not_overlap) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT, second = AMP_SCALED_LOSS_INIT;
    amp_config config = config_of(AMP_O1);
    config.num_losses = 2;
    rig_start_config(&rig, &config, 0);
    amp_optimizer *optimizer = &rig.net.optimizer;
    ck_ok(amp_scale_loss_begin(optimizer, NULL, &scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_begin(optimizer, NULL, &second));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_begin_many(NULL, &optimizer, 1, 1, 0, NULL, &second));
    ck_says("an optimizer is in an open bracket already");
    ck_ok(amp_scale_loss_end(&scaled));
    rig_end(&rig);
}
END_TEST

START_TEST(brackets_that_share_a_parameter_do_not_overlap) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT, second = AMP_SCALED_LOSS_INIT;
    amp_config config = config_of(AMP_O1);
    config.num_losses = 2;
    rig_init(&rig, 0);
    void *shared[] = { rig.net.weight };
    amp_optimizer other = { .struct_size = sizeof(amp_optimizer), .params = shared, .n_params = 1 }, *others[] = { &other };
    amp_model *models[] = { &rig.net.model };
    amp_optimizer *optimizers[] = { &rig.net.optimizer, &other };
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, &rig.context));
    ck_ok(amp_scale_loss_begin_many(NULL, optimizers, 1, 0, AMP_DELAY_UNSCALE, NULL, &scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_begin_many(NULL, others, 1, 1, 0, NULL, &second));
    ck_says("weight is in the open bracket of another optimizer");
    net_backward(&rig.net, 1.0, (double)*scaled.scale);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_fails(AMP_ERR_CONFLICT, amp_scale_loss_begin_many(NULL, others, 1, 1, 0, NULL, &second));
    ck_says("weight, which another optimizer shares, still carries the scale of loss_id 0");
    net_zero_grad(&rig.net);
    ck_ok(amp_scale_loss_begin_many(NULL, others, 1, 1, 0, NULL, &second));
    ck_ok(amp_scale_loss_end(&second));
    rig_end(&rig);
}
END_TEST

START_TEST(host_may_seed_backward) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    rig_start(&rig, AMP_O1, FAKE_NO_SCALE);
    struct fake_tensor *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    ck_assert_ptr_eq(scaled.loss, loss);
    ck_assert_float_eq(scaled.seed_factor, 65536.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    fake_release(loss);
    rig_end(&rig);
}
END_TEST

START_TEST(any_tensor_can_be_scaled) {
    struct rig rig;
    void *scaled = NULL;
    float found_inf = 0.0f;
    rig_start(&rig, AMP_O1, 0);
    struct fake_tensor *penalty = rig_tensor(&rig, AMP_FLOAT32, 3.0);
    ck_ok(amp_scale(rig.context, 0, penalty, &scaled));
    ck_assert_double_eq(fake_get(scaled, 0), 3.0 * 65536.0);
    ck_ok(amp_unscale(rig.context, 0, &scaled, 1, &found_inf));
    ck_assert_double_eq(fake_get(scaled, 0), 3.0);
    ck_assert_float_eq(found_inf, 0.0f);
    fake_release(scaled);
    fake_release(penalty);
    rig_end(&rig);
}
END_TEST

void add_calls(TCase *tcase) {
    tcase_add_test(tcase, any_tensor_can_be_scaled);
    tcase_add_test(tcase, weight_used_twice_is_cast_once);
    tcase_add_test(tcase, cache_follows_versions);
    tcase_add_test(tcase, nested_calls_run_as_they_come);
    tcase_add_test(tcase, backward_runs_as_it_comes);
    tcase_add_test(tcase, errors_wait_for_the_end_of_the_bracket);
    tcase_add_test(tcase, step_inside_the_bracket_is_refused);
    tcase_add_test(tcase, brackets_of_one_optimizer_do_not_overlap);
    tcase_add_test(tcase, brackets_that_share_a_parameter_do_not_overlap);
    tcase_add_test(tcase, host_may_seed_backward);
}
