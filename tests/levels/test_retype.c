/* SPDX-License-Identifier: Apache-2.0 */
/* O2, O3, O5: which parameters change their type, and that they get everything back. */
#include "checks.h"
#include "../support/levels.h"

static const struct {
    amp_dtype weights, batch_norm;
} expected[] = {
    { AMP_FLOAT32, AMP_FLOAT32 }, { AMP_FLOAT32, AMP_FLOAT32 }, { AMP_FLOAT16, AMP_FLOAT32 },
    { AMP_FLOAT16, AMP_FLOAT16 }, { AMP_FLOAT32, AMP_FLOAT32 }, { AMP_BFLOAT16, AMP_FLOAT32 },
};

DIFFERENCE_TIMES(weights, 6) {
    RIG_START(rig, each_level[_i], 0);
    ck_dtype(rig.net.weight, expected[_i].weights);
    ck_dtype(rig.net.bias, expected[_i].weights);
    ck_assert_double_eq(fake_get(rig.net.weight, 3), 0.5);
}

/* Parameters and statistics; from 6 on of a layer that has statistics alone. */
DIFFERENCE_TIMES(batch_norm, 12) {
    RIG_INIT(rig, 0);
    if (_i >= 6) {
        rig.net.params[2] = rig.net.params[3];
        rig.net.optimizer.n_params = 2;
    }
    rig_wire(&rig, config_of(each_level[_i % 6]));
    if (_i < 6) ck_dtype(rig.net.gamma, expected[_i].batch_norm);
    ck_dtype(rig.net.mean, expected[_i % 6].batch_norm);
}

TEST_TIMES(batch_norm_by_override, 2) {
    RIG_WITH(rig, 0, _i ? AMP_O3 : AMP_O2, .keep_batchnorm_fp32 = _i ? AMP_ON : AMP_OFF);
    ck_dtype(rig.net.gamma, _i ? AMP_FLOAT32 : AMP_FLOAT16);
    ck_dtype(rig.net.mean, _i ? AMP_FLOAT32 : AMP_FLOAT16);
}

TEST(integers_and_fp64_are_untouched) {
    RIG_INIT(rig, 0);
    const void *const before[] = { rig.net.count->storage.data, rig.net.wide->storage.data };
    rig_wire(&rig, config_of(AMP_O3));
    ck_assert_ptr_eq(rig.net.count->storage.data, before[0]);
    ck_assert_ptr_eq(rig.net.wide->storage.data, before[1]);
    ck_assert_double_eq(fake_get(rig.net.count, 0), 3.0);
    ck_assert_double_eq(fake_get(rig.net.wide, 0), 0.1);
}

/* Parameters, model inputs and outputs; gradients of fp64 parameters are unscaled in double. */
DIFFERENCE(fp64_is_left_alone) {
    RIG_INIT(rig, 0);
    void *trained[] = { rig.net.wide };
    rig.net.optimizer.params = trained;
    rig.net.optimizer.n_params = 1;
    rig_wire(&rig, config_of(AMP_O2));
    ck_dtype(rig.net.wide, AMP_FLOAT64);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT64, 1.0), *out = net_forward(&rig.net, x);
    ck_dtype(out, AMP_FLOAT64);
    amp_scaled_loss scaled = rig_begin(&rig);
    fake_put_grad(rig.net.wide, rig_tensor(&rig, AMP_FLOAT64, 0.1 * fake_seed(&scaled)));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_double_eq(fake_get(rig.net.wide->grad, 0), 0.1); /* not float's 0.1 */
}

TEST(model_type_unchanged_touches_nothing) {
    RIG_WITH(rig, 0, AMP_O2, .cast_model_type = AMP_DTYPE_UNCHANGED);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_uint_eq(rig.host.calls[FAKE_SWAP], 0);
}

TEST_TIMES(tied_handles_share_the_new_storage, 2) {
    amp_param params[NET_PARAMS + 1];
    RIG_INIT(rig, _i ? FAKE_NO_ID : 0);
    OWN_TENSOR *tied = rig_tie(&rig, params);
    rig_wire(&rig, config_of(AMP_O2));
    ck_dtype(tied, AMP_FLOAT16);
    ck_assert_ptr_eq(tied->storage.data, rig.net.weight->storage.data);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT16, 1.0));
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_double_eq(fake_get(tied, 0), 0.375);
    rig_stop(&rig);
    ck_dtype(tied, AMP_FLOAT32);
    ck_assert_ptr_eq(tied->storage.data, rig.net.weight->storage.data);
}

