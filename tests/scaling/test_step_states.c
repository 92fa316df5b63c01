/* SPDX-License-Identifier: Apache-2.0 */
/* Where an optimizer may be between two steps (src/context/step_state.h), and the calls that each place allows. */
#include "bracket.h"

enum state { IDLE, IN_BRACKET, DELAYED, REOPENED, UNCHECKED, DECIDED, RUNNING, STATES };
enum call { BEGIN, STEP, CLIP, ADD, CALLS };

/* The words of the refusal; NULL: the call is allowed. */
static const char *const refusals[STATES][CALLS] = {
    [IN_BRACKET] = { "is open already", "inside the bracket", "inside a bracket", "inside a bracket" },
    [DELAYED] = { NULL, "AMP_DELAY_UNSCALE", "AMP_DELAY_UNSCALE", "still scaled" },
    [REOPENED] = { "is open already", "inside the bracket", "inside a bracket", "inside a bracket" },
    [UNCHECKED] = { NULL, "AMP_DELAY_OVERFLOW_CHECK", NULL, NULL },
    [RUNNING] = { "inside a step", "a step of this optimizer is running", "inside a step", "inside a step" },
};

static void reach(struct rig *rig, enum state state, amp_scaled_loss *scaled, amp_step_info *info) {
    if (state == DELAYED || state == REOPENED)
        ck_assert_int_eq(bracket_with(rig, AMP_DELAY_UNSCALE, 0.5), AMP_STEP);
    if (state == UNCHECKED) ck_assert_int_eq(bracket_with(rig, AMP_DELAY_OVERFLOW_CHECK, 0.5), AMP_STEP);
    if (state == DECIDED) ck_assert_int_eq(bracket(rig, 0.5), AMP_STEP);
    if (state == IN_BRACKET || state == REOPENED) ck_ok(fake_begin(&rig->net.optimizer, NULL, scaled));
    if (state == RUNNING) ck_ok(amp_step_begin(&rig->net.optimizer, info));
}

static amp_status try(struct rig *rig, enum call call, amp_scaled_loss *scaled, amp_step_info *info) {
    switch (call) {
    case BEGIN: return fake_begin(&rig->net.optimizer, NULL, scaled);
    case STEP: return amp_step_begin(&rig->net.optimizer, info);
    case CLIP: return amp_clip_grad_norm(&rig->net.optimizer, 1e6f, NULL);
    case ADD: return amp_add_params(&rig->net.optimizer, NULL, 0);
    default: return AMP_ERR_INVALID_ARGUMENT;
    }
}

/* On to a step that is taken, from wherever a call left it. */
static void go_on(struct rig *rig, enum state state, bool begun, amp_scaled_loss *scaled) {
    if (state == RUNNING) {
        ck_ok(amp_step_end(&rig->net.optimizer));
        return;
    }
    if (begun || state == IN_BRACKET || state == REOPENED) {
        add_grad(rig->net.weight, 0.5 * fake_seed(scaled));
        ck_ok(amp_scale_loss_end(scaled));
        ck_assert_int_eq(scaled->action, AMP_STEP);
    } else if (state == DELAYED || state == UNCHECKED) {
        ck_assert_int_eq(bracket(rig, 0.5), AMP_STEP);
    }
    ck_assert_int_eq(net_step(&rig->net), 1);
}

TEST_TIMES(each_state_allows_its_calls, (int)STATES * CALLS) {
    const enum state state = (enum state)(_i / CALLS);
    const enum call call = (enum call)(_i % CALLS);
    const char *refusal = refusals[state][call];
    amp_scaled_loss open = AMP_SCALED_LOSS_INIT, scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    START_AT_SCALE(rig, AMP_O2, 0, 256.0f);
    reach(&rig, state, &open, &info);
    if (refusal) ck_refused(AMP_ERR_WRONG_STATE, refusal, try(&rig, call, &scaled, &info));
    else ck_ok(try(&rig, call, &scaled, &info));
    if (!refusal && call == STEP) ck_ok(amp_step_end(&rig.net.optimizer));
    go_on(&rig, state, !refusal && call == BEGIN, refusal ? &open : &scaled);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP); /* and the next one, as ever */
    ck_assert_int_eq(net_step(&rig.net), 1);
}

/* What begins in a state that a cancelled bracket left is what could have begun before it. */
TEST_TIMES(a_cancelled_bracket_leaves_the_state_of_its_begin, (int)STATES) {
    const enum state state = (enum state)_i;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    START_AT_SCALE(rig, AMP_O2, 0, 256.0f);
    reach(&rig, state, &scaled, &info);
    if (state == RUNNING) ck_ok(amp_step_end(&rig.net.optimizer));
    if (state != IN_BRACKET && state != REOPENED) ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_cancel(&scaled));
    const char *refusal = refusals[state == REOPENED ? DELAYED : state][STEP];
    if (state == IN_BRACKET || state == RUNNING || !refusal) ck_assert_int_eq(net_step(&rig.net), 1);
    else ck_refused(AMP_ERR_WRONG_STATE, refusal, amp_step_begin(&rig.net.optimizer, &info));
}

/* Cleared outside of brackets, delayed gradients leave nothing to unscale. */
TEST_TIMES(cleared_gradients_are_not_delayed_any_more, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    START_AT_SCALE(rig, AMP_O2, 0, 256.0f);
    reach(&rig, _i ? REOPENED : DELAYED, &scaled, &info);
    net_zero_grad(&rig.net);
    if (_i) ck_ok(amp_scale_loss_cancel(&scaled)); /* inside of one they are the bracket's */
    if (_i) ck_refused(AMP_ERR_WRONG_STATE, "AMP_DELAY_UNSCALE", amp_step_begin(&rig.net.optimizer, &info));
    else ck_assert_int_eq(net_step(&rig.net), 1);
}
