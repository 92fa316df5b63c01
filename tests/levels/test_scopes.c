/* SPDX-License-Identifier: Apache-2.0 */
/* Whose policy a call gets: scopes, nesting, backward, brackets. */
#include "checks.h"

#include "common/thread.h"

TEST(no_scope_means_casts_are_disabled) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_scope_enter(NULL, &scope));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT32);
    ck_ok(amp_scope_leave(&scope));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
}

DIFFERENCE_TIMES(scopes_nest, 2) {
    amp_scope outer, inner;
    ck_ok(amp_scope_enter(NULL, &outer)); /* also before any context exists */
    ck_ok(amp_scope_leave(&outer));
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_scope_enter(NULL, &outer));
    ck_ok(amp_scope_enter(_i ? rig.context : NULL, &inner));
    ck_assert_int_eq(rig_linear_gets(&rig), _i ? AMP_FLOAT16 : AMP_FLOAT32);
    ck_ok(amp_scope_leave(&inner));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT32); /* Apex's disable_casts is not re-entrant; ours is */
    ck_ok(amp_scope_leave(&outer));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
}

TEST(a_scope_is_left_exactly_once) {
    amp_scope scope = { { 0 } };
    ck_fails(AMP_ERR_WRONG_STATE, amp_scope_leave(&scope));
    ck_ok(amp_scope_enter(NULL, &scope));
    ck_ok(amp_scope_leave(&scope));
    ck_refused(AMP_ERR_WRONG_STATE, "left", amp_scope_leave(&scope));
}

/* Left with the one around it, which an error path may do; but not after it, which would bring its past back. */
TEST(scopes_are_left_from_the_inside) {
    struct rig rig;
    amp_scope outer, inner;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_scope_enter(rig.context, &outer));
    ck_ok(amp_scope_enter(NULL, &inner));
    ck_ok(amp_scope_leave(&outer));
    ck_refused(AMP_ERR_WRONG_STATE, "leave the innermost first", amp_scope_leave(&inner));
    ck_ok(amp_scope_enter(NULL, &inner)); /* no scope is in force now, and scopes work as ever */
    ck_ok(amp_scope_leave(&inner));
    rig_end(&rig); /* shutdown sees no scope of this context */
}

TEST(a_captured_scope_can_be_adopted) {
    amp_scope disabled, captured, previous;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_scope_enter(NULL, &disabled));
    ck_ok(amp_scope_capture(&captured));
    ck_ok(amp_scope_leave(&disabled));
    ck_ok(amp_scope_adopt(&captured, &previous));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT32);
    ck_ok(amp_scope_leave(&previous));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
}

TEST(passed_counts_calls_under_disabled_casts) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_ok(amp_scope_enter(NULL, &scope));
    (void)rig_linear_gets(&rig);
    ck_ok(amp_scope_leave(&scope));
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).passed, 1); /* amp.h: "calls that ran as they came: no scope, ..." */
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).calls, 0);
}

DIFFERENCE(ops_called_by_an_op_run_as_they_come) { /* relu, registered, calls add through the table */
    RIG_INIT(rig, FAKE_RETAINS);
    ck_ok(amp_register(&rig.net.model, "relu", AMP_LOWER));
    rig_wire(&rig, config_of(AMP_O1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    fake_release(net_unary(&rig.net, OP_relu, x));
    ck_assert_str_eq(rig.host.log[0].op, "add");
    ck_assert_int_eq(rig.host.log[0].dtypes[0], AMP_FLOAT16); /* relu's argument, cast */
    ck_assert_int_eq(rig.host.log[0].dtypes[1], AMP_FLOAT32); /* its own zero: add would have promoted */
}

/* ---- backward ---- */

DIFFERENCE(ops_in_backward_run_as_they_come) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT32);
    ck_assert_uint_eq(rig_stats(&rig, OP_linear).passed, 1);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
}

TEST(recomputation_in_backward_enters_a_scope) {
    amp_scope scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_ok(amp_scope_enter(rig.context, &scope));
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
    ck_ok(amp_scope_leave(&scope));
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST(a_wrapped_forward_in_backward_obeys) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    amp_scaled_loss scaled = rig_begin_with(&rig, x);
    fake_release(net_forward(&rig.net, x));
    ck_assert_int_eq(rig.host.log[0].dtypes[0], AMP_FLOAT16);
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST(ops_obey_in_a_bracket_without_a_loss) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_assert_int_eq(rig_linear_gets(&rig), AMP_FLOAT16);
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST(backward_of_obeys_its_class_in_backward) {
    RIG_INIT(rig, FAKE_RETAINS);
    rig.net.ops[OP_relu].backward_of = "linear";
    rig_wire(&rig, config_of(AMP_O1));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    amp_scaled_loss scaled = rig_begin_with(&rig, x);
    fake_release(net_unary(&rig.net, OP_relu, x));
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[0], AMP_FLOAT16);
    ck_ok(amp_scale_loss_end(&scaled));
}

TEST(the_present_scope_can_be_asked_for) {
    amp_scope scope, none;
    amp_context *context = (amp_context *)&scope;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    ck_assert_int_eq(amp_scope_current(&context), 0);
    ck_assert_ptr_null(context);
    ck_ok(amp_scope_enter(rig.context, &scope));
    ck_assert_int_eq(amp_scope_current(&context), 1);
    ck_assert_ptr_eq(context, rig.context);
    ck_ok(amp_scope_enter(NULL, &none));
    ck_assert_int_eq(amp_scope_current(&context), 1);
    ck_assert_ptr_null(context);
    ck_ok(amp_scope_leave(&none));
    ck_ok(amp_scope_leave(&scope));
    ck_assert_int_eq(amp_scope_current(NULL), 0);
}

/* Nothing waits for the next call to find out that this one is over. */
TEST_TIMES(a_call_takes_its_mark_with_it, 4) {
    RIG_START(rig, _i & 1 ? AMP_O2 : AMP_O1, FAKE_RETAINS | (_i & 2 ? FAKE_NO_VERSION : 0));
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_unary(&rig.net, OP_softmax, x));
    ck_assert_uint_eq(amp__thread_state()->n_marks, 0);
    fake_release(net_forward(&rig.net, x));
    ck_assert_uint_eq(amp__thread_state()->n_marks, 0);
}
