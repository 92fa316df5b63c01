/* SPDX-License-Identifier: Apache-2.0 */
/* begin, end and cancel around one loss and one optimizer. */
#include "../support/levels.h"
#include "bracket.h"

TEST_TIMES(the_loss_carries_the_scale, 2) {
    START_AT_SCALE(rig, AMP_O1, 0, 256.0f);
    OWN_TENSOR *loss = rig_tensor(&rig, _i ? AMP_FLOAT16 : AMP_FLOAT32, 300.0);
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_assert_double_eq(fake_get(scaled.loss, 0), 76800.0); /* Apex: loss.float() * scale */
    ck_dtype((struct fake_tensor *)scaled.loss, AMP_FLOAT32);
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f);
    ck_assert_float_eq(*scaled.scale, 256.0f);
    ck_assert_double_eq(fake_get(loss, 0), 300.0);
    ck_ok(amp_scale_loss_end(&scaled));
}

DIFFERENCE_TIMES(the_seed_carries_it_without_a_scale_hook_or_loss, 2) {
    START_AT_SCALE(rig, AMP_O1, _i ? FAKE_NO_SCALE : 0, 256.0f);
    struct fake_tensor *loss = _i ? rig_tensor(&rig, AMP_FLOAT32, 1.0) : NULL;
    amp_scaled_loss scaled = rig_begin_with(&rig, loss);
    ck_assert_ptr_eq(scaled.loss, loss);
    ck_assert_float_eq(amp_seed_factor(&scaled), 256.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    if (loss) fake_release(loss);
}

TEST_TIMES(end_unscales_exactly, N_LOW_LEVELS) {
    START_AT_SCALE(rig, level_where(level_is_low, _i), 0, 1024.0f);
    ck_assert_int_eq(bracket(&rig, 1.25), AMP_STEP);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 3), 1.25);
}

TEST(masters_get_gradients_below_the_low_types_range) {
    START_AT_SCALE(rig, AMP_O2, 0, 65536.0f);
    ck_assert_int_eq(bracket(&rig, 0x1p-30), AMP_STEP);
    ck_assert_float_eq(seen_grad(&rig, 0), 0x1p-30f);
}

/* A third is rounded once: the master keeps more bits than fp16 shows. */
DIFFERENCE(a_16_bit_gradient_shows_the_master) {
    START_AT_SCALE(rig, AMP_O2, 0, 3.0f);
    ck_assert_int_eq(bracket(&rig, 1.0 / 3.0), AMP_STEP);
    const double exact = (double)seen_grad(&rig, 0), shown = fake_get(rig.net.weight->grad, 0);
    ck_dtype(rig.net.weight->grad, AMP_FLOAT16); /* Apex: still scaled here */
    ck_assert_double_eq_tol(exact, 1.0 / 3.0, 1e-6);
    ck_assert_double_ne(shown, exact);
    ck_assert_double_eq_tol(shown, exact, 0x1p-12); /* half a unit of fp16 below 1/2 */
}

/* ---- accumulation ---- */

TEST_TIMES(micro_batches_add_up, 6) {
    static const struct {
        amp_level level;
        unsigned options;
    } cases[] = { { AMP_O1, 0 }, { AMP_O1, FAKE_NO_SET_GRAD }, { AMP_O2, 0 }, { AMP_O2, FAKE_NO_SET_GRAD },
                  { AMP_O2, FAKE_NO_VERSION }, { AMP_O2, FAKE_NO_SET_GRAD | FAKE_NO_ALLOC } };
    START_AT_SCALE(rig, cases[_i].level, cases[_i].options, 128.0f);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(bracket(&rig, 0.5 * (i + 1)), AMP_STEP);
    ck_assert_float_eq(seen_grad(&rig, 0), 5.0f);
}

