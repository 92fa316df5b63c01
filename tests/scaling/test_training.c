/* SPDX-License-Identifier: Apache-2.0 */
/* Steps without a slot, clipping, and whole trainings against a reference that does the casts by hand. */
#include "bracket.h"

#include "amp_kernels.h"

#include <math.h>
#include <pthread.h>

TEST(step_begin_lends_the_masters) {
    START_AT_SCALE(rig, AMP_O2, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_assert_float_eq(info.grad_scale, 1.0f);
    ck_assert_float_eq(*info.found_inf, 0.0f);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_dtype(rig.net.weight->grad, AMP_FLOAT32);
    fake_fill(rig.net.weight, 0.75);
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.75);
}

TEST(step_begin_says_skip_once) {
    START_AT_SCALE(rig, AMP_O2, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_SKIP);
    ck_assert_float_eq(*info.found_inf, 1.0f);
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_ok(amp_step_begin(&rig.net.optimizer, &info));
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_assert_float_eq(*info.found_inf, 0.0f);
    ck_ok(amp_step_end(&rig.net.optimizer));
}

/* A host that reads found_inf alone does as one that reads the action. */
TEST_TIMES(found_inf_of_a_step_agrees_with_its_action, 8) {
    START_AT_SCALE(rig, AMP_O2, 0, 128.0f);
    for (unsigned i = 0; i < 3; i++) (void)bracket(&rig, _i >> i & 1 ? INF : 1.0);
    const amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, _i ? AMP_SKIP : AMP_STEP);
    ck_assert_float_eq(*info.found_inf, _i ? 1.0f : 0.0f);
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_assert_float_eq(*rig_step_begin(&rig).found_inf, 0.0f);
    ck_ok(amp_step_end(&rig.net.optimizer));
}

TEST(found_inf_of_a_step_that_a_failed_call_skips_is_not_0) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_fail(&rig.host, FAKE_CAST, 1);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    const amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_SKIP);
    ck_assert_float_eq(*info.found_inf, 1.0f);
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_fails(AMP_ERR_HOST_FAILED, amp_check(rig.context));
}

TEST(step_begin_and_end_come_in_pairs) {
    START_AT_SCALE(rig, AMP_O2, 0, 128.0f);
    ck_fails(AMP_ERR_WRONG_STATE, amp_step_end(&rig.net.optimizer));
    amp_step_info info = rig_step_begin(&rig);
    ck_fails(AMP_ERR_WRONG_STATE, amp_step_begin(&rig.net.optimizer, &info));
    ck_fails(AMP_ERR_WRONG_STATE, amp_shutdown(rig.context));
    ck_ok(amp_step_end(&rig.net.optimizer));
}

static void *end_elsewhere(void *optimizer) {
    ck_refused(AMP_ERR_WRONG_STATE, "another thread", amp_step_end(optimizer));
    return NULL;
}

/* The scope of the step is the thread's that began it: ended elsewhere, that thread would cast no more. */
TEST(a_step_ends_on_its_thread) {
    pthread_t thread;
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    (void)rig_step_begin(&rig);
    ck_assert_int_eq(pthread_create(&thread, NULL, end_elsewhere, &rig.net.optimizer), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_ok(amp_step_end(&rig.net.optimizer));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).casts, 3);
}

/* ---- clipping ---- */

TEST_TIMES(clipping_scales_masters_and_returns_the_norm, 4) {
    const bool small = _i % 2;
    float norm = 0.0f;
    START_AT_SCALE(rig, _i / 2 ? AMP_O2 : AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 2.0), AMP_STEP); /* 4 elements of 2: the norm is 4 */
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, small ? 100.0f : 1.0f, &norm));
    ck_assert_float_eq(norm, 4.0f);
    const float factor = (float)(1.0 / (4.0 + 1e-6));
    ck_assert_float_eq(seen_grad(&rig, 0), small ? 2.0f : 2.0f * factor);
}

