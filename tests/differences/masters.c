/* SPDX-License-Identifier: Apache-2.0 */
/* FP32 masters and the model's types. */
#include "differences.h"

START_TEST(masters_are_there_from_initialize_on) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    rig_init(&rig, 0);
    fake_fill(rig.net.weight, 0.1);
    ck_ok(rig_config(&rig, &config));
    const amp_master master = rig_master(&rig, rig.net.weight);
    ck_assert_int_eq(master.is_master, 1);
    ck_assert_int_eq(master.dtype, AMP_FLOAT32);
    ck_assert_float_eq(((const float *)master.data)[0], 0.1f); /* the old storage: no bit was lost on the way */
    ck_assert_ptr_null(master.grad);
    rig_end(&rig);
}
END_TEST

START_TEST(step_before_any_bracket) {
    struct rig rig;
    rig_start(&rig, AMP_O2, 0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
    ck_ok(amp_check(rig.context));
    rig_end(&rig);
}
END_TEST

START_TEST(optimizer_sees_fp32_under_its_own_handles) {
    struct rig rig;
    amp_config config = config_of(AMP_O2);
    config.init_scale = 1024.0f; /* fits fp16 gradients of a few units */
    rig_start_config(&rig, &config, 0);
    const struct fake_tensor *weight = rig.net.trained[0];
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32);
    ck_assert_int_eq(rig.net.step_grad, AMP_FLOAT32);
    ck_assert_ptr_eq(rig.net.trained[0], weight);
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.375); /* 0.5 - 0.125 * 1 */
    rig_end(&rig);
}
END_TEST

START_TEST(loaded_weights_survive_the_next_step) {
    struct rig rig;
    amp_config config = config_of(AMP_O2);
    config.init_scale = 1024.0f; /* fits fp16 gradients of a few units */
    rig_start_config(&rig, &config, 0);
    ck_ok(net_train_step(&rig.net, 1.0));
    const double untouched = master_value(&rig, rig.net.bias);
    fake_fill(rig.net.weight, 2.0); /* the host loads a file into its model */
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 2.0); /* Apex: the master's old value */
    ck_assert_double_eq(master_value(&rig, rig.net.weight), 2.0);
    ck_assert_double_eq(master_value(&rig, rig.net.bias), untouched);
    rig_end(&rig);
}
END_TEST

START_TEST(batch_norm_without_affine_stays_fp32) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    rig_init(&rig, 0);
    rig.net.params[2] = rig.net.params[3]; /* gamma is not listed: the layer has statistics alone */
    rig.net.optimizer.n_params = 2;
    ck_ok(rig_config(&rig, &config));
    ck_dtype(rig.net.mean, AMP_FLOAT32);
    rig_end(&rig);
}
END_TEST

START_TEST(masters_follow_the_optimizers_list) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    rig_init(&rig, 0);
    rig.net.weight->requires_grad = false; /* frozen, but the optimizer lists it */
    void *trained[] = { rig.net.weight };
    rig.net.optimizer.params = trained;
    rig.net.optimizer.n_params = 1;
    fake_fill(rig.net.bias, 0.1);
    ck_ok(rig_config(&rig, &config));
    ck_assert_int_eq(rig_master(&rig, rig.net.weight).is_master, 1);
    ck_dtype(rig.net.bias, AMP_FLOAT16);
    ck_ok(amp_shutdown(rig.context));
    rig.context = NULL;
    ck_assert_double_eq(fake_get(rig.net.bias, 0), (double)0.0999755859375f); /* it had no master: rounded to fp16 */
    rig_end(&rig);
}
END_TEST

START_TEST(shutdown_gives_the_masters_back) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    rig_init(&rig, 0);
    fake_fill(rig.net.weight, 0.1);
    ck_ok(rig_config(&rig, &config));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_ok(amp_shutdown(rig.context));
    rig.context = NULL;
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), (double)0.1f);
    rig_end(&rig);
}
END_TEST

START_TEST(weights_that_do_not_fit_are_named) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    rig_init(&rig, 0);
    fake_fill(rig.net.weight, 1e6);
    ck_ok(rig_config(&rig, &config));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_WARNING], "4 weights are too large for fp16 and became infinite"));
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_WARNING], "in weight"));
    rig_end(&rig);
}
END_TEST

void add_masters(TCase *tcase) {
    tcase_add_test(tcase, masters_are_there_from_initialize_on);
    tcase_add_test(tcase, step_before_any_bracket);
    tcase_add_test(tcase, optimizer_sees_fp32_under_its_own_handles);
    tcase_add_test(tcase, loaded_weights_survive_the_next_step);
    tcase_add_test(tcase, batch_norm_without_affine_stays_fp32);
    tcase_add_test(tcase, masters_follow_the_optimizers_list);
    tcase_add_test(tcase, shutdown_gives_the_masters_back);
    tcase_add_test(tcase, weights_that_do_not_fit_are_named);
}