TEST_TIMES(micro_batches_add_up_below_the_low_types_range, 2) { /* the host's 16-bit gradient shows 0 all the time */
    START_AT_SCALE(rig, AMP_O2, _i ? FAKE_NO_SET_GRAD : 0, 65536.0f);
    if (_i) fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT16, 0.0));
    for (int i = 0; i < 4; i++) ck_assert_int_eq(bracket(&rig, 0x1p-30), AMP_STEP);
    ck_assert_float_eq(seen_grad(&rig, 0), 0x1p-28f);
}

DIFFERENCE(static_scale_one_with_masters_keeps_the_sum) { /* Apex lost it for FP32 parameters */
    RIG_START(rig, AMP_O5, 0);
    for (int i = 0; i < 3; i++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
        add_grad(rig.net.gamma, 0.5);
        add_grad(rig.net.weight, 0.25);
        ck_ok(amp_scale_loss_end(&scaled));
    }
    ck_assert_float_eq(seen_grad(&rig, 2), 1.5f);
    ck_assert_float_eq(seen_grad(&rig, 0), 0.75f);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.75);
}

/* What stands between two brackets counts, whoever put it there: a step leaves it, the host may drop it. */
DIFFERENCE_TIMES(gradients_are_the_hosts_between_brackets, 4) {
    amp_master masters[3] = { AMP_MASTER_INIT };
    size_t n;
    RIG_INIT(rig, 0);
    rig.net.rate = 0.0f;
    if (_i == 0) add_grad(rig.net.weight, 1.0); /* before initialize, in FP32 */
    rig_wire(&rig, CONFIG(AMP_O2, .init_scale = 1024.0f));
    if (_i != 0) ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    if (_i == 1) ck_assert_int_eq(net_step(&rig.net), 1);        /* no zero_grad: it adds up, as in FP32 training */
    if (_i == 2) fake_put_grad(rig.net.weight, NULL);            /* behind libamp's back: model.zero_grad() */
    if (_i == 3) net_zero_grad(&rig.net);                        /* this host's sets to none */
    if (_i >= 2) {
        ck_ok(amp_master_params(&rig.net.optimizer, masters, 3, &n));
        ck_assert_ptr_null(rig.net.weight->grad);
        ck_assert_ptr_null(masters[0].grad);
    }
    ck_assert_int_eq(bracket(&rig, 4.0), AMP_STEP);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), _i < 2 ? 5.0 : 4.0);
}

TEST(a_bracket_whose_backward_made_nothing_puts_gradients_back) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 0.5), AMP_STEP);
    struct fake_tensor *grad = rig.net.weight->grad;
    amp_scaled_loss scaled = rig_begin(&rig);
    ck_assert_ptr_null(rig.net.weight->grad); /* set aside, so that autograd starts from nothing */
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_ptr_eq(rig.net.weight->grad, grad);
    ck_assert_double_eq(fake_get(grad, 0), 0.5);
}

TEST_TIMES(delayed_gradients_are_unscaled_by_the_last_bracket, 2) {
    START_AT_SCALE(rig, _i ? AMP_O2 : AMP_O1, 0, 128.0f);
    for (int i = 0; i < 3; i++) {
        (void)bracket_with(&rig, i < 2 ? AMP_DELAY_UNSCALE : 0, 0.5);
        if (i < 2) ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 64.0 * (i + 1));
    }
    ck_assert_float_eq(seen_grad(&rig, 0), 1.5f);
}

DIFFERENCE(delay_keeps_what_stood_there_apart) { /* Apex would unscale it too */
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    add_grad(rig.net.weight, 2.0);
    for (int i = 0; i < 2; i++) (void)bracket_with(&rig, i ? 0 : AMP_DELAY_UNSCALE, 1.0);
    ck_assert_float_eq(seen_grad(&rig, 0), 4.0f);
}

DIFFERENCE(no_step_while_gradients_are_scaled) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, 1.0);
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(rig.net.steps, 0);
    ck_refused(AMP_ERR_WRONG_STATE, "step while gradients are still scaled", amp_check(rig.context));
    ck_says("AMP_DELAY_UNSCALE");
}

