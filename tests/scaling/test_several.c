/* SPDX-License-Identifier: Apache-2.0 */
/* Several losses and several optimizers; the decision is the brackets' of each optimizer. */
#include "bracket.h"

/* The weight belongs to the first optimizer, the bias to the second; both have step slots. */
struct two {
    struct rig rig;
    void *first[1], *second[1];
    amp_fn second_step;
    amp_op second_op;
    amp_optimizer other;
};

static int32_t other_steps;
static int32_t other_step(void *self) {
    (void)self;
    return ++other_steps;
}
static int32_t call_other(const struct two *two) { return ((int32_t (*)(const void *))two->second_step)(two); }

static void two_start(struct two *two, amp_level level, uint32_t num_losses) {
    struct rig *rig = &two->rig;
    amp_config config = config_of(level);
    config.num_losses = num_losses;
    rig_init(rig, 0);
    other_steps = 0;
    two->first[0] = rig->net.weight;
    two->second[0] = rig->net.bias;
    two->second_step = (amp_fn)other_step;
    two->second_op = (amp_op){ .struct_size = sizeof(amp_op), .name = "step", .schema = "step(pointer self) -> int32",
                               .slot = &two->second_step };
    rig->net.optimizer.params = two->first;
    rig->net.optimizer.n_params = 1;
    two->other = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .host = &rig->host.hooks, .self = two,
                                  .params = two->second, .n_params = 1, .steps = &two->second_op, .n_steps = 1 };
    amp_model *models[] = { &rig->net.model };
    amp_optimizer *optimizers[] = { &rig->net.optimizer, &two->other };
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, &rig->context));
}

/* Both have the weight now. */
static void two_share(struct two *two, amp_level level, uint32_t num_losses) {
    amp_config config = config_of(level);
    config.num_losses = num_losses;
    two_start(two, AMP_O1, 1);
    ck_ok(amp_shutdown(two->rig.context));
    two->second[0] = two->rig.net.weight;
    amp_model *models[] = { &two->rig.net.model };
    amp_optimizer *optimizers[] = { &two->rig.net.optimizer, &two->other };
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, &two->rig.context));
}

/* A bracket of `loss_id` over the optimizers in `which` (bit 0: first, bit 1: second). */
static amp_action run(struct two *two, unsigned which, uint32_t loss_id, double weight, double bias) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizers[2];
    size_t n = 0;
    if (which & 1) optimizers[n++] = &two->rig.net.optimizer;
    if (which & 2) optimizers[n++] = &two->other;
    ck_ok(fake_begin_many(two->rig.context, optimizers, n, loss_id, 0, NULL, &scaled));
    if (which & 1) add_grad(two->rig.net.weight, weight * fake_seed(&scaled));
    if (which & 2) add_grad(two->rig.net.bias, bias * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

TEST(only_the_optimizers_of_the_bracket_skip) {
    struct two two;
    two_start(&two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, INF, 0), AMP_SKIP);
    ck_assert_int_eq(run(&two, 2, 0, 0, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 1);
    rig_end(&two.rig);
}

TEST(all_the_optimizers_of_the_bracket_skip) {
    struct two two;
    two_start(&two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 3, 0, INF, 1.0), AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 0);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f); /* once */
    rig_end(&two.rig);
}

TEST(each_loss_has_its_scaler) {
    struct two two;
    two_start(&two, AMP_O1, 3);
    ck_assert_int_eq(run(&two, 1, 1, INF, 0), AMP_SKIP);
    ck_assert_float_eq(scale_now(&two.rig, 0), 65536.0f);
    ck_assert_float_eq(scale_now(&two.rig, 1), 32768.0f);
    ck_assert_float_eq(scale_now(&two.rig, 2), 65536.0f);
    rig_end(&two.rig);
}

TEST_TIMES(losses_of_different_scales_mix_unscaled, 2) {
    struct two two;
    two_start(&two, _i ? AMP_O2 : AMP_O1, 2);
    (void)run(&two, 2, 1, 0, INF); /* loss 1 is at half the scale now */
    ck_assert_int_eq(run(&two, 1, 0, 0.5, 0), AMP_STEP);
    ck_assert_int_eq(run(&two, 1, 1, 0.25, 0), AMP_STEP);
    amp_master master = AMP_MASTER_INIT;
    size_t count;
    ck_ok(amp_master_params(&two.rig.net.optimizer, &master, 1, &count));
    ck_assert_float_eq(*(float *)master.grad, 0.75f);
    rig_end(&two.rig);
}

