/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, initialize, configuration. */
#include "differences.h"

#include <math.h>

START_TEST(contexts_instead_of_globals) {
    struct rig a, b;
    rig_start(&a, AMP_O1, FAKE_RETAINS);
    rig_start(&b, AMP_O0, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&a, AMP_FLOAT32, 1.0), *y = rig_tensor(&b, AMP_FLOAT32, 1.0);
    fake_release(net_linear(&a.net, x, a.net.weight, NULL));
    ck_last(&a.host, "linear", AMP_FLOAT16, AMP_FLOAT16);
    fake_release(net_linear(&b.net, y, b.net.weight, NULL));
    ck_last(&b.host, "linear", AMP_FLOAT32, AMP_FLOAT32);
    fake_release(x);
    fake_release(y);
    rig_end(&a);
    rig_end(&b);
}
END_TEST

START_TEST(second_initialize_is_refused) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_initialize(&rig.net.model, &rig.net.optimizer, AMP_O1));
    ck_says("model 0 is initialised already: amp_shutdown its context first");
    rig_end(&rig);
}
END_TEST

START_TEST(initialize_again_after_shutdown) {
    struct rig rig;
    rig_start(&rig, AMP_O1, 0);
    ck_ok(amp_shutdown(rig.context));
    ck_assert(net_slots_restored(&rig.net));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    ck_last(&rig.host, "linear", AMP_FLOAT32, AMP_FLOAT32);
    const amp_config config = config_of(AMP_O2);
    ck_ok(rig_config(&rig, &config));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(cpu_is_a_device) {
    struct rig rig;
    rig_start(&rig, AMP_O5, 0); /* the fake host's views say device type 1 */
    ck_ok(net_train_step(&rig.net, 1.0));
    ck_assert_int_eq(rig.net.steps, 1);
    rig_end(&rig);
}
END_TEST

START_TEST(incoming_16bit_is_refused_by_name) {
    for (amp_dtype dtype = AMP_FLOAT16; dtype <= AMP_BFLOAT16; dtype++) {
        struct rig rig;
        const amp_config config = config_of(AMP_O1);
        rig_init(&rig, 0);
        struct fake_tensor *low = rig_tensor(&rig, dtype, 1.0);
        rig.net.params[0].tensor = low;
        ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
        ck_says(dtype == AMP_FLOAT16 ? "weight is fp16 already" : "weight is bf16 already");
        fake_release(low);
        rig_end(&rig);
    }
}
END_TEST

/* Parameters, model inputs and outputs; gradients of fp64 parameters are unscaled in double. */
START_TEST(fp64_is_left_alone) {
    struct rig rig;
    const amp_config config = config_of(AMP_O2);
    void *trained[] = { NULL };
    rig_init(&rig, 0);
    trained[0] = rig.net.wide;
    rig.net.optimizer.params = trained;
    rig.net.optimizer.n_params = 1;
    ck_ok(rig_config(&rig, &config));
    ck_dtype(rig.net.wide, AMP_FLOAT64);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT64, 1.0), *out = net_forward(&rig.net, x);
    ck_dtype(out, AMP_FLOAT64);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    fake_put_grad(rig.net.wide, rig_tensor(&rig, AMP_FLOAT64, 0.1 * (double)*scaled.scale));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.wide->grad, 0), 0.1); /* not float's 0.1 */
    fake_release(x);
    fake_release(out);
    rig_end(&rig);
}
END_TEST

START_TEST(refused_overrides_stay_errors) {
    struct rig rig;
    amp_config config = config_of(AMP_O1);
    config.master_weights = AMP_OFF;
    rig_init(&rig, 0);
    ck_fails(AMP_ERR_CONFLICT, rig_config(&rig, &config));
    ck_says("level O1: master_weights cannot be set");
    rig_end(&rig);
}
END_TEST

START_TEST(static_scale_is_positive_and_finite) {
    const float bad[] = { -2.0f, INFINITY, NAN };
    for (size_t i = 0; i < 3; i++) {
        struct rig rig;
        amp_config config = config_of(AMP_O1);
        config.loss_scale = bad[i];
        rig_init(&rig, 0);
        ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
        ck_says("use AMP_DYNAMIC, or a finite static scale above 0");
        rig_end(&rig);
    }
}
END_TEST

START_TEST(ops_that_match_no_list_are_said) {
    struct rig rig;
    const amp_config config = config_of(AMP_O1);
    rig_init(&rig, 0);
    rig.net.ops[0].name = "linaer"; /* slot of linear; the only op given */
    rig.net.model.n_ops = 1;
    ck_ok(rig_config(&rig, &config));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_WARNING], "0 of 1 ops got a class from the apex lists"));
    ck_assert_ptr_nonnull(strstr(rig.host.last_message[AMP_EVENT_WARNING], "linaer = linear"));
    rig_end(&rig);
}
END_TEST

START_TEST(scopes_nest) {
    struct rig rig;
    amp_scope none, inner, alone;
    ck_ok(amp_scope_enter(NULL, &alone)); /* also before any context exists */
    ck_ok(amp_scope_leave(&alone));
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_ok(amp_scope_enter(NULL, &none));
    ck_ok(amp_scope_enter(NULL, &inner));
    ck_ok(amp_scope_leave(&inner));
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL)); /* still disabled: Apex's inner exit enables */
    ck_last(&rig.host, "linear", AMP_FLOAT32, AMP_FLOAT32);
    ck_ok(amp_scope_leave(&none));
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    ck_last(&rig.host, "linear", AMP_FLOAT16, AMP_FLOAT16);
    fake_release(x);
    rig_end(&rig);
}
END_TEST

START_TEST(bfloat16_levels) {
    struct rig four, five;
    amp_record record = AMP_RECORD_INIT;
    rig_start(&four, AMP_O4, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&four, AMP_FLOAT32, 1.0);
    fake_release(net_linear(&four.net, x, four.net.weight, NULL));
    ck_last(&four.host, "linear", AMP_BFLOAT16, AMP_BFLOAT16);
    fake_release(x);
    rig_end(&four);
    rig_start(&five, AMP_O5, 0);
    ck_dtype(five.net.weight, AMP_BFLOAT16);
    ck_dtype(five.net.gamma, AMP_FLOAT32);
    ck_assert_int_eq(rig_master(&five, five.net.weight).is_master, 1);
    ck_ok(amp_get_record(five.context, 0, &record));
    ck_assert_float_eq(record.scale_after, 1.0f);
    rig_end(&five);
}
END_TEST

void add_contexts(TCase *tcase) {
    tcase_add_test(tcase, contexts_instead_of_globals);
    tcase_add_test(tcase, second_initialize_is_refused);
    tcase_add_test(tcase, initialize_again_after_shutdown);
    tcase_add_test(tcase, cpu_is_a_device);
    tcase_add_test(tcase, incoming_16bit_is_refused_by_name);
    tcase_add_test(tcase, fp64_is_left_alone);
    tcase_add_test(tcase, refused_overrides_stay_errors);
    tcase_add_test(tcase, static_scale_is_positive_and_finite);
    tcase_add_test(tcase, ops_that_match_no_list_are_said);
    tcase_add_test(tcase, scopes_nest);
    tcase_add_test(tcase, bfloat16_levels);
}
