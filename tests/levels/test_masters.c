/* SPDX-License-Identifier: Apache-2.0 */
/* Masters: what the optimizer sees, what comes back, and what happens when the host changes parameters itself. */
#include "checks.h"

static float value_of(struct rig *rig) { return *(float *)rig_master(rig, 0).data; }

static void give_grad(struct rig *rig, amp_dtype dtype, double value) {
    fake_put_grad(rig->net.weight, rig_tensor(rig, dtype, value));
}

DIFFERENCE_TIMES(masters_exist_from_the_start_and_are_exact, 2) {
    RIG_INIT(rig, 0);
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, config_of(_i ? AMP_O5 : AMP_O2));
    const amp_master master = rig_master(&rig, 0);
    ck_assert_str_eq(master.name, "weight");
    ck_assert_ptr_eq(master.param, rig.net.weight);
    ck_assert_int_eq(master.is_master, 1);
    ck_assert_int_eq(master.dtype, AMP_FLOAT32);
    ck_assert_uint_eq(master.size, NET_SIZE);
    ck_assert_float_eq(*(float *)master.data, 0.1f);
    ck_assert_ptr_null(master.grad);
}

TEST(fp32_parameters_are_their_own_masters) {
    RIG_START(rig, AMP_O2, 0);
    const amp_master gamma = rig_master(&rig, 2);
    ck_assert_int_eq(gamma.is_master, 0);
    ck_assert_ptr_eq(gamma.data, rig.net.gamma->storage.data);
}

TEST(master_weights_can_be_switched_off) {
    RIG_WITH(rig, 0, AMP_O2, .master_weights = AMP_OFF, .loss_scale = 1.0f);
    ck_assert_int_eq(rig_master(&rig, 0).is_master, 0);
    ck_dtype(rig.net.gamma, AMP_FLOAT32);
    give_grad(&rig, AMP_FLOAT16, 1.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.375);
}

DIFFERENCE(masters_follow_the_optimizers_list) {
    RIG_INIT(rig, 0);
    rig.net.weight->requires_grad = false; /* frozen, but the optimizer lists it */
    rig.net.optimizer.n_params = 1;
    fake_fill(rig.net.bias, 0.1);
    rig_wire(&rig, config_of(AMP_O2));
    ck_assert_int_eq(rig_master(&rig, 0).is_master, 1);
    ck_dtype(rig.net.bias, AMP_FLOAT16);
    rig_stop(&rig);
    ck_assert_double_eq(fake_get(rig.net.bias, 0), (double)0.0999755859375f); /* it had no master: rounded to fp16 */
}

DIFFERENCE_TIMES(the_step_sees_fp32_under_the_same_handles, 2) {
    RIG_START(rig, _i ? AMP_O5 : AMP_O2, 0);
    give_grad(&rig, _i ? AMP_BFLOAT16 : AMP_FLOAT16, 1.0);
    struct fake_tensor *grad = rig.net.weight->grad;
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_int_eq(rig.net.step_saw, AMP_FLOAT32);
    ck_assert_int_eq(rig.net.step_grad, AMP_FLOAT32);
    ck_assert_ptr_eq(rig.net.step_handle, grad);
    ck_dtype(rig.net.weight, _i ? AMP_BFLOAT16 : AMP_FLOAT16);
}

TEST(small_updates_add_up_in_the_master) { /* the reason for masters: 2^-13 is lost in fp16 at 0.5 */
    RIG_START(rig, AMP_O2, 0);
    for (int i = 0; i < 8; i++) {
        give_grad(&rig, AMP_FLOAT16, 0x1p-10);
        ck_assert_int_eq(net_step(&rig.net), 1);
    }
    ck_assert_float_eq(value_of(&rig), 0.5f - 8 * 0x1p-13f);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5 - 0x1p-10);
}

TEST(write_back_rounds_to_nearest_even) {
    RIG_START(rig, AMP_O2, 0);
    *(float *)rig_master(&rig, 0).data = 1.0f + 0x1p-11f + 0x1p-20f; /* above the middle: up */
    ((float *)rig_master(&rig, 0).data)[1] = 1.0f + 0x1p-11f;        /* the middle: to even */
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 1.0 + 0x1p-10);
    ck_assert_double_eq(fake_get(rig.net.weight, 1), 1.0);
}

