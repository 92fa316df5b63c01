/* SPDX-License-Identifier: Apache-2.0 */
/* AMP_DELAY_OVERFLOW_CHECK: several brackets, one decision. */
#include "bracket.h"

struct pair { /* a second optimizer, of gamma, without step slots */
    struct rig rig;
    amp_optimizer other;
    void *gamma[1];
};

static void pair_start(struct pair *pair, amp_level level, unsigned options, uint32_t num_losses) {
    amp_config config = config_of(level);
    config.loss_scale = AMP_DYNAMIC;
    config.init_scale = 128.0f;
    config.num_losses = num_losses;
    rig_init(&pair->rig, options);
    pair->rig.net.optimizer.n_params = 2;
    pair->gamma[0] = pair->rig.net.gamma;
    pair->other = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .params = pair->gamma, .n_params = 1,
                                   .host = &pair->rig.host.hooks };
    amp_model *models[] = { &pair->rig.net.model };
    amp_optimizer *optimizers[] = { &pair->rig.net.optimizer, &pair->other };
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, &pair->rig.context));
}

static amp_status begin(struct pair *pair, unsigned which, uint32_t loss_id, uint32_t flags, amp_scaled_loss *scaled) {
    amp_optimizer *optimizers[2];
    size_t n = 0;
    if (which & 1) optimizers[n++] = &pair->rig.net.optimizer;
    if (which & 2) optimizers[n++] = &pair->other;
    *scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    return fake_begin_many(pair->rig.context, optimizers, n, loss_id, flags, NULL, scaled);
}

