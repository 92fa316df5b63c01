/* SPDX-License-Identifier: Apache-2.0 */
/* Slips of an adapter are found and named, each by its code; docs/reference/mistakes.md has them. */
#include "findings.h"
#include "levels.h"

#include <math.h>

/* ---- the scale ---- */

TEST_TIMES(nothing_took_the_scale, 2) {
    START_AT_SCALE(rig, AMP_O1, _i ? FAKE_NO_SCALE : 0, 256.0f);
    struct fake_tensor *loss = _i ? rig_tensor(&rig, AMP_FLOAT32, 1.0) : NULL;
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    add_grad(rig.net.weight, 0.5);
    ck_refused(AMP_ERR_CONFLICT, "AMP-M01 ", amp_scale_loss_end(&scaled));
    ck_says(_i ? "no hook scale" : "no seed");
    ck_says("amp_seed_factor");
    ck_assert_float_eq(scale_now(&rig, 0), 256.0f);
    ck_assert_ptr_null(rig.net.weight->grad); /* as at begin */
    ck_assert_int_eq(net_step(&rig.net), 0);  /* and that step is skipped */
    ck_assert_uint_eq(found(rig.context, "AMP-M01"), 1);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_ERROR], 1);
    ck_assert_str_eq(rig.host.last[AMP_EVENT_ERROR].code, "AMP-M01");
    ck_health(&rig, "error: AMP-M01 ");
    if (loss) fake_release(loss);
}

TEST_TIMES(a_scale_that_was_asked_for_is_taken, 3) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    void *times = NULL;
    START_AT_SCALE(rig, AMP_O1, 0, _i == 2 ? 1.0f : 256.0f);
    OWN_TENSOR *penalty = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    if (_i == 0) ck_assert_float_eq(amp_seed_factor(&scaled), 256.0f);
    if (_i == 1) ck_ok(amp_scale(rig.context, 0, penalty, &times));
    add_grad(rig.net.weight, 0.5);
    ck_ok(amp_scale_loss_end(&scaled));
    if (times) fake_release(times);
}

static amp_status scale_by_one(void *self, void *loss, float factor, void **out) {
    (void)factor;
    *out = fake_new(self, AMP_FLOAT32, 1, fake_get(loss, 0));
    return AMP_OK;
}

/* A loss of 0 says nothing. */
TEST_TIMES(a_hook_that_scales_by_nothing, 3) {
    RIG_INIT(rig, 0);
    if (_i) rig.host.hooks.scale = scale_by_one;
    rig_wire(&rig, CONFIG(AMP_O1, .init_scale = 256.0f));
    OWN_TENSOR *loss = fake_new(&rig.host, AMP_FLOAT32, 1, _i > 1 ? 0.0 : 1.5);
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_uint_eq(found(rig.context, "AMP-M01"), _i == 1);
    if (_i == 1) ck_health(&rig, "the hook scale had to multiply the loss by 256, and returned it unchanged: 1.5");
}

/* What leaves no trace is named, with what finds it. */
TEST_TIMES(health_says_what_cannot_be_seen, 2) {
    START_AT_SCALE(rig, AMP_O1, 0, 256.0f);
    struct fake_tensor *loss = _i ? rig_tensor(&rig, AMP_FLOAT32, 1.0) : NULL;
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    if (!_i) (void)amp_seed_factor(&scaled);
    add_grad(rig.net.weight, 0.5);
    ck_assert_ptr_null(strstr(health(rig.context), "cannot be seen"));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_health(&rig, _i ? "cannot be seen: whether backward starts from amp_scaled_loss.loss"
                       : "cannot be seen: whether backward's seed is multiplied with amp_seed_factor");
    ck_health(&rig, "amp_verify_step compares the gradients");
    ck_health(&rig, "a trained parameter that is in no model and no optimizer; AMP_VERIFY=1 finds it");
    if (loss) fake_release(loss);
}

