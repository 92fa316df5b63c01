/* SPDX-License-Identifier: Apache-2.0 */
/* What is wired rightly is sound, whatever a program does besides, and costs nothing after the first brackets. */
#include "findings.h"
#include "levels.h"

TEST_TIMES(what_is_right_is_sound, N_EACH_LEVEL) {
    size_t n;
    RIG_START(rig, each_level[_i], FAKE_RETAINS);
    train(&rig, 20);
    ck_ok(amp_get_findings(rig.context, NULL, 0, &n));
    ck_assert_msg(!n, "%s", health(rig.context));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 0);
    ck_health(&rig, "20 decisions, 20 taken by a step; gradients seen in 3, missing in 0\nsound\n");
}

/* What programs do besides: all of it is right. */
enum habit { ACCUMULATES, DELAYS_UNSCALE, DELAYS_CHECK, CANCELS, CLIPS, EVALUATES, SKIPS_BY_ITSELF, AVERAGES, FREEZES,
             WARMS_UP, CLOSES_EMPTY, N_HABITS };

static void backward_in_bracket(struct rig *rig, uint32_t flags, bool cancels) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig->net.optimizer;
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 0.5), *out = net_forward(&rig->net, x),
                       *loss = net_unary(&rig->net, OP_sum, out);
    ck_ok(amp_scale_loss_begin_many(rig->context, &optimizer, 1, 0, flags, loss, &scaled));
    net_backward(&rig->net, 0.5, fake_seed(&scaled));
    if (cancels) ck_ok(amp_scale_loss_cancel(&scaled));
    else ck_ok(amp_scale_loss_end(&scaled));
    fake_tape_clear(&rig->host);
    fake_release(loss);
    fake_release(out);
    fake_release(x);
}

static void step_as(struct rig *rig, enum habit habit, int i) {
    struct net *net = &rig->net;
    if (habit == ACCUMULATES) backward_in_bracket(rig, 0, false);
    if (habit == DELAYS_UNSCALE) backward_in_bracket(rig, AMP_DELAY_UNSCALE, false);
    if (habit == DELAYS_CHECK) backward_in_bracket(rig, AMP_DELAY_OVERFLOW_CHECK, false);
    if (habit == CANCELS) backward_in_bracket(rig, 0, true), net_zero_grad(net);
    if (habit == EVALUATES) fake_release(net_linear(net, net->weight, net->weight, NULL));
    if (habit == AVERAGES) fake_set(net->mean, 0, fake_get(net->mean, 0) + 0.125); /* no gradient, and not trained */
    if (habit == CLOSES_EMPTY) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        backward_in_bracket(rig, AMP_DELAY_OVERFLOW_CHECK, false);
        ck_ok(amp_scale_loss_begin(&net->optimizer, NULL, &scaled));
        ck_ok(amp_scale_loss_end(&scaled));
    } else backward_in_bracket(rig, 0, false);
    if (habit == CLIPS) ck_ok(amp_clip_grad_norm(&net->optimizer, 0.5f, NULL));
    if (habit == FREEZES) fake_put_grad(net->gamma, NULL);
    if (habit != SKIPS_BY_ITSELF || i % 2) (void)net_step(net);
    net_zero_grad(net);
}

TEST_TIMES(habits_are_sound, N_HABITS * N_EACH_LEVEL) {
    const enum habit habit = (enum habit)(_i / N_EACH_LEVEL);
    size_t n;
    RIG_INIT(rig, 0);
    if (habit == FREEZES) rig.net.optimizer.n_params = 2; /* gamma has gradients, and nobody steps on them */
    rig_wire(&rig, config_of(each_level[_i % N_EACH_LEVEL]));
    for (int i = 0; habit == WARMS_UP && i < 3; i++) {
        OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 0.5);
        fake_release(net_forward(&rig.net, x));
        fake_tape_clear(&rig.host);
    }
    for (int i = 0; i < 20; i++) step_as(&rig, habit, i);
    ck_ok(amp_get_findings(rig.context, NULL, 0, &n));
    ck_assert_msg(!n && !rig.host.events[AMP_EVENT_WARNING], "%s", health(rig.context));
}

/* Its parameters are looked at in the first brackets, and then ever more rarely. */
TEST(who_accumulates_for_long_pays_nothing) {
    uint64_t views = 0;
    RIG_START(rig, AMP_O0, FAKE_RETAINS);
    for (int i = 0; i < 32; i++) {
        const uint64_t before = rig.host.calls[FAKE_VIEW];
        backward_in_bracket(&rig, 0, false);
        if (i > 9 && i != 15 && i != 16 && i != 31) ck_assert_uint_eq(rig.host.calls[FAKE_VIEW], before);
        if (i < 8) views += rig.host.calls[FAKE_VIEW] - before;
    }
    ck_assert_uint_ge(views, 8 * 3);
    net_zero_grad(&rig.net);
}

/* The second model's ops and forward are not those of the first optimizer's brackets. */
TEST_TIMES(models_that_train_in_turns_are_sound, N_EACH_LEVEL) {
    const amp_config config = config_of(each_level[_i]);
    struct net second;
    size_t n;
    RIG_INIT(rig, FAKE_RETAINS);
    net_init(&second, &rig.host);
    amp_model *models[] = { &rig.net.model, &second.model };
    amp_optimizer *optimizers[] = { &rig.net.optimizer, &second.optimizer };
    ck_ok(amp_initialize_many(models, 2, optimizers, 2, &config, &rig.context));
    train(&rig, 3);
    for (int i = 0; i < 3; i++) ck_ok(net_train_step(&second, 0.5));
    ck_ok(amp_get_findings(rig.context, NULL, 0, &n));
    ck_assert_msg(!n && !rig.host.events[AMP_EVENT_WARNING], "%s", health(rig.context));
    rig_stop(&rig);
    net_destroy(&second);
}
