/* SPDX-License-Identifier: Apache-2.0 */
/* AMP_DELAY_OVERFLOW_CHECK: several brackets, one decision. */
#include "two.h"

enum { LATER = AMP_DELAY_OVERFLOW_CHECK };

DIFFERENCE_TIMES(the_last_bracket_decides_for_all, 8) { /* _i: level, and which of three brackets overflows */
    amp_record record = AMP_RECORD_INIT;
    TWO_START(two, _i / 4 ? AMP_O2 : AMP_O1, 1);
    const int bad = _i % 4;
    for (int k = 0; k < 3; k++) {
        const amp_action action = run(&two, 1, 0, k < 2 ? LATER : 0, k == bad ? INF : 0.25, 0);
        ck_assert_int_eq(action, k == 2 && bad < 3 ? AMP_SKIP : AMP_STEP);
        ck_assert_float_eq(scale_now(&two.rig, 0), k == 2 && bad < 3 ? 32768.0f : 65536.0f);
        if (k == 2) break;
        ck_assert_int_eq(net_step(&two.rig.net), 0);
        ck_refused(AMP_ERR_WRONG_STATE, "AMP_DELAY_OVERFLOW_CHECK", amp_check(two.rig.context));
    }
    ck_assert_int_eq(two.rig.net.steps, 0);
    ck_ok(amp_get_record(two.rig.context, 0, &record));
    ck_assert_uint_eq(record.brackets, 1);
    ck_assert_uint_eq(record.skipped, bad < 3);
    ck_assert_uint_eq(record.unskipped, bad == 3);
    if (bad < 3) ck_assert_str_eq(record.first_nonfinite, "weight");
    else ck_assert_float_eq(seen_grad(&two.rig, 0), 0.75f); /* each was unscaled at its own end */
    ck_assert_uint_eq(two.rig.host.events[AMP_EVENT_SKIP], bad < 3);
    ck_assert_int_eq(net_step(&two.rig.net), bad == 3);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
}

TEST_TIMES(an_empty_bracket_can_decide, 2) {
    TWO_START(two, AMP_O2, 1);
    (void)run(&two, 1, 0, LATER, _i ? INF : 0.25, 0);
    ck_assert_int_eq(run(&two, 0, 0, 0, 0, 0), _i ? AMP_SKIP : AMP_STEP); /* not even the optimizer is named */
    ck_assert_int_eq(net_step(&two.rig.net), !_i);
    ck_assert_float_eq(scale_now(&two.rig, 0), _i ? 32768.0f : 65536.0f);
}

TEST_TIMES(optimizers_of_all_the_brackets_skip, 2) {
    TWO_START(two, AMP_O1, 1);
    (void)run(&two, 1, 0, LATER, _i ? 1.0 : INF, 0);
    ck_assert_int_eq(run(&two, 2, 0, 0, 0, _i ? INF : 1.0), AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 0);
    ck_assert_int_eq(run(&two, 3, 0, 0, 0, 0), AMP_STEP); /* and all is forgotten */
}

TEST(losses_decide_apart) {
    TWO_START(two, AMP_O1, 2);
    (void)run(&two, 1, 0, LATER, INF, 0);
    ck_assert_int_eq(run(&two, 2, 1, 0, 0, 1.0), AMP_STEP);
    ck_assert_int_eq(call_other(&two), 1);
    ck_assert_int_eq(run(&two, 1, 0, 0, 0, 0), AMP_SKIP);
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_float_eq(scale_now(&two.rig, 0), 32768.0f);
    ck_assert_float_eq(scale_now(&two.rig, 1), 65536.0f);
}

TEST(nothing_steps_and_nothing_is_saved_undecided) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    size_t size;
    TWO_START(two, AMP_O1, 1);
    (void)run(&two, 2, 0, LATER, 0, 1.0);
    ck_refused(AMP_ERR_WRONG_STATE, "AMP_DELAY_OVERFLOW_CHECK", amp_step_begin(&two.other, &info));
    const amp_status status = amp_state_save_memory(two.rig.context, AMP_STATE_APEX, NULL, 0, &size);
    ck_assert(status == AMP_ERR_WRONG_STATE || status == AMP_ERR_UNSUPPORTED);
    ck_assert_int_eq(net_step(&two.rig.net), 1); /* the optimizer of no such bracket does */
    (void)run(&two, 2, 0, 0, 0, 0);
    ck_assert_int_eq(call_other(&two), 1);
}

TEST_TIMES(cancel_takes_back_its_own_bracket_alone, 4) {
    amp_scaled_loss scaled;
    TWO_START(two, _i % 2 ? AMP_O2 : AMP_O1, 1);
    (void)run(&two, 1, 0, LATER, 0.5, 0);
    ck_ok(begin(&two, 1, 0, _i / 2 ? LATER : 0, &scaled));
    add_grad(two.rig.net.weight, INF);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_int_eq(run(&two, 1, 0, 0, 0.25, 0), AMP_STEP);
    ck_assert_float_eq(seen_grad(&two.rig, 0), 0.75f);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
}

TEST(an_error_in_the_deciding_bracket_skips_and_settles) {
    amp_scaled_loss scaled;
    TWO_START(two, AMP_O1, 1);
    (void)run(&two, 3, 0, LATER, 1.0, 1.0);
    ck_ok(begin(&two, 2, 0, 0, &scaled));
    fake_fail(&two.rig.host, FAKE_GRAD, 1);
    ck_fails(AMP_ERR_HOST_FAILED, amp_scale_loss_end(&scaled));
    two.rig.host.fail_at = 0;
    ck_assert_int_eq(net_step(&two.rig.net), 0);
    ck_assert_int_eq(call_other(&two), 0);
    net_zero_grad(&two.rig.net);
    ck_assert_int_eq(run(&two, 3, 0, 0, 1.0, 1.0), AMP_STEP);
    ck_assert_int_eq(net_step(&two.rig.net), 1);
}

TEST_TIMES(both_delays_unscale_later_and_check_then, 2) {
    TWO_START(two, AMP_O2, 1);
    (void)run(&two, 1, 0, AMP_DELAY_UNSCALE | LATER, 0.5, 0);
    ck_assert_double_eq(fake_get(two.rig.net.weight->grad, 0), 32768.0);
    (void)run(&two, 1, 0, LATER, _i ? INF : 0.25, 0);
    ck_assert_int_eq(run(&two, 1, 0, 0, 0, 0), _i ? AMP_SKIP : AMP_STEP);
    if (!_i) ck_assert_float_eq(seen_grad(&two.rig, 0), 0.75f);
    ck_assert_int_eq(net_step(&two.rig.net), !_i);
}

static unsigned exchanges;
static amp_status count_reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self, (void)reduction, (void)values, (void)n;
    return exchanges++, AMP_OK;
}

TEST(ranks_talk_at_the_decision_only) {
    RIG_INIT(rig, 0);
    rig.host.hooks.reduce = count_reduce;
    rig_wire(&rig, config_of(AMP_O1));
    exchanges = 0;
    for (int k = 0; k < 4; k++) {
        (void)bracket_with(&rig, k < 3 ? LATER : 0, 0.0);
        ck_assert_uint_eq(exchanges, k == 3);
    }
}