TEST_TIMES(a_norm_after_a_skip_is_infinite, 3) {
    float norm = -1.0f;
    RIG_WITH(rig, _i == 1 ? 0 : FAKE_RETAINS, _i ? AMP_O2 : AMP_O1, .loss_scale = AMP_DYNAMIC);
    ck_assert_int_eq(bracket(&rig, _i == 2 ? (double)NAN : INF), AMP_SKIP);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 1.0f, &norm));
    ck_assert_float_eq(norm, INFINITY);
    rig_step_and_clear(&rig);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    ck_ok(amp_clip_grad_norm(&rig.net.optimizer, 8.0f, &norm));
    ck_assert_float_eq(norm, 1.0f); /* four times 0.5 */
}

TEST(the_seed_factor_of_no_bracket_is_its_own) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT, copy;
    START_AT_SCALE(rig, AMP_O1, 0, 256.0f);
    ck_assert_float_eq(amp_seed_factor(NULL), 1.0f);
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    copy = scaled;
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&copy), 256.0f); /* an old one asks for nobody */
    add_grad(rig.net.weight, 0.5);
    ck_fails(AMP_ERR_CONFLICT, amp_scale_loss_end(&scaled));
}

/* ---- gradients ---- */

/* backward of the middle of the net alone; 1: zeros for the others. */
static void partial_step(struct rig *rig, bool zeros) {
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 1.0);
    fake_release(net_binary(&rig->net, OP_matmul, x, x)); /* the table is in use */
    fake_release(x);
    amp_scaled_loss scaled = rig_begin(rig);
    add_grad(rig->net.weight, 0.5 * fake_seed(&scaled));
    if (zeros) add_grad(rig->net.bias, 0.0), add_grad(rig->net.gamma, 0.0);
    ck_ok(amp_scale_loss_end(&scaled));
    rig_step_and_clear(rig);
}

TEST_TIMES(parameters_without_a_gradient_are_named, 2 * N_EACH_LEVEL) {
    const bool zeros = _i % 2;
    RIG_INIT(rig, 0);
    rig.net.model.forward = NULL; /* nobody calls it here */
    rig_wire(&rig, config_of(each_level[_i / 2]));
    partial_step(&rig, zeros);
    ck_assert_int_eq(found(rig.context, "AMP-M08") != 0, !zeros); /* zeros may become something */
    partial_step(&rig, zeros);
    ck_found(&rig, "AMP-M08");
    ck_health(&rig, "2 of its 3 parameters got no gradient in its first ");
    ck_health(&rig, ": bias, gamma");
    ck_health(&rig, "\n1 finding\n");
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
}

/* 1: the host's optimizer updates it too; 2: that is another rank's; 3: as 1, the model's first parameter. */
TEST_TIMES(what_no_optimizer_lists_and_is_trained, 4) {
    RIG_INIT(rig, 0);
    rig.net.optimizer.n_params = 2; /* not gamma */
    if (_i == 3) rig.net.optimizer.params = rig.net.trained + 1; /* not weight */
    if (_i == 2) rig.net.optimizer.flags = AMP_OPTIMIZER_SHARDED;
    rig_wire(&rig, config_of(AMP_O1));
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        net_backward(&rig.net, 0.5, fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        if (!_i) fake_put_grad(rig.net.gamma, NULL); /* the host's optimizer leaves it alone */
        rig_step_and_clear(&rig);
    }
    ck_assert_int_eq(found(rig.context, "AMP-M06") != 0, _i % 2);
    if (_i == 1) ck_health(&rig, "gamma has a gradient and changed");
    if (_i == 3) ck_health(&rig, "weight has a gradient and changed");
}