TEST_TIMES(an_overflow_in_either_loss_skips, 2) {
    struct two two;
    two_start(&two, AMP_O1, 2);
    ck_assert_int_eq(run(&two, 1, 0, _i ? INF : 1.0, 0), _i ? AMP_SKIP : AMP_STEP);
    net_zero_grad(&two.rig.net);
    fake_put_grad(two.rig.net.weight, NULL);
    ck_assert_int_eq(run(&two, 1, 1, _i ? 1.0 : INF, 0), _i ? AMP_STEP : AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    rig_end(&two.rig);
}

/* What the first loss found is in the gradient that the second adds to; the second decides on its own part. */
TEST_TIMES(each_loss_decides_on_what_it_made, 6) {
    static const double second[] = { 0.5, INF, NAN };
    struct two two;
    two_start(&two, _i % 2 ? AMP_O2 : AMP_O1, 2);
    const double made = second[_i / 2];
    ck_assert_int_eq(run(&two, 1, 0, INF, 0), AMP_SKIP);
    (void)run(&two, 1, 1, made, 0);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f);
    ck_assert_float_eq(scale_now(&two.rig, 1), made == 0.5 ? 65536.0f : 32768.0f);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    rig_end(&two.rig);
}

/* That an overflow of one awaits its step excuses no gradient of the other, which would step on it. */
TEST_TIMES(an_overflow_of_one_excuses_nothing_of_the_other, 2) {
    struct two two;
    two_start(&two, _i ? AMP_O2 : AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, INF, 0), AMP_SKIP);
    add_grad(two.rig.net.bias, NAN); /* outside brackets */
    ck_assert_int_eq(run(&two, 3, 0, 0.5, 0.5), AMP_SKIP);
    ck_assert_int_eq(call_other(&two), 0);
    rig_end(&two.rig);
}

/* Nor does it where both have the gradient, as long as one of them would step. */
TEST_TIMES(an_overflow_of_one_excuses_no_shared_gradient, 2) {
    struct two two;
    two_share(&two, _i ? AMP_O2 : AMP_O1, 1);
    ck_assert_int_eq(run(&two, 1, 0, INF, 0), AMP_SKIP);
    ck_assert_int_eq(run(&two, 3, 0, 0.5, 0), AMP_SKIP);
    ck_assert_int_eq(call_other(&two), 0);
    rig_end(&two.rig);
}

TEST(brackets_of_different_losses_may_overlap) {
    struct two two;
    amp_scaled_loss a = AMP_SCALED_LOSS_INIT, b = AMP_SCALED_LOSS_INIT;
    two_start(&two, AMP_O1, 2);
    amp_optimizer *first[] = { &two.rig.net.optimizer }, *second[] = { &two.other };
    ck_ok(fake_begin_many(NULL, first, 1, 0, 0, NULL, &a));
    ck_ok(fake_begin_many(NULL, second, 1, 1, 0, NULL, &b));
    add_grad(two.rig.net.weight, 65536.0);
    add_grad(two.rig.net.bias, 65536.0);
    ck_ok(amp_scale_loss_end(&a));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 1.0);
    ck_assert_double_eq(fake_get(two.rig.net.bias->grad, 0), 65536.0);
    ck_ok(amp_scale_loss_end(&b));
    ck_assert_double_eq(fake_get(two.rig.net.bias->grad, 0), 1.0);
    rig_end(&two.rig);
}

TEST(a_bracket_without_optimizers_only_counts) {
    struct two two;
    two_start(&two, AMP_O1, 1);
    ck_assert_int_eq(run(&two, 0, 0, 0, 0), AMP_STEP);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
    rig_end(&two.rig);
}

TEST_TIMES(a_parameter_of_two_optimizers_is_unscaled_once, 2) {
    struct two two;
    two_share(&two, _i ? AMP_O2 : AMP_O1, 1);
    amp_optimizer *optimizers[] = { &two.rig.net.optimizer, &two.other };
    for (int i = 0; i < 2; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin_many(NULL, optimizers, 2, 0, 0, NULL, &scaled));
        add_grad(two.rig.net.weight, 0.5 * fake_seed(&scaled));
        ck_ok(amp_scale_loss_end(&scaled));
    }
    amp_master master = AMP_MASTER_INIT;
    size_t count;
    ck_ok(amp_master_params(&two.rig.net.optimizer, &master, 1, &count));
    ck_assert_float_eq(*(float *)master.grad, 1.0f);
    rig_end(&two.rig);
}

