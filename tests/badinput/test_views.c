/* SPDX-License-Identifier: Apache-2.0 */
/* Views that change, or fail, between libamp's looks at them: found by fuzzing (tests/fuzz), kept small here. */
#include "world.h"

static void put_grads(struct rig *rig, double value) {
    for (size_t k = 0; k < 3; k++)
        fake_put_grad(rig->net.trained[k], fake_new(&rig->host, AMP_FLOAT32, NET_SIZE, value));
}

/* The last gradient cannot be clipped: the first ones stay as they are. */
TEST_TIMES(clipping_changes_all_gradients_or_none, 2) {
    RIG_START(rig, _i ? AMP_O2 : AMP_O1, FAKE_FP32_GRADS);
    put_grads(&rig, 3.0);
    struct fake_tensor *last = ((struct fake_tensor *)rig.net.trained[2])->grad;
    last->shape[0] = 2;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_clip_grad_value(&rig.net.optimizer, 1.0f));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_clip_grad_norm(&rig.net.optimizer, 1.0f, NULL));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0);
    last->shape[0] = NET_SIZE;
    ck_ok(amp_clip_grad_value(&rig.net.optimizer, 1.0f));
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 1.0);
    ck_assert_double_eq(fake_get(last, 0), 1.0);
    fake_put_grad(rig.net.weight, NULL);
}

/* Each call of clip_grad_norm to a hook fails once. */
TEST_TIMES(clipping_survives_a_failing_hook, 2) {
    static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_GRAD };
    RIG_START(rig, AMP_O2, 0);
    put_grads(&rig, 3.0);
    amp_status status = AMP_ERR_HOST_FAILED;
    uint64_t at = 0;
    while (status != AMP_OK) {
        fake_fail(&rig.host, hooks[_i], ++at);
        status = amp_clip_grad_norm(&rig.net.optimizer, 1.0f, NULL);
        if (status != AMP_OK) ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 3.0);
    }
    ck_assert_uint_gt(at, 3);
    ck_assert_double_lt(fake_get(rig.net.weight->grad, 0), 1.0);
}

/* The optimizer's step changes the number of elements: nothing is written behind them, and the step is not lost. */
TEST(a_step_that_resizes_is_refused) {
    RIG_START(rig, AMP_O2, 0);
    (void)rig_step_begin(&rig);
    fake_set(rig.net.weight, 0, 0.625);
    rig.net.weight->shape[0] = 2;
    ck_refused(AMP_ERR_WRONG_STATE, "behind libamp's back", amp_step_end(&rig.net.optimizer));
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t count;
    ck_fails(AMP_ERR_WRONG_STATE, amp_master_params(&rig.net.optimizer, masters, 3, &count));
    rig.net.weight->shape[0] = NET_SIZE;
    ck_ok(amp_master_params(&rig.net.optimizer, masters, 3, &count));
    ck_assert_float_eq(*(float *)masters[0].data, 0.625f);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.625);
}

/* amp_master says how many elements there are: a parameter without a master must still have them. */
TEST(masters_are_not_shown_of_what_shrank) {
    amp_master master = AMP_MASTER_INIT;
    size_t count;
    RIG_START(rig, AMP_O1, 0);
    rig.net.weight->shape[0] = 2;
    ck_fails(AMP_ERR_WRONG_STATE, amp_master_params(&rig.net.optimizer, &master, 1, &count));
    rig.net.weight->shape[0] = NET_SIZE;
    ck_ok(amp_master_params(&rig.net.optimizer, &master, 1, &count));
}

/* A hook that fails once while a step ends must not cost the step. */
TEST_TIMES(a_hook_that_fails_at_the_steps_end_loses_nothing, 3) {
    static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_SWAP, FAKE_GRAD };
    const enum fake_hook hook = hooks[_i];
    for (uint64_t at = 1, more = 1; more; at++) {
        RIG_START(rig, AMP_O2, 0);
        net_backward(&rig.net, 0.5, 1.0);
        (void)rig_step_begin(&rig);
        fake_set(rig.net.weight, 0, 0.625);
        fake_set(rig.net.bias, 0, 0.375);
        fake_fail(&rig.host, hook, at);
        const amp_status status = amp_step_end(&rig.net.optimizer);
        more = rig.host.calls[hook] >= rig.host.fail_at;
        const bool told = rig.host.events[AMP_EVENT_WARNING] != 0; /* of a look that nothing hung on */
        ck_assert_int_eq(status, more && !told ? AMP_ERR_HOST_FAILED : AMP_OK);
        rig.host.fail_at = 0;
        ck_consistent(&rig);
        ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.625);
        ck_assert_double_eq(fake_get(rig.net.bias, 0), 0.375);
        ck_assert(at > 1 || more);
    }
}