TEST_TIMES(gradients_keep_their_type_after_the_step, 2) {
    static const amp_dtype dtypes[] = { AMP_FLOAT16, AMP_FLOAT32 };
    RIG_START(rig, AMP_O2, 0);
    give_grad(&rig, dtypes[_i], 1.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_dtype(rig.net.weight->grad, dtypes[_i]);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 3), 1.0);
}

TEST(a_step_that_drops_its_gradients) {
    RIG_START(rig, AMP_O2, 0);
    rig.net.step_drops_grads = true;
    for (int i = 0; i < 2; i++) {
        give_grad(&rig, AMP_FLOAT16, 1.0);
        ck_assert_int_eq(net_step(&rig.net), 1);
    }
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.25);
}

/* A host that reuses its handles: the same one, at the same version, with another gradient. */
TEST(a_handle_that_a_step_dropped_is_a_new_one_when_it_comes_again) {
    RIG_START(rig, AMP_O2, 0);
    rig.net.step_drops_grads = true;
    give_grad(&rig, AMP_FLOAT16, 1.0);
    struct fake_tensor *again = rig.net.weight->grad, *fresh = rig_tensor(&rig, AMP_FLOAT16, 0.25);
    const uint64_t version = again->version;
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_uint_eq(again->refs, 0);
    again->storage = fresh->storage, again->version = version;
    again->refs = 1, fresh->refs = 0; /* in its stead */
    rig.net.weight->grad = again;
    ck_assert_float_eq(*(float *)rig_master(&rig, 0).grad, 0.25f);
}

DIFFERENCE(a_step_without_gradients_changes_nothing) {
    RIG_INIT(rig, 0);
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, config_of(AMP_O2));
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_float_eq(value_of(&rig), 0.1f);
}

/* ---- reconciliation: master := parameter where the parameter is not the rounded master ---- */

static void start_at_a_tenth(struct rig *rig, unsigned options) {
    rig_init(rig, options);
    fake_fill(rig->net.weight, 0.1);
    rig_wire(rig, config_of(AMP_O2));
}
#define AT_A_TENTH(name, options) RIG(name); start_at_a_tenth(&name, options)

DIFFERENCE(a_loaded_value_reaches_the_master) {
    AT_A_TENTH(rig, 0);
    fake_set(rig.net.weight, 2, 3.0);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 3.0);
    ck_assert_float_eq(((float *)rig_master(&rig, 0).data)[2], 3.0f);
    ck_assert_float_eq(value_of(&rig), 0.1f); /* the elements beside it keep every bit */
}

/* A write that does not change the version, as through PyTorch's `.data`. */
static void write_unseen(struct fake_tensor *tensor, int64_t i, double value) {
    const uint64_t version = tensor->version;
    fake_set(tensor, i, value);
    tensor->version = version;
}

TEST_TIMES(writes_that_versions_miss_are_found_by_a_flag, 2) {
    RIG(rig);
    rig_init(&rig, 0);
    if (_i) rig.host.hooks.flags |= AMP_HOST_VERSION_MISSES_WRITES;
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, config_of(AMP_O2));
    for (int step = 0; step < 3; step++) {
        write_unseen(rig.net.weight, 2, 3.0 + step);
        if (step == 1) ck_assert_float_eq(((float *)rig_master(&rig, 0).data)[2], _i ? 4.0f : 0.1f);
        ck_assert_int_eq(net_step(&rig.net), 1);
        ck_assert_double_eq(fake_get(rig.net.weight, 2), _i ? 3.0 + step : fake_get(rig.net.weight, 1));
        ck_assert_float_eq(value_of(&rig), 0.1f); /* the elements beside it keep every bit */
    }
    write_unseen(rig.net.weight, 2, 7.0);
    ck_ok(amp_shutdown(rig.context));
    rig.context = NULL;
    ck_assert_double_eq(fake_get(rig.net.weight, 2), _i ? 7.0 : fake_get(rig.net.weight, 1));
}