/* 0: the host's optimizer takes it on without a word; 1: it stays frozen, though it has a gradient. */
TEST_TIMES(what_is_thawed_late_is_found_too, 2) {
    RIG_INIT(rig, 0);
    rig.net.optimizer.n_params = 2; /* not gamma */
    rig_wire(&rig, config_of(AMP_O1));
    for (int i = 0; i < 18; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        net_backward(&rig.net, 0.5, fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        if (i < 6 || _i) fake_put_grad(rig.net.gamma, NULL); /* the host's optimizer leaves it alone */
        (void)net_step(&rig.net);
        if (i == 6) ck_assert_uint_eq(found(rig.context, "AMP-M06"), 0);
        net_zero_grad(&rig.net);
    }
    ck_assert_int_eq(found(rig.context, "AMP-M06") != 0, !_i);
}

/* Without samples no op is called, and that says nothing of the ops. */
TEST(an_empty_first_batch_is_no_finding) {
    RIG_START(rig, AMP_O1, 0);
    amp_scaled_loss scaled = rig_begin(&rig);
    (void)fake_seed(&scaled);
    ck_ok(amp_scale_loss_end(&scaled));
    (void)net_step(&rig.net);
    ck_assert_uint_eq(found(rig.context, "AMP-M12"), 0);
}

TEST_TIMES(gradients_cleared_before_the_end, 2) {
    RIG_START(rig, AMP_O1, 0);
    amp_scaled_loss scaled = rig_begin(&rig);
    if (!_i) net_zero_grad(&rig.net); /* before backward it clears nothing */
    net_backward(&rig.net, 0.5, fake_seed(&scaled));
    if (_i) net_zero_grad(&rig.net);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_uint_eq(found(rig.context, "AMP-M13"), _i ? 2 : 0); /* when it came, and at the end */
}

TEST(a_buffer_without_a_gradient_cannot_be_trained) {
    float data[4] = { 0 };
    amp_buffer buffer = AMP_BUFFER_INIT;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
    void *params[] = { &buffer };
    buffer.data = data, buffer.size = 4;
    optimizer.host = amp_buffer_host(), optimizer.params = params, optimizer.n_params = 1;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "AMP-M07 ", amp_initialize(NULL, &optimizer, AMP_O1));
    ck_assert_ptr_null(optimizer.amp);
}

/* ---- steps ---- */

TEST(an_optimizer_without_a_step) {
    RIG_INIT(rig, 0);
    rig.net.optimizer.n_steps = 0;
    rig_wire(&rig, config_of(AMP_O1));
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(found(rig.context, "AMP-M05"), i > 2); /* once */
        ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
        fake_set(rig.net.weight, 0, fake_get(rig.net.weight, 0) - 0.5);
        net_zero_grad(&rig.net);
    }
    ck_health(&rig, "optimizer 0: libamp saw no step of it");
}

/* ---- what is not finite ---- */

TEST_TIMES(what_is_stepped_on_is_told, 2) {
    static const amp_level levels[] = { AMP_O4, AMP_O5 }; /* nobody looks, or masters do */
    RIG_START(rig, levels[_i], 0);
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(bracket(&rig, INF), AMP_STEP);
        net_zero_grad(&rig.net);
    }
    ck_found(&rig, "AMP-M15");
    ck_health(&rig, "the gradient of weight is not finite");
    const size_t n = n_findings(rig.context);
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], n); /* each once */
}

TEST_TIMES(check_finite_skips_at_every_level, N_EACH_LEVEL) {
    RIG_WITH(rig, 0, each_level[_i], .check_finite = AMP_ON);
    const double before = fake_get(rig.net.weight, 0);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), before);
    net_zero_grad(&rig.net);
    ck_assert_int_eq(bracket(&rig, 0.25), AMP_STEP);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.25);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_uint_eq(found(rig.context, "AMP-M15"), 0);
}

TEST_TIMES(a_parameter_that_is_not_finite_is_named, 2) {
    RIG_WITH(rig, 0, _i ? AMP_O2 : AMP_O1, .max_skips = 4);
    fake_set(rig.net.bias, 2, (double)NAN);
    for (int i = 1; i <= 6; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        add_grad(rig.net.weight, INF);
        ck_fails(i == 4 ? AMP_ERR_TOO_MANY_SKIPS : AMP_OK, amp_scale_loss_end(&scaled)); /* once */
        if (i == 4) ck_says("AMP-M16 ");
        if (i == 4) ck_says("bias itself has NaN or infinity");
        rig_step_and_clear(&rig);
    }
}

