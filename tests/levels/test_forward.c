/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped forward: inputs and outputs at each level; enabled = OFF; contexts without a model or an optimizer. */
#include "checks.h"

/* What forward itself, behind the wrapper, was handed: the first argument of its first op. */
static amp_dtype inner(const struct rig *rig) { return rig->host.log[0].dtypes[0]; }

TEST_TIMES(inputs_become_the_models_type, 3) {
    static const amp_level levels[] = { AMP_O2, AMP_O3, AMP_O5 };
    static const amp_dtype low[] = { AMP_FLOAT16, AMP_FLOAT16, AMP_BFLOAT16 };
    RIG_START(rig, levels[_i], FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), low[_i]);
    ck_dtype(y, AMP_FLOAT32);
    ck_assert_double_eq(fake_get(y, 0), 1.25);
}

TEST_TIMES(integer_and_fp64_inputs_are_untouched, 2) {
    static const amp_dtype dtypes[] = { AMP_DTYPE_OTHER, AMP_FLOAT64 };
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, dtypes[_i], 2.0), *y = net_forward(&rig.net, x);
    ck_assert_ptr_eq(rig.host.log[0].args[0], x);
}

TEST_TIMES(outputs_as_asked, 3) {
    static const amp_dtype wanted[] = { AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT32 };
    amp_config config = config_of(AMP_O2);
    config.cast_model_outputs = wanted[_i];
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(rig_config(&rig, &config));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_dtype(y, wanted[_i]);
}

TEST(outputs_can_be_cast_at_o1_too) {
    amp_config config = config_of(AMP_O1);
    config.cast_model_outputs = AMP_BFLOAT16;
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(rig_config(&rig, &config));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_dtype(y, AMP_BFLOAT16);
}

TEST(o0_widens_inputs_and_outputs) { /* apex.md 4.1: O0 therefore casts inputs and outputs to fp32 */
    RIG_START(rig, AMP_O0, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), AMP_FLOAT32);
    ck_dtype(y, AMP_FLOAT32);
}

TEST(o1_leaves_inputs_to_the_ops) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), AMP_FLOAT16);
    ck_dtype(y, AMP_FLOAT32); /* fp16 hidden times fp32 gamma: promoted */
}

TEST(forward_enters_the_contexts_scope) { /* two contexts on the ops: only a scope tells whose call it is */
    struct rig rig;
    amp_config config = config_of(AMP_O4);
    amp_context *other = NULL;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    amp_model second = rig.net.model, *models[] = { &second };
    second.amp = NULL;
    second.forward = NULL;
    second.n_params = 0;
    ck_ok(amp_initialize_many(models, 1, NULL, 0, &config, &other));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), AMP_FLOAT16);
    ck_ok(amp_shutdown(other));
    fake_release(x);
    fake_release(y);
    rig_end(&rig);
}

TEST(forward_of_another_self_is_untouched) {
    struct net stranger;
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    stranger = rig.net;
    OWN_TENSOR *y = net_forward(&stranger, x); /* same slot value, another self */
    ck_assert_int_eq(inner(&rig), AMP_FLOAT32);
}

TEST(a_failed_input_cast_is_kept) {
    static void *const refusal = NULL;
    const amp_config config = config_of(AMP_O2);
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.forward_op.on_failure = &refusal;
    ck_ok(rig_config(&rig, &config));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    rig.host.fail_hook = FAKE_CAST;
    rig.host.fail_at = 1;
    ck_assert_ptr_null(net_forward(&rig.net, x));
    ck_fails(AMP_ERR_HOST_FAILED, amp_check(rig.context));
    ck_says("forward");
}

/* ---- enabled = OFF: a pass-through everywhere ---- */

static void start_disabled(struct rig *rig, amp_level level) {
    amp_config config = config_of(level);
    config.enabled = AMP_OFF;
    rig_init(rig, FAKE_RETAINS);
    ck_ok(rig_config(rig, &config));
}

TEST_TIMES(disabled_touches_no_slot_and_no_parameter, 6) {
    RIG(rig);
    start_disabled(&rig, AMP_O0 + _i);
    ck_assert(net_slots_restored(&rig.net));
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_uint_eq(rig.host.calls[FAKE_SWAP], 0);
}

TEST(disabled_brackets_pass_the_loss_through) {
    struct rig rig;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start_disabled(&rig, AMP_O2);
    struct fake_tensor *loss = rig_tensor(&rig, AMP_FLOAT16, 3.0);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, (double)__builtin_inff()));
    struct fake_tensor *grad = rig.net.weight->grad;
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, loss, &scaled));
    ck_assert_ptr_eq(scaled.loss, loss);
    ck_assert_float_eq(*scaled.scale, 1.0f);
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    ck_assert_ptr_eq(rig.net.weight->grad, grad);
    fake_release(loss);
    rig_end(&rig);
}

TEST(disabled_direct_calls_and_steps_change_nothing) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_dtype target = 77;
    const amp_dtype single = AMP_FLOAT32;
    start_disabled(&rig, AMP_O1);
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_op_target(rig.context, "linear", &single, 1, &target));
    ck_assert_int_eq(target, AMP_DTYPE_DEFAULT);
    ck_ok(amp_cast_args(rig.context, "linear", tensors, 1, &frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_step_begin(&rig.net.optimizer, &info));
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_ok(amp_step_end(&rig.net.optimizer));
    rig_end(&rig);
}

TEST(disabled_needs_no_hooks) {
    amp_config config = config_of(AMP_O2);
    config.enabled = AMP_OFF;
    RIG_INIT(rig, FAKE_RETAINS);
    rig.host.hooks = (amp_host)AMP_HOST_INIT;
    ck_ok(rig_config(&rig, &config));
    ck_assert_ptr_eq(rig.net.model.amp, rig.context);
}

/* ---- half of a program ---- */

TEST(a_model_without_an_optimizer) { /* inference */
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_initialize(&rig.net.model, NULL, AMP_O2));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_double_eq(fake_get(y, 0), 1.25);
    fake_release(x);
    fake_release(y);
    rig.context = rig.net.model.amp;
}

TEST(an_optimizer_without_a_model) { /* the scaler alone */
    struct rig rig;
    amp_config config = config_of(AMP_O0);
    amp_optimizer *optimizers[] = { &rig.net.optimizer };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    config.loss_scale = AMP_DYNAMIC;
    rig_init(&rig, FAKE_NO_CAST | FAKE_NO_SWAP | FAKE_NO_SCALE);
    ck_ok(amp_initialize_many(NULL, 0, optimizers, 1, &config, &rig.context));
    ck_ok(fake_begin(optimizers[0], NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 65536.0f);
    net_backward(&rig.net, 2.0, (double)amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.25);
    rig_end(&rig);
}