/* Once one was found: an optimizer that writes masters between bracket and step begins from the write. */
TEST(after_one_such_write_the_next_is_found_before_the_bracket) {
    RIG(rig);
    rig_init(&rig, 0);
    rig.host.hooks.flags |= AMP_HOST_VERSION_MISSES_WRITES;
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, config_of(AMP_O2));
    float *const master = rig_master(&rig, 0).data;
    for (int step = 0; step < 2; step++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        write_unseen(rig.net.weight, 2, 3.0 + step);
        ck_ok(amp_scale_loss_begin(&rig.net.optimizer, NULL, &scaled));
        ck_assert_float_eq(master[2], step ? 4.0f : 0.1f);
        ck_ok(amp_scale_loss_cancel(&scaled));
        ck_assert_int_eq(net_step(&rig.net), 1);
        ck_assert_float_eq(master[2], 3.0f + (float)step);
    }
}

TEST(writing_the_same_value_loses_no_bit) { /* a checkpoint of the 16-bit model, loaded again */
    AT_A_TENTH(rig, 0);
    fake_fill(rig.net.weight, 0.1);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_float_eq(value_of(&rig), 0.1f);
}

TEST(without_versions_reconcile_is_asked_for) {
    AT_A_TENTH(rig, FAKE_NO_VERSION);
    fake_set(rig.net.weight, 2, 3.0);
    ck_ok(amp_masters_reconcile(rig.context));
    ck_assert_float_eq(((float *)rig_master(&rig, 0).data)[2], 3.0f);
    ck_assert_float_eq(value_of(&rig), 0.1f);
}

TEST_TIMES(a_value_loaded_before_shutdown_survives_it, 2) {
    AT_A_TENTH(rig, _i ? FAKE_NO_VERSION : 0);
    fake_set(rig.net.weight, 2, 3.0);
    rig_stop(&rig);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 3.0);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), (double)0.1f);
}

TEST(a_written_master_reaches_the_parameter) {
    AT_A_TENTH(rig, 0);
    *(float *)rig_master(&rig, 0).data = 2.5f;
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), 2.5);
}

TEST_TIMES(a_written_master_is_written_back_at_once, 2) {
    AT_A_TENTH(rig, _i ? FAKE_NO_VERSION : 0);
    ((float *)rig_master(&rig, 0).data)[1] = 2.5f;
    ck_ok(amp_masters_write_back(rig.context));
    ck_assert_double_eq(fake_get(rig.net.weight, 1), 2.5);
    ck_assert_float_eq(value_of(&rig), 0.1f); /* rounding is the parameter's alone */
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_float_eq(((float *)rig_master(&rig, 0).data)[1], 2.5f);
}

TEST(where_both_were_written_the_parameter_counts) {
    AT_A_TENTH(rig, 0);
    float *master = rig_master(&rig, 0).data;
    master[1] = 2.5f;
    fake_set(rig.net.weight, 2, 3.0);
    ck_ok(amp_masters_write_back(rig.context));
    ck_assert_double_eq(master[1], fake_get(rig.net.weight, 1));
    ck_assert_float_eq(master[2], 3.0f);
    ck_assert_float_eq(value_of(&rig), 0.1f);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 3.0);
}

/* Because of the second parameter: the first, or its master, is as it was. */
TEST_TIMES(a_refusal_changes_nothing, 2) {
    amp_status (*const call)(amp_context *) = _i ? amp_masters_reconcile : amp_masters_write_back;
    AT_A_TENTH(rig, 0);
    OWN_TENSOR *other = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    struct fake_tensor *weight = rig.net.weight, *bias = rig.net.bias;
    float *master = rig_master(&rig, 0).data;
    const amp_storage own = bias->storage;
    const double before = fake_get(weight, 2);
    bias->storage = other->storage;
    if (_i) bias->version++, fake_set(weight, 2, 3.0);
    else master[2] = 3.0f;
    ck_fails(AMP_ERR_WRONG_STATE, call(rig.context));
    ck_assert_double_eq(_i ? (double)master[2] : fake_get(weight, 2), _i ? (double)0.1f : before);
    bias->storage = own;
    ck_ok(call(rig.context));
    ck_assert_float_eq(master[2], 3.0f);
    ck_assert_double_eq(fake_get(weight, 2), 3.0);
}

TEST(a_changed_storage_is_refused) {
    AT_A_TENTH(rig, 0);
    const amp_storage own = rig.net.weight->storage;
    OWN_TENSOR *other = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    rig.net.weight->storage = other->storage;
    rig.net.weight->version++;
    ck_refused(AMP_ERR_WRONG_STATE, "weight", amp_masters_reconcile(rig.context));
    rig.net.weight->storage = own;
}