/* Long before there are too many skips. */
TEST_TIMES(an_update_on_a_skip_is_found, N_EACH_LEVEL) {
    RIG_WITH(rig, 0, each_level[_i], .loss_scale = AMP_DYNAMIC);
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(found(rig.context, "AMP-M16"), i > 3);
        ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
        fake_set(rig.net.bias, 2, (double)NAN); /* by the gradient that was not finite */
        net_zero_grad(&rig.net);
    }
    ck_health(&rig, "4 steps in a row were skipped, because bias itself has NaN");
}

/* ---- ops ---- */

TEST(an_op_of_class_lower_with_nothing_to_cast) {
    RIG_INIT(rig, 0);
    rig.net.ops[OP_nll_loss].schema = "nll_loss(pointer input, pointer target) -> float";
    rig.net.ops[OP_nll_loss].op_class = AMP_LOWER;
    rig_wire(&rig, config_of(AMP_O1));
    ck_found(&rig, "AMP-M11");
    ck_health(&rig, "op nll_loss is of class lower");
}

TEST(names_that_are_nearly_listed_are_suggested) {
    RIG_INIT(rig, 0);
    rig.net.model.n_ops = 1;
    rig.net.ops[0].name = "linar";
    rig_wire(&rig, config_of(AMP_O1));
    ck_found(&rig, "AMP-M22");
    ck_health(&rig, "so nothing is cast (did you mean linar = linear");
    ck_health(&rig, "?): name the ops as the lists do");
}

/* ---- hooks ---- */

static amp_status (*right_cast)(void *self, void *handle, amp_dtype to, void **out);
static amp_status cast_wrongly(void *self, void *handle, amp_dtype to, void **out) {
    return right_cast(self, handle, to == AMP_FLOAT16 ? AMP_BFLOAT16 : to, out);
}

/* The call fails, and the op has not run on what it was not meant for. */
TEST(a_cast_of_another_type_is_an_error) {
    RIG_INIT(rig, FAKE_RETAINS);
    right_cast = rig.host.hooks.cast;
    rig.host.hooks.cast = cast_wrongly;
    rig_wire(&rig, config_of(AMP_O1));
    const long before = rig.host.live_tensors;
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    ck_found(&rig, "AMP-M14");
    ck_assert_msg(rig.host.live_tensors - before <= 2, "the wrong cast is released");
}

static amp_status (*right_view)(void *self, void *handle, amp_tensor_view *out);
static amp_status view_wrongly(void *self, void *handle, amp_tensor_view *out) {
    const amp_status status = right_view(self, handle, out);
    if (out->dtype.bits == 16) out->dtype.code = 4; /* kDLBfloat */
    return status;
}

TEST(verify_sees_hooks_that_disagree) {
    RIG_INIT(rig, FAKE_RETAINS);
    right_view = rig.host.hooks.view;
    rig.host.hooks.view = view_wrongly;
    rig_wire(&rig, CONFIG(AMP_O1, .verify = AMP_ON));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    ck_found(&rig, "AMP-M60");
}

/* ---- brackets and steps that do not meet ---- */

TEST(an_optimizer_that_no_bracket_names) {
    struct net second;
    RIG_INIT(rig, FAKE_RETAINS);
    net_init(&second, &rig.host);
    const amp_config config = config_of(AMP_O1);
    amp_model *models[] = { &rig.net.model, &second.model };
    amp_optimizer *optimizers[] = { &rig.net.optimizer, &second.optimizer };
    ck_ok(amp_initialize_many(models, 2, optimizers, 2, &config, &rig.context));
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(found(rig.context, "AMP-M63"), 0);
        train(&rig, 1);
        (void)net_step(&second);
    }
    ck_assert_uint_eq(found(rig.context, "AMP-M63"), 1);
    ck_health(&rig, "AMP-M63 optimizer 1 has stepped three times at level O1, and no bracket has named it");
    rig_stop(&rig);
    net_destroy(&second);
}