/* ---- cancel ---- */

DIFFERENCE_TIMES(cancel_drops_the_new_and_puts_back_the_old, 4) {
    static const unsigned options[] = { 0, FAKE_NO_SET_GRAD, 0, FAKE_NO_SET_GRAD };
    START_AT_SCALE(rig, _i < 2 ? AMP_O1 : AMP_O2, options[_i], 128.0f);
    ck_assert_int_eq(bracket(&rig, 0.75), AMP_STEP);
    struct fake_tensor *grad = rig.net.weight->grad;
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, INF);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_ptr_eq(rig.net.weight->grad, grad);
    ck_assert_float_eq(seen_grad(&rig, 0), 0.75f);
    ck_assert_float_eq(scale_now(&rig, 0), 128.0f);
    ck_assert_int_eq(net_step(&rig.net), 1);
}

TEST(cancel_of_a_first_bracket_leaves_no_gradient) {
    START_AT_SCALE(rig, AMP_O2, 0, 128.0f);
    amp_scaled_loss scaled = rig_begin(&rig);
    add_grad(rig.net.weight, 1.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_ptr_null(rig.net.weight->grad);
}

TEST(cancelling_a_bracket_keeps_delayed_gradients) { /* "as if backward had not happened": this one's */
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    (void)bracket_with(&rig, AMP_DELAY_UNSCALE, 1.0);
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    add_grad(rig.net.weight, 128.0);
    ck_ok(amp_scale_loss_cancel(&scaled));
    (void)bracket(&rig, 1.0);
    ck_assert_float_eq(seen_grad(&rig, 0), 2.0f); /* the first and the third */
}

TEST(shutdown_cancels_open_brackets) {
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    ck_assert_int_eq(bracket(&rig, 0.75), AMP_STEP);
    OWN_TENSOR *loss = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    (void)rig_begin_with(&rig, loss);
    add_grad(rig.net.weight, 1.0);
    rig_stop(&rig);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 0.75);
}

/* What a host does with a bracket or a context that is gone is told, and touches nothing. */
TEST_TIMES(what_is_gone_is_told, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT, copy;
    START_AT_SCALE(rig, AMP_O1, 0, 128.0f);
    amp_context *gone = rig.context;
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    copy = scaled;
    ck_ok(amp_scale_loss_end(&copy));
    ck_fails(AMP_ERR_WRONG_STATE, _i ? amp_scale_loss_end(&scaled) : amp_scale_loss_cancel(&scaled));
    ck_says("the bracket is closed already");
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled)); /* the structure may be used again */
    copy = scaled;
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_ok(fake_begin(&rig.net.optimizer, NULL, &scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_end(&copy)); /* of the opening before this one */
    rig_stop(&rig);
    ck_fails(AMP_ERR_WRONG_STATE, _i ? amp_scale_loss_end(&scaled) : amp_scale_loss_cancel(&scaled));
    ck_says("the context was shut down meanwhile");
    ck_refused(AMP_ERR_WRONG_STATE, "was it shut down already?", amp_shutdown(gone));
    ck_fails(AMP_ERR_WRONG_STATE, fake_begin_many(gone, NULL, 0, 0, 0, NULL, &scaled));
}

/* A static scale of 1 skips nothing, so the optimizer sees what backward made: as in FP32 training, and as Apex. */
TEST_TIMES(at_a_static_scale_of_one_what_is_not_finite_reaches_the_step, 2) {
    RIG_START(rig, AMP_O5, _i ? FAKE_NO_SET_GRAD : 0);
    ck_assert_int_eq(bracket(&rig, (double)INFINITY), AMP_STEP);
    ck_assert(isinf(fake_get(rig.net.weight->grad, 0)));
    net_step(&rig.net);
    ck_assert(!isfinite(fake_get(rig.net.weight, 0)));
}