/* One gradient cannot carry the scales of two losses at once. */
DIFFERENCE_TIMES(brackets_that_overlap_share_no_parameter, 2) {
    struct two two;
    amp_scaled_loss a = AMP_SCALED_LOSS_INIT, b = AMP_SCALED_LOSS_INIT;
    two_share(&two, _i ? AMP_O2 : AMP_O1, 2);
    amp_optimizer *first[] = { &two.rig.net.optimizer }, *second[] = { &two.other };
    ck_ok(fake_begin_many(NULL, first, 1, 0, 0, NULL, &a));
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_fails(AMP_ERR_WRONG_STATE, fake_begin_many(NULL, second, 1, 1, 0, NULL, &b));
    ck_says("weight is in the open bracket of another optimizer");
    ck_ok(amp_scale_loss_end(&a));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.5);
    ck_ok(fake_begin_many(NULL, second, 1, 1, 0, NULL, &b));
    add_grad(two.rig.net.weight, 65536.0 / 4.0);
    ck_ok(amp_scale_loss_end(&b));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.75);
    rig_end(&two.rig);
}

/* What one optimizer's bracket delayed, a bracket of the other unscales only if the loss is the same; nobody reads it
 * before. */
DIFFERENCE_TIMES(delayed_for_one_is_scaled_for_both, 2) {
    struct two two;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_master master = AMP_MASTER_INIT;
    size_t count = 0;
    two_share(&two, _i ? AMP_O2 : AMP_O1, 2);
    amp_optimizer *first[] = { &two.rig.net.optimizer }, *second[] = { &two.other };
    ck_ok(fake_begin_many(NULL, first, 1, 0, AMP_DELAY_UNSCALE, NULL, &scaled));
    add_grad(two.rig.net.weight, 65536.0 / 4.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_fails(AMP_ERR_CONFLICT, fake_begin_many(NULL, second, 1, 1, 0, NULL, &scaled));
    ck_says("weight, which another optimizer shares, still carries the scale of loss_id 0");
    ck_fails(AMP_ERR_WRONG_STATE, amp_master_params(&two.other, &master, 1, &count));
    ck_says("weight");
    ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_norm(&two.other, 1.0f, NULL));
    ck_fails(AMP_ERR_WRONG_STATE, amp_clip_grad_value(&two.other, 1.0f));
    ck_ok(fake_begin_many(NULL, second, 1, 0, 0, NULL, &scaled));
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_master_params(&two.other, &master, 1, &count));
    ck_assert_float_eq(*(float *)master.grad, 0.75f);
    rig_end(&two.rig);
}

/* The gradients go, the bracket of the other optimizer stays open for those that come. */
TEST_TIMES(zero_grad_of_one_in_a_bracket_of_the_other, 2) {
    struct two two;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    two_share(&two, _i ? AMP_O2 : AMP_O1, 1);
    amp_optimizer *second[] = { &two.other };
    ck_ok(fake_begin_many(NULL, second, 1, 0, 0, NULL, &scaled));
    add_grad(two.rig.net.weight, 65536.0);
    net_zero_grad(&two.rig.net);
    add_grad(two.rig.net.weight, 65536.0 / 2.0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 0.5);
    rig_end(&two.rig);
}

TEST(one_decision_for_all_step_slots_of_an_optimizer) { /* hosts with a step per layer */
    struct two two;
    amp_op steps[2];
    amp_config config = config_of(AMP_O1);
    two_start(&two, AMP_O1, 1);
    ck_ok(amp_shutdown(two.rig.context));
    steps[0] = two.rig.net.step_op;
    steps[1] = two.second_op;
    two.rig.net.optimizer.steps = steps;
    two.rig.net.optimizer.n_steps = 2;
    two.other.self = two.rig.net.optimizer.self;
    ck_ok(rig_config(&two.rig, &config));
    ck_assert_int_eq(bracket(&two.rig, INF), AMP_SKIP);
    int32_t (*const second)(void *) = (int32_t (*)(void *))two.second_step;
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(second(&two.rig.net), 0);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
    ck_assert_int_eq(second(&two.rig.net), 1);
    rig_end(&two.rig);
}