TEST(brackets_whose_end_failed_are_brackets) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    for (int i = 0; i < 4; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
        add_grad(rig.net.weight, 0.5);
        ck_fails(AMP_ERR_CONFLICT, amp_scale_loss_end(&scaled));
        rig_step_and_clear(&rig);
    }
    ck_found(&rig, "AMP-M01");
    ck_assert_uint_eq(found(rig.context, "AMP-M63"), 0);
}

/* Where nothing is scaled there is nothing to find. */
TEST_TIMES(an_optimizer_that_lists_nothing, 3) {
    RIG_INIT(rig, 0);
    rig.net.optimizer.n_params = 0;
    if (_i == 2) rig.net.optimizer.flags |= AMP_OPTIMIZER_SHARDED;
    rig_wire(&rig, CONFIG(AMP_O1, .init_scale = _i == 1 ? 1.0f : 256.0f, .loss_scale = _i == 1 ? 1.0f : 0.0f));
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        net_backward(&rig.net, 0.5, fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
    }
    ck_assert_uint_eq(found(rig.context, "AMP-M67"), _i == 0);
    if (_i == 0) ck_health(&rig, "optimizer 0 lists no parameter, and the loss was scaled by 256");
    net_zero_grad(&rig.net);
}

/* Whoever hands in what is no amp_optimizer is told so, and not read. */
TEST(an_optimizer_that_is_none) {
    amp_optimizer garbage;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    memset(&garbage, 0xee, sizeof garbage);
    ck_refused(AMP_ERR_ABI_MISMATCH, "amp_optimizer.struct_size", amp_scale_loss_begin(&garbage, NULL, &scaled));
    ck_refused(AMP_ERR_ABI_MISMATCH, "amp_optimizer.struct_size", amp_step_begin(&garbage, &info));
    ck_refused(AMP_ERR_ABI_MISMATCH, "amp_optimizer.struct_size", amp_step_end(&garbage));
    ck_refused(AMP_ERR_ABI_MISMATCH, "amp_optimizer.struct_size", amp_clip_grad_norm(&garbage, 1.0f, NULL));
}

TEST(brackets_for_ever_and_no_step) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    for (int i = 0; i < 65; i++) {
        ck_assert_uint_eq(found(rig.context, "AMP-M66"), 0);
        (void)bracket(&rig, 0x1p-6);
    }
    ck_found(&rig, "AMP-M66");
    net_zero_grad(&rig.net);
}

/* Nothing is set aside at a scale of 1: what zero_grad clears there came from before. */
TEST_TIMES(zero_grad_before_backward_is_no_slip, N_EACH_LEVEL) {
    RIG_START(rig, each_level[_i], FAKE_RETAINS);
    for (int i = 0; i < 4; i++) {
        amp_scaled_loss scaled = rig_begin(&rig);
        net_zero_grad(&rig.net);
        net_backward(&rig.net, 0.5, fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        (void)net_step(&rig.net);
    }
    ck_assert_uint_eq(found(rig.context, "AMP-M13"), 0);
    net_zero_grad(&rig.net);
}

/* All gradients zero: in fp16 they have underflowed, most likely, and the finding says so. */
TEST_TIMES(zeros_in_fp16_are_told_as_underflow, 2 * N_EACH_LEVEL) {
    const amp_level level = each_level[_i / 2];
    const bool some = _i % 2; /* without scaling the first layers' are enough */
    RIG_WITH(rig, 0, level, .loss_scale = some ? 1.0f : 0.0f, .log = AMP_LOG_OFF);
    OWN_TENSOR *a = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    for (int i = 0; i < 2; i++) {
        fake_release(net_binary(&rig.net, OP_matmul, a, a));
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
        for (size_t j = 0; j < rig.net.optimizer.n_params; j++)
            add_grad(rig.net.optimizer.params[j], some && j ? 1.0 : 0.0);
        ck_ok(amp_scale_loss_end(&scaled));
        (void)net_step(&rig.net);
        net_zero_grad(&rig.net);
    }
    ck_found(&rig, "AMP-M08");
    const bool fp16 = level_low(level) == AMP_FLOAT16 && level != AMP_O0;
    ck_assert_msg((strstr(health(rig.context), "underflow") != NULL) == fp16, "%s", health(rig.context));
}