/* which: 1 the net's optimizer, 2 the other, 3 both; backward adds the values times the scale. */
static amp_action run(struct pair *pair, unsigned which, uint32_t loss_id, uint32_t flags, double weight,
                      double gamma) {
    amp_scaled_loss scaled;
    ck_ok(begin(pair, which, loss_id, flags, &scaled));
    if (weight != 0.0) add_grad(pair->rig.net.weight, weight * fake_seed(&scaled));
    if (gamma != 0.0) add_grad(pair->rig.net.gamma, gamma * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

static amp_action other_step(struct pair *pair) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    ck_ok(amp_step_begin(&pair->other, &info));
    ck_ok(amp_step_end(&pair->other));
    return info.action;
}

enum { LATER = AMP_DELAY_OVERFLOW_CHECK };

DIFFERENCE_TIMES(the_last_bracket_decides_for_all, 8) { /* _i: level, and which of three brackets overflows */
    struct pair pair;
    amp_record record = AMP_RECORD_INIT;
    pair_start(&pair, _i / 4 ? AMP_O2 : AMP_O1, 0, 1);
    const int bad = _i % 4;
    for (int k = 0; k < 3; k++) {
        const amp_action action = run(&pair, 1, 0, k < 2 ? LATER : 0, k == bad ? INF : 0.25, 0);
        ck_assert_int_eq(action, k == 2 && bad < 3 ? AMP_SKIP : AMP_STEP);
        ck_assert_float_eq(scale_now(&pair.rig, 0), k == 2 && bad < 3 ? 64.0f : 128.0f);
        if (k == 2) break;
        ck_assert_int_eq(net_step(&pair.rig.net), 0);
        ck_fails(AMP_ERR_WRONG_STATE, amp_check(pair.rig.context));
        ck_says("AMP_DELAY_OVERFLOW_CHECK");
    }
    ck_assert_int_eq(pair.rig.net.steps, 0);
    ck_ok(amp_get_record(pair.rig.context, 0, &record));
    ck_assert_uint_eq(record.brackets, 1);
    ck_assert_uint_eq(record.skipped, bad < 3);
    ck_assert_uint_eq(record.unskipped, bad == 3);
    if (bad < 3) ck_assert_str_eq(record.first_nonfinite, "weight");
    else ck_assert_float_eq(seen_grad(&pair.rig, 0), 0.75f); /* each was unscaled at its own end */
    ck_assert_uint_eq(pair.rig.host.events[AMP_EVENT_SKIP], bad < 3);
    ck_assert_int_eq(net_step(&pair.rig.net), bad == 3);
    ck_assert_int_eq(net_step(&pair.rig.net), 1);
    rig_end(&pair.rig);
}

TEST_TIMES(an_empty_bracket_can_decide, 2) {
    struct pair pair;
    pair_start(&pair, AMP_O2, 0, 1);
    (void)run(&pair, 1, 0, LATER, _i ? INF : 1.0, 0);
    ck_assert_int_eq(run(&pair, 0, 0, 0, 0, 0), _i ? AMP_SKIP : AMP_STEP); /* not even the optimizer is named */
    ck_assert_int_eq(net_step(&pair.rig.net), !_i);
    ck_assert_float_eq(scale_now(&pair.rig, 0), _i ? 64.0f : 128.0f);
    rig_end(&pair.rig);
}

TEST_TIMES(optimizers_of_all_the_brackets_skip, 2) {
    struct pair pair;
    pair_start(&pair, AMP_O1, 0, 1);
    (void)run(&pair, 1, 0, LATER, _i ? 1.0 : INF, 0);
    ck_assert_int_eq(run(&pair, 2, 0, 0, 0, _i ? INF : 1.0), AMP_SKIP);
    ck_assert_int_eq(net_step(&pair.rig.net), 0);
    ck_assert_int_eq(other_step(&pair), AMP_SKIP);
    ck_assert_int_eq(run(&pair, 3, 0, 0, 0, 0), AMP_STEP); /* and all is forgotten */
    rig_end(&pair.rig);
}

TEST(losses_decide_apart) {
    struct pair pair;
    pair_start(&pair, AMP_O1, 0, 2);
    (void)run(&pair, 1, 0, LATER, INF, 0);
    ck_assert_int_eq(run(&pair, 2, 1, 0, 0, 1.0), AMP_STEP);
    ck_assert_int_eq(other_step(&pair), AMP_STEP);
    ck_assert_int_eq(run(&pair, 1, 0, 0, 0, 0), AMP_SKIP);
    ck_assert_int_eq(net_step(&pair.rig.net), 0);
    ck_assert_float_eq(scale_now(&pair.rig, 0), 64.0f);
    ck_assert_float_eq(scale_now(&pair.rig, 1), 128.0f);
    rig_end(&pair.rig);
}

TEST(nothing_steps_and_nothing_is_saved_undecided) {
    struct pair pair;
    amp_step_info info = AMP_STEP_INFO_INIT;
    size_t size;
    pair_start(&pair, AMP_O1, 0, 1);
    (void)run(&pair, 2, 0, LATER, 0, 1.0);
    ck_fails(AMP_ERR_WRONG_STATE, amp_step_begin(&pair.other, &info));
    ck_says("AMP_DELAY_OVERFLOW_CHECK");
    const amp_status status = amp_state_save_memory(pair.rig.context, AMP_STATE_APEX, NULL, 0, &size);
    ck_assert(status == AMP_ERR_WRONG_STATE || status == AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(net_step(&pair.rig.net), 1); /* the optimizer of no such bracket does */
    (void)run(&pair, 2, 0, 0, 0, 0);
    ck_assert_int_eq(other_step(&pair), AMP_STEP);
    rig_end(&pair.rig);
}

TEST_TIMES(cancel_takes_back_its_own_bracket_alone, 4) {
    struct pair pair;
    amp_scaled_loss scaled;
    pair_start(&pair, _i % 2 ? AMP_O2 : AMP_O1, 0, 1);
    (void)run(&pair, 1, 0, LATER, 0.5, 0);
    ck_ok(begin(&pair, 1, 0, _i / 2 ? LATER : 0, &scaled));
    add_grad(pair.rig.net.weight, INF);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_int_eq(run(&pair, 1, 0, 0, 0.25, 0), AMP_STEP);
    ck_assert_float_eq(seen_grad(&pair.rig, 0), 0.75f);
    ck_assert_int_eq(net_step(&pair.rig.net), 1);
    rig_end(&pair.rig);
}

TEST(an_error_in_the_deciding_bracket_skips_and_settles) {
    struct pair pair;
    amp_scaled_loss scaled;
    pair_start(&pair, AMP_O1, 0, 1);
    (void)run(&pair, 3, 0, LATER, 1.0, 1.0);
    ck_ok(begin(&pair, 2, 0, 0, &scaled));
    pair.rig.host.fail_hook = FAKE_GRAD;
    pair.rig.host.fail_at = pair.rig.host.calls[FAKE_GRAD] + 1;
    ck_fails(AMP_ERR_HOST_FAILED, amp_scale_loss_end(&scaled));
    pair.rig.host.fail_at = 0;
    ck_assert_int_eq(net_step(&pair.rig.net), 0);
    ck_assert_int_eq(other_step(&pair), AMP_SKIP);
    net_zero_grad(&pair.rig.net);
    ck_assert_int_eq(run(&pair, 3, 0, 0, 1.0, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&pair.rig.net), 1);
    rig_end(&pair.rig);
}

TEST_TIMES(both_delays_unscale_later_and_check_then, 2) {
    struct pair pair;
    pair_start(&pair, AMP_O2, 0, 1);
    (void)run(&pair, 1, 0, AMP_DELAY_UNSCALE | LATER, 0.5, 0);
    ck_assert_double_eq(fake_get(pair.rig.net.weight->grad, 0), 64.0);
    (void)run(&pair, 1, 0, LATER, _i ? INF : 0.25, 0);
    ck_assert_int_eq(run(&pair, 1, 0, 0, 0, 0), _i ? AMP_SKIP : AMP_STEP);
    if (!_i) ck_assert_float_eq(seen_grad(&pair.rig, 0), 0.75f);
    ck_assert_int_eq(net_step(&pair.rig.net), !_i);
    rig_end(&pair.rig);
}

static unsigned exchanges;
static amp_status count_reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self, (void)reduction, (void)values, (void)n;
    return exchanges++, AMP_OK;
}

TEST(ranks_talk_at_the_decision_only) {
    amp_config config = config_of(AMP_O1);
    RIG_INIT(rig, 0);
    rig.host.hooks.reduce = count_reduce;
    ck_ok(rig_config(&rig, &config));
    exchanges = 0;
    amp_optimizer *optimizer = &rig.net.optimizer;
    for (int k = 0; k < 4; k++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin_many(NULL, &optimizer, 1, 0, k < 3 ? LATER : 0, NULL, &scaled));
        ck_ok(amp_scale_loss_end(&scaled));
        ck_assert_uint_eq(exchanges, k == 3);
    }
}
