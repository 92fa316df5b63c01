/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, schedules, parameters that come later, several optimizers; and what an optimizer of libamp's own refuses. */
#include "fused.h"

TEST(groups_have_rules_of_their_own) {
    amp_optim groups[2] = { optim_of(AMP_OPTIM_SGD, 0.5), optim_of(AMP_OPTIM_SGD, 0.25) };
    const uint32_t group_of[3] = { 1, 0, 1 };
    amp_fused fused = { sizeof fused, 0, groups, 2, group_of, 0 };
    const amp_config config = config_of(AMP_O0);
    RIG_INIT(rig, 0);
    ck_ok(fused_config(&rig, groups[0], config));
    ck_ok(amp_shutdown(rig.context));
    rig.net.optimizer.fused = &fused;
    ck_ok(rig_config(&rig, &config));
    for (int k = 0; k < 3; k++) add_grad(rig.net.trained[k], 1.0);
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(fake_get(rig.net.weight, 0) == 0.5 - 0.25 && fake_get(rig.net.bias, 0) == 0.25 - 0.5);
    ck_ok(amp_fused_get(&rig.net.optimizer, 1, &groups[0]));
    ck_assert(groups[0].lr == 0.25);
    groups[0].lr = 1.0;
    ck_ok(amp_fused_set(&rig.net.optimizer, 1, &groups[0]));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(fake_get(rig.net.weight, 0) == 0.25 - 1.0 && fake_get(rig.net.bias, 0) == -0.25 - 0.5);
}

/* Without a gradient a parameter stays, and its steps do not advance: Adam's first step is always of length lr. */
TEST(absent_gradients_are_passed_over) {
    amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.125);
    rule.eps = 0.0;
    FUSED_START(rig, rule, config_of(AMP_O0), 0);
    add_grad(rig.net.weight, 1.0);
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(fake_get(rig.net.bias, 0) == 0.25);
    ck_ok(amp_fused_zero_grad(&rig.net.optimizer));
    ck_assert_ptr_null(rig.net.weight->grad);
    add_grad(rig.net.bias, 1.0);
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    /* (0.1f / 0.1f) / (sqrt(v / corr2) + 0): 0.001 is rounded twice to the same float, so all is exact */
    ck_assert(fake_get(rig.net.bias, 0) == 0.125);
}

TEST_TIMES(skips_advance_no_step, 2) {
    amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.125);
    amp_action action = AMP_STEP;
    amp_master masters[3];
    FUSED_START(rig, rule, config_of(_i ? AMP_O2 : AMP_O1), 0);
    ck_assert_int_eq(bracket(&rig, INF, 0), AMP_SKIP);
    ck_ok(amp_fused_step(&rig.net.optimizer, &action));
    ck_assert_int_eq(action, AMP_SKIP);
    ck_ok(amp_fused_zero_grad(&rig.net.optimizer));
    masters_of(&rig, masters);
    ck_assert(*(float *)masters[0].data == 0.5f);
    ck_assert_int_eq(bracket(&rig, 0.0078125, 0), AMP_STEP);
    ck_ok(amp_fused_step(&rig.net.optimizer, &action));
    ck_assert_int_eq(action, AMP_STEP);
    masters_of(&rig, masters); /* the first step: lr * g / (|g| + eps) */
    ck_assert_float_eq_tol(*(float *)masters[0].data, 0.375f, 1e-6f * 0.125f + 0x1p-24f);
}

TEST_TIMES(later_parameters_join_group_0, 2) {
    amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.125);
    FUSED_START(rig, rule, config_of(_i ? AMP_O2 : AMP_O1), 0);
    struct fake_tensor *late = fake_new(&rig.host, AMP_FLOAT32, NET_SIZE, 2.0);
    struct fake_tensor *wide = fake_new(&rig.host, AMP_FLOAT64, NET_SIZE, 2.0);
    const amp_param params[2] = { { sizeof(amp_param), 0, late, "late" }, { sizeof(amp_param), 0, wide, "wide" } };
    ck_refused(AMP_ERR_UNSUPPORTED, "wide is fp64", amp_add_params(&rig.net.optimizer, params, 2));
    ck_dtype(late, AMP_FLOAT32);
    ck_ok(amp_add_params(&rig.net.optimizer, params, 1));
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(late, 0.0078125 * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert_float_eq_tol((float)fake_get(late, 0), 1.875f, 1e-6f * 0.125f + 0x1p-23f);
    rig_stop(&rig);
    fake_release(late), fake_release(wide);
}

