/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped forward: inputs and outputs at each level; enabled = OFF; contexts without a model or an optimizer. */
#include "checks.h"

/* What forward itself, behind the wrapper, was handed: the first argument of its first op. */
static amp_dtype inner(const struct rig *rig) { return rig->host.log[0].dtypes[0]; }

static const struct {
    amp_level level;
    amp_dtype outputs, given, inner, returned;
} rows[] = {
    { AMP_O0, 0, AMP_FLOAT16, AMP_FLOAT32, AMP_FLOAT32 }, /* Apex's O0 casts inputs and outputs to fp32 */
    { AMP_O1, 0, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32 }, /* by linear; fp16 hidden times fp32 gamma: promoted */
    { AMP_O1, AMP_BFLOAT16, AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 },
    { AMP_O2, 0, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32 },
    { AMP_O2, AMP_FLOAT16, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT16 },
    { AMP_O2, AMP_BFLOAT16, AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 },
    { AMP_O2, AMP_FLOAT32, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32 },
    { AMP_O3, 0, AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32 },
    { AMP_O5, 0, AMP_FLOAT32, AMP_BFLOAT16, AMP_FLOAT32 },
};

TEST_TIMES(inputs_and_outputs_have_the_types_of_the_level, sizeof rows / sizeof rows[0]) {
    RIG_WITH(rig, FAKE_RETAINS, rows[_i].level, .cast_model_outputs = rows[_i].outputs);
    OWN_TENSOR *x = rig_tensor(&rig, rows[_i].given, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), rows[_i].inner);
    ck_dtype(y, rows[_i].returned);
    ck_assert_double_eq(fake_get(y, 0), 1.25);
}

TEST_TIMES(integer_and_fp64_inputs_are_untouched, 2) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, _i ? AMP_FLOAT64 : AMP_DTYPE_OTHER, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_ptr_eq(rig.host.log[0].args[0], x);
}

TEST(forward_enters_the_contexts_scope) { /* two contexts on the ops: only a scope tells whose call it is */
    amp_model second;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    amp_context *other = rig_second(&rig, &second, AMP_O4);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_int_eq(inner(&rig), AMP_FLOAT16);
    ck_ok(amp_shutdown(other));
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
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.forward_op.on_failure = &refusal;
    rig_wire(&rig, config_of(AMP_O2));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_fail(&rig.host, FAKE_CAST, 1);
    ck_assert_ptr_null(net_forward(&rig.net, x));
    ck_refused(AMP_ERR_HOST_FAILED, "forward", amp_check(rig.context));
}

/* ---- enabled = OFF: a pass-through everywhere ---- */

TEST_TIMES(disabled_touches_no_slot_and_no_parameter, 6) {
    RIG_WITH(rig, FAKE_RETAINS, AMP_O0 + _i, .enabled = AMP_OFF);
    ck_assert(net_slots_restored(&rig.net));
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_uint_eq(rig.host.calls[FAKE_SWAP], 0);
}

TEST(disabled_brackets_pass_the_loss_through) {
    RIG_WITH(rig, FAKE_RETAINS, AMP_O2, .enabled = AMP_OFF);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT16, 3.0);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, (double)__builtin_inff()));
    struct fake_tensor *grad = rig.net.weight->grad;
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_assert_ptr_eq(scaled.loss, loss);
    ck_assert_float_eq(*scaled.scale, 1.0f);
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    ck_assert_ptr_eq(rig.net.weight->grad, grad);
}

TEST(disabled_direct_calls_and_steps_change_nothing) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    amp_dtype target = 77;
    const amp_dtype single = AMP_FLOAT32;
    RIG_WITH(rig, FAKE_RETAINS, AMP_O1, .enabled = AMP_OFF);
    void *tensors[] = { rig.net.weight };
    ck_ok(amp_op_target(rig.context, "linear", &single, 1, &target));
    ck_assert_int_eq(target, AMP_DTYPE_DEFAULT);
    ck_ok(amp_cast_args(rig.context, "linear", tensors, 1, &frame));
    ck_assert_ptr_eq(tensors[0], rig.net.weight);
    ck_ok(amp_cast_done(&frame));
    amp_step_info info = rig_step_begin(&rig);
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_ok(amp_step_end(&rig.net.optimizer));
}

TEST(disabled_needs_no_hooks) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.host.hooks = (amp_host)AMP_HOST_INIT;
    rig_wire(&rig, CONFIG(AMP_O2, .enabled = AMP_OFF));
    ck_assert_ptr_eq(rig.net.model.amp, rig.context);
}

/* ---- half of a program ---- */

TEST(a_model_without_an_optimizer) { /* inference */
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_initialize(&rig.net.model, NULL, AMP_O2));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0), *y = net_forward(&rig.net, x);
    ck_assert_double_eq(fake_get(y, 0), 1.25);
    rig.context = rig.net.model.amp;
}

TEST(an_optimizer_without_a_model) { /* the scaler alone */
    const amp_config config = CONFIG(AMP_O0, .loss_scale = AMP_DYNAMIC);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    RIG_INIT(rig, FAKE_NO_CAST | FAKE_NO_SWAP | FAKE_NO_SCALE);
    amp_optimizer *optimizer = &rig.net.optimizer;
    ck_ok(amp_initialize_many(NULL, 0, &optimizer, 1, &config, &rig.context));
    ck_ok(fake_begin(optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 65536.0f);
    net_backward(&rig.net, 2.0, (double)amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 2.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.25);
}