/* A hook fails once in an end over two optimizers: no gradient of either is changed, and none is lost. */
TEST_TIMES(a_failing_end_puts_every_gradient_back, 6) {
    static const enum fake_hook hooks[] = { FAKE_VIEW, FAKE_GRAD, FAKE_SET_GRAD };
    const enum fake_hook hook = hooks[_i % 3];
    amp_status status = AMP_ERR_HOST_FAILED;
    uint64_t at = 0;
    for (; status != AMP_OK; at++) {
        amp_config config = config_of(_i < 3 ? AMP_O1 : AMP_O2);
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        void *rest[2];
        amp_optimizer other = { .struct_size = sizeof(amp_optimizer), .params = rest, .n_params = 2 };
        RIG_INIT(rig, FAKE_FP32_GRADS);
        rest[0] = rig.net.bias, rest[1] = rig.net.gamma;
        rig.net.optimizer.n_params = 1;
        amp_optimizer *optimizers[] = { &rig.net.optimizer, &other };
        rig_wire_two(&rig, &other, config);
        put_grads(&rig, 3.0);
        ck_ok(fake_begin_many(NULL, optimizers, 2, 0, 0, NULL, &scaled));
        /* and none for the others */
        fake_put_grad(rig.net.weight, fake_new(&rig.host, AMP_FLOAT32, NET_SIZE, 65536.0));
        fake_fail(&rig.host, hook, 1 + at);
        status = amp_scale_loss_end(&scaled);
        const double expected = status == AMP_OK ? 4.0 : 3.0;
        for (int k = 0; k < 3; k++) {
            const struct fake_tensor *param = rig.net.trained[k];
            ck_assert_ptr_nonnull(param->grad);
            ck_assert_double_eq(fake_get(param->grad, 0), k ? 3.0 : expected);
        }
        rig.host.fail_at = 0;
    }
    ck_assert_uint_gt(at, 1);
}

/* ---- parameters that come late need what those at the beginning need ---- */

static void drop_swap(amp_host *host) { host->swap_data = NULL; }
static void drop_grad(amp_host *host) { host->grad = NULL; }

TEST_TIMES(late_parameters_need_their_hooks, 2) {
    RIG_INIT(rig, 0);
    (_i ? drop_grad : drop_swap)(&rig.host.hooks);
    rig.net.optimizer.n_params = 0;
    ck_ok(amp_initialize(NULL, &rig.net.optimizer, AMP_O2));
    const amp_param late = { sizeof(amp_param), 0, rig.net.weight, "late" };
    ck_refused(AMP_ERR_MISSING_HOOK, _i ? "grad" : "swap_data", amp_add_params(&rig.net.optimizer, &late, 1));
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    rig.context = rig.net.optimizer.amp;
}

/* What was re-typed for a call that fails is undone, also if the host refuses at first. */
TEST_TIMES(undoing_is_tried_twice, 2) {
    RIG_WITH(rig, 0, AMP_O2, .emulate = _i ? AMP_ON : AMP_DEFAULT);
    OWN_TENSOR *late = fake_new(&rig.host, AMP_FLOAT32, NET_SIZE, 0.1);
    const amp_param params[] = { { sizeof(amp_param), 0, late, "late" }, AMP_PARAM_INIT };
    rig.host.fail_hook = _i ? FAKE_VIEW : FAKE_SWAP;
    for (uint64_t at = 1; at < 16; at++) {
        rig.host.fail_at = rig.host.calls[rig.host.fail_hook] + at;
        ck_assert_int_ne(amp_add_params(&rig.net.optimizer, params, 2), AMP_OK);
        ck_dtype(late, AMP_FLOAT32);
        ck_assert_float_eq((float)fake_get(late, 0), 0.1f);
    }
    rig.host.fail_at = 0;
    ck_ok(amp_add_params(&rig.net.optimizer, params, 1));
    rig_stop(&rig);
}

/* Two optimizers with one parameter: while one steps on the master, the other can neither open a bracket nor look. */
TEST(shared_parameters_are_busy_for_both) {
    void *shared[1];
    amp_config config = config_of(AMP_O2);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_master master = AMP_MASTER_INIT;
    size_t count;
    amp_optimizer other = { .struct_size = sizeof(amp_optimizer), .params = shared, .n_params = 1 };
    RIG_INIT(rig, 0);
    shared[0] = rig.net.weight;
    rig_wire_two(&rig, &other, config);
    net_backward(&rig.net, 0.5, 1.0);
    amp_step_info info = rig_step_begin(&rig);
    ck_refused(AMP_ERR_WRONG_STATE, "shares a parameter", fake_begin(&other, NULL, &scaled));
    ck_fails(AMP_ERR_WRONG_STATE, amp_master_params(&other, &master, 1, &count));
    ck_ok(amp_step_end(&rig.net.optimizer));
    ck_ok(fake_begin(&other, NULL, &scaled));
    ck_refused(AMP_ERR_WRONG_STATE, "in the bracket of another optimizer", amp_step_begin(&rig.net.optimizer, &info));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&rig.net.optimizer, &info));
    ck_ok(amp_step_end(&rig.net.optimizer));
}