TEST(an_optimizer_may_have_the_second_of_two_tied_handles) {
    amp_param params[NET_PARAMS + 1];
    RIG_INIT(rig, 0);
    OWN_TENSOR *tied = rig_tie(&rig, params);
    rig.net.trained[0] = tied;
    rig_wire(&rig, config_of(AMP_O2));
    ck_assert_ptr_eq(rig_master(&rig, 0).param, rig.net.weight);
    ck_assert_int_eq(rig_master(&rig, 0).is_master, 1);
    rig_stop(&rig);
}

TEST(the_same_handle_twice_in_the_model_is_a_tie) {
    RIG_INIT(rig, 0);
    rig.net.params[3].tensor = rig.net.weight;
    rig.net.params[3].module_kind = AMP_MODULE_OTHER;
    rig_wire(&rig, config_of(AMP_O2));
    ck_dtype(rig.net.weight, AMP_FLOAT16);
}

TEST(overlapping_parameters_are_refused) {
    RIG_INIT(rig, 0);
    OWN_TENSOR *part = fake_alias(rig.net.weight);
    part->shape[0] = 2;
    part->id = 99;
    rig.net.params[3].tensor = part;
    ck_refused(AMP_ERR_CONFLICT, "overlap", rig_try(&rig, config_of(AMP_O2)));
    ck_says("weight");
    ck_dtype(rig.net.weight, AMP_FLOAT32);
}

DIFFERENCE(weights_that_do_not_fit_are_counted_and_named) {
    RIG_INIT(rig, 0);
    fake_set(rig.net.bias, 1, 70000.0);
    fake_set(rig.net.bias, 2, -1e6);
    fake_set(rig.net.weight, 0, (double)__builtin_inff()); /* infinite already: not ours */
    rig_wire(&rig, config_of(AMP_O2));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 1);
    ck_warned(&rig, "2 weights");
    ck_warned(&rig, "bias");
}

TEST(bf16_fits_what_fp16_does_not) {
    RIG_INIT(rig, 0);
    fake_set(rig.net.bias, 1, 70000.0);
    rig_wire(&rig, config_of(AMP_O5));
    ck_assert_uint_eq(rig.host.events[AMP_EVENT_WARNING], 0);
}

/* ---- the way back ---- */

/* 0.1 has no short binary form; O2 and O5 keep it in the master. */
DIFFERENCE_TIMES(shutdown_gives_fp32_back_exactly, 4) {
    RIG_INIT(rig, _i & 2 ? FAKE_NO_ALLOC : 0);
    fake_fill(rig.net.weight, 0.1);
    const double exact = fake_get(rig.net.weight, 0);
    rig_wire(&rig, config_of(_i & 1 ? AMP_O2 : AMP_O5));
    ck_assert_double_ne(fake_get(rig.net.weight, 0), exact);
    rig_stop(&rig);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), exact);
}

TEST_TIMES(without_masters_shutdown_widens, 2) {
    RIG_INIT(rig, _i ? FAKE_NO_ALLOC : 0);
    fake_fill(rig.net.weight, 0.1);
    rig_wire(&rig, config_of(AMP_O3));
    const double rounded = fake_get(rig.net.weight, 0);
    rig_stop(&rig);
    ck_dtype(rig.net.weight, AMP_FLOAT32);
    ck_assert_double_eq(fake_get(rig.net.weight, 0), rounded);
}

TEST(without_masters_the_fp32_storage_is_given_up) {
    RIG_INIT(rig, 0);
    const int64_t blocks = rig.host.live_blocks;
    rig_wire(&rig, config_of(AMP_O3));
    ck_assert_int_eq(rig.host.live_blocks, blocks);
}

DIFFERENCE(a_model_can_be_initialised_again_at_another_level) {
    static const amp_level order[] = { AMP_O2, AMP_O1, AMP_O5, AMP_O0, AMP_O3, AMP_O2 };
    RIG_INIT(rig, 0);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        rig_wire(&rig, config_of(order[i]));
        ck_assert_ptr_eq(rig.net.model.amp, rig.context);
        ck_dtype(rig.net.weight, level_retypes(order[i]) ? level_low(order[i]) : AMP_FLOAT32);
        ck_ok(amp_shutdown(rig.context));
        ck_assert(net_slots_restored(&rig.net));
        ck_assert_ptr_null(rig.net.model.amp);
        ck_assert_ptr_null(rig.net.optimizer.amp);
        ck_assert_double_eq(fake_get(rig.net.weight, 0), 0.5);
    }
    rig.context = NULL;
}

TEST(a_second_context_is_refused_retyped_parameters) {
    amp_context *other = NULL;
    const amp_config config = config_of(AMP_O2);
    RIG_START(rig, AMP_O2, 0);
    amp_model second = rig.net.model, *models[] = { &second };
    second.amp = NULL;
    second.n_ops = 0;
    second.forward = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "weight", amp_initialize_many(models, 1, NULL, 0, &config, &other));
    ck_assert_ptr_null(other);
}