/* libamp's and the host's in one context, on parameters of their own. */
TEST(beside_an_optimizer_of_the_hosts) {
    const amp_config config = config_of(AMP_O2);
    const amp_optim rule = optim_of(AMP_OPTIM_SGD, 0.125);
    const amp_fused fused = { sizeof fused, 0, &rule, 1, NULL, 0 };
    amp_optimizer ours = AMP_OPTIMIZER_INIT;
    void *bias[1], *others[2];
    RIG_INIT(rig, 0);
    bias[0] = rig.net.bias, others[0] = rig.net.weight, others[1] = rig.net.gamma;
    amp_optimizer *both[2] = { &rig.net.optimizer, &ours };
    amp_model *model = &rig.net.model;
    ours.host = &rig.host.hooks, ours.params = bias, ours.n_params = 1, ours.fused = &fused;
    rig.net.optimizer.params = others, rig.net.optimizer.n_params = 2;
    rig.net.trained[1] = rig.net.gamma; /* the host's step leaves the bias alone */
    ck_ok(amp_initialize_many(&model, 1, both, 2, &config, &rig.context));
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin_many(NULL, both, 2, 0, 0, NULL, &scaled));
    add_grad(rig.net.weight, 0.0078125 * fake_seed(&scaled));
    add_grad(rig.net.bias, 0.0078125 * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    net_step(&rig.net);
    ck_assert(fake_get(rig.net.bias, 0) == 0.25 && fake_get(rig.net.weight, 0) < 0.5);
    ck_ok(amp_fused_step(&ours, NULL));
    ck_assert(fake_get(rig.net.bias, 0) < 0.25);
}

/* The elements change and the host's version does not: a cast of the old ones must not be found again. */
TEST_TIMES(later_casts_are_of_the_stepped_weights, 2) {
    amp_scope scope;
    double out[2];
    FUSED_START(rig, optim_of(AMP_OPTIM_SGD, 0.25), config_of(AMP_O1), 0);
    rig.host.no_grad = _i != 0;
    ck_ok(amp_scope_enter(rig.context, &scope));
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    for (int i = 0; i < 2; i++) {
        struct fake_tensor *y = net_linear(&rig.net, x, rig.net.weight, NULL);
        out[i] = fake_get(y, 0);
        fake_release(y);
        add_grad(rig.net.weight, 1.0);
        if (i == 0) ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    }
    ck_assert(out[0] == 0.5 && out[1] == 0.25);
    fake_release(x);
    ck_ok(amp_scope_leave(&scope));
}

TEST(wrong_descriptions_are_refused) {
    const amp_config config = config_of(AMP_O2);
    amp_optim rules[2] = { optim_of(AMP_OPTIM_ADAM, 0.125), optim_of(AMP_OPTIM_SGD, 0.125) };
    const uint32_t group_of[3] = { 0, 0, 7 };
    amp_fused fused = { sizeof fused, 0, rules, 1, NULL, 0 };
    RIG_INIT(rig, 0);
    rig.net.optimizer.fused = &fused;
    ck_refused(AMP_ERR_CONFLICT, "steps of the host's", rig_config(&rig, &config));
    rig.net.optimizer.n_steps = 0;
    fused.n_groups = 0;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
    fused.n_groups = 2;
    ck_refused(AMP_ERR_CONFLICT, "group 1", rig_config(&rig, &config));
    fused.n_groups = 1, fused.group_of = group_of;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "group_of[2] is 7", rig_config(&rig, &config));
    fused.group_of = NULL, rules[0].lr = -1.0;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "optimizer 0.fused, group 0: lr", rig_config(&rig, &config));
    rules[0].lr = 0.1, rig.net.trained[1] = rig.net.wide;
    ck_refused(AMP_ERR_UNSUPPORTED, "wide is fp64", rig_config(&rig, &config));
    rig.net.trained[1] = rig.net.bias;
    ck_ok(rig_config(&rig, &config));
    amp_step_info info = AMP_STEP_INFO_INIT;
    ck_fails(AMP_ERR_CONFLICT, amp_step_begin(&rig.net.optimizer, &info));
    ck_fails(AMP_ERR_CONFLICT, amp_fused_set(&rig.net.optimizer, 0, &rules[1]));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_fused_set(&rig.net.optimizer, 1, &rules[0]));
    rules[0].flags |= AMP_OPTIM_AMSGRAD;
    ck_fails(AMP_ERR_CONFLICT, amp_fused_set(&rig.net.optimizer, 0, &rules[0]));
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_fails(AMP_ERR_WRONG_STATE, amp_fused_step(&rig.net.optimizer, NULL));
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST(the_hosts_own_is_not_ours) {
    RIG_START(rig, AMP_O1, 0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_fused_step(&rig.net.optimizer, NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_fused_zero_grad(&rig.net.optimizer));
}

/* Each hook that a step calls fails once: the step is refused, nothing has moved, and it can be made again. */
TEST_TIMES(a_failing_hook_changes_nothing, 2) {
    const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_GRAD };
    FUSED_START(rig, optim_of(AMP_OPTIM_SGD, 0.125), config_of(AMP_O2), 0);
    ck_assert_int_eq(bracket(&rig, 0.0078125, 0), AMP_STEP);
    rig.host.fail_hook = hooks[_i];
    for (uint64_t at = 1; at <= 3; at++) {
        rig.host.fail_at = rig.host.calls[hooks[_i]] + at;
        ck_fails(AMP_ERR_HOST_FAILED, amp_fused_step(&rig.net.optimizer, NULL));
        ck_assert(fake_get(rig.net.weight, 0) == 0.5 && fake_get(rig.net.gamma, 0) == 1.0);
    }
    rig.host.fail_at = 0;
    ck_ok(amp_fused_step(&rig.net.optimizer, NULL));
    ck_assert(fake_get(rig.net.weight, 0) < 0.5 && fake_get(rig.net.gamma, 0) < 1.0);
}