/* Because of the last parameter: the master of the first, which the host has changed, is as it was. */
TEST(refused_nothing_has_changed) {
    amp_master masters[3] = { AMP_MASTER_INIT };
    size_t count = 0;
    AT_A_TENTH(rig, 0);
    float *master = rig_master(&rig, 0).data;
    struct fake_tensor *of_integers = rig_tensor(&rig, AMP_FLOAT32, 1.0), *weight = rig.net.weight;
    of_integers->bits = 32;
    of_integers->code = 1; /* unsigned */
    fake_put_grad(rig.net.gamma, of_integers);
    fake_set(weight, 2, 3.0);
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "gamma", amp_master_params(&rig.net.optimizer, masters, 3, &count));
    ck_assert_float_eq(master[2], 0.1f);
    ck_assert_ptr_null(masters[0].data);
    ck_assert_uint_eq(count, 0);
    of_integers->code = 2;
    ck_ok(amp_master_params(&rig.net.optimizer, masters, 3, &count));
    ck_assert_float_eq(master[2], 3.0f);
}

/* The `at`th block that is lent from here on is refused. */
static void begin_fails(struct rig *rig, uint64_t at, const char *who) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    fake_fail(&rig->host, FAKE_SWAP, at);
    ck_refused(AMP_ERR_HOST_FAILED, who, amp_step_begin(&rig->net.optimizer, &info));
}

/* A step that cannot begin changes nothing: also not what a host without versions wrote and has not told. */
TEST_TIMES(a_step_that_cannot_begin_keeps_what_the_host_wrote, 2) {
    AT_A_TENTH(rig, _i ? FAKE_NO_VERSION : 0);
    fake_set(rig.net.weight, 2, 3.0);
    begin_fails(&rig, 2, "bias"); /* its master; the weight's is lent by then */
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 3.0);
    ck_ok(amp_masters_reconcile(rig.context)); /* now it is told, and the hook works again */
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 3.0);
    ck_assert_float_eq(((float *)rig_master(&rig, 0).data)[2], 3.0f);
    ck_assert_float_eq(value_of(&rig), 0.1f);
}

/* The same for a gradient, whose FP32 one was lent: the hook fails at the weight itself, or at the bias. */
TEST_TIMES(a_step_that_cannot_begin_keeps_what_backward_made, 4) {
    AT_A_TENTH(rig, _i % 2 ? FAKE_NO_VERSION : 0);
    give_grad(&rig, AMP_FLOAT16, 1.0);
    ck_assert_float_eq(((float *)rig_master(&rig, 0).grad)[2], 1.0f);
    fake_set(rig.net.weight->grad, 2, 3.0);
    begin_fails(&rig, 2 + (uint64_t)_i / 2, _i / 2 ? "bias" : "weight");
    ck_dtype(rig.net.weight->grad, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 2), 3.0);
    ck_assert_double_eq(fake_get(rig.net.weight->grad, 0), 1.0);
}

/* Inside a step of another optimizer it is that one's end which writes the parameters, and it does. */
TEST_TIMES(a_step_that_cannot_begin_inside_another_one, 2) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    RIG_INIT(rig, _i ? FAKE_NO_VERSION : 0);
    amp_optimizer outer = SIZED(amp_optimizer, .params = rig.net.trained, .n_params = 1); /* the weight */
    rig_wire_two(&rig, &outer, config_of(AMP_O2));
    ck_ok(amp_step_begin(&outer, &info));
    fake_set(rig.net.weight, 2, 4.0);
    fake_fail(&rig.host, FAKE_SWAP, 1);
    ck_fails(AMP_ERR_HOST_FAILED, amp_step_begin(&rig.net.optimizer, &info));
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_ok(amp_step_end(&outer));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
    ck_assert_double_eq(fake_get(rig.net.weight, 2), 4.0);
}

TEST(master_params_measures) {
    size_t count = 0;
    amp_master one = AMP_MASTER_INIT;
    RIG_START(rig, AMP_O2, 0);
    ck_ok(amp_master_params(&rig.net.optimizer, NULL, 0, &count));
    ck_assert_uint_eq(count, 3);
    count = 0;
    ck_ok(amp_master_params(&rig.net.optimizer, &one, 1, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(one.name, "weight");
}