TEST(clipping_leaves_gradients_that_are_not_finite) {
    float norm = 0.0f;
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    add_grad(rig.net.weight, INF);
    add_grad(rig.net.bias, 3.0);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1.0f, &norm));
    ck_assert(!isfinite(norm));
    ck_assert_float_eq(seen_grad(&rig, 1), 3.0f);
}

TEST(clipping_inside_a_bracket_is_refused) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_refused(AMP_ERR_WRONG_STATE, "amp_scale_loss_end", amp_clip_grad_norm(&rig.net.optimizer, 1.0f, NULL));
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST_TIMES(max_norm_must_be_positive, 3) {
    static const float bad[] = { 0.0f, -1.0f, __builtin_nanf("") };
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_clip_grad_norm(&rig.net.optimizer, bad[_i], NULL));
}

/* ---- training ---- */

enum { STEPS = 20 };
static double input_of(int step) { return 0.25 + 0.125 * (step % 5); }

/* Weight, bias in the low type with FP32 masters; gamma in FP32; gradients in the parameters' types; SGD in float. */
static float low(float value, bool bf16) {
    return bf16 ? amp_bfloat16_to_float(amp_float_to_bfloat16(value)) : amp_half_to_float(amp_float_to_half(value));
}

static void reference(bool bf16, float masters[3]) {
    const float rate = 0.125f;
    masters[0] = 0.5f, masters[1] = 0.25f, masters[2] = 1.0f;
    for (int step = 0; step < STEPS; step++) {
        const double x = input_of(step);
        const double weight = (double)low(masters[0], bf16), bias = (double)low(masters[1], bf16),
                     gamma = (double)masters[2];
        const float grads[] = { low((float)(x * gamma), bf16), low((float)gamma, bf16), (float)(x * weight + bias) };
        for (int k = 0; k < 3; k++) masters[k] -= rate * grads[k];
    }
}

/* A whole training, and the elements of each parameter at its end. */
static void train(amp_level level, unsigned options, float scale, double result[3]) {
    RIG_WITH(rig, options, level, .loss_scale = scale);
    for (int step = 0; step < STEPS; step++) ck_ok(net_train_step(&rig.net, input_of(step)));
    ck_assert_int_eq(rig.net.steps, STEPS);
    rig_stop(&rig);
    for (size_t k = 0; k < 3; k++) {
        result[k] = fake_get(rig.net.trained[k], 0);
        for (int64_t i = 1; i < NET_SIZE; i++) ck_assert_double_eq(fake_get(rig.net.trained[k], i), result[k]);
    }
}

DIFFERENCE_TIMES(training_equals_the_casts_by_hand, 2) {
    float expected[3];
    double result[3];
    train(_i ? AMP_O5 : AMP_O2, 0, 1.0f, result);
    reference(_i, expected);
    for (size_t k = 0; k < 3; k++) ck_assert_double_eq(result[k], (double)expected[k]);
}

TEST_TIMES(a_power_of_two_changes_nothing, 20) {
    static const unsigned options[] = { 0, FAKE_RETAINS, FAKE_NO_SET_GRAD, FAKE_NO_VERSION | FAKE_NO_ID | FAKE_NO_ALLOC,
                                        FAKE_FP32_GRADS };
    const amp_level level = _i % 2 ? AMP_O2 : AMP_O0;
    double scaled[3], plain[3];
    train(level, options[_i / 4], _i / 2 % 2 ? 8.0f : 1024.0f, scaled);
    train(level, options[_i / 4], 1.0f, plain);
    for (size_t k = 0; k < 3; k++) ck_assert_double_eq(scaled[k], plain[k]);
}

TEST(o0_equals_no_libamp_at_all) {
    double result[3];
    RIG_INIT(plain, 0);
    for (int step = 0; step < STEPS; step++) {
        net_backward(&plain.net, input_of(step), 1.0);
        ck_assert_int_eq(net_step(&plain.net), 1);
        net_zero_grad(&plain.net);
    }
    train(AMP_O0, 0, 0.0f, result);
    for (size_t k = 0; k < 3; k++) ck_assert_double_eq(result[k], fake_get(plain.net.trained[k], 0));
}
