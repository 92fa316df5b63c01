/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts' common problem on a table of functions over raw FP32 buffers, emulated at every level: weights and losses
 * must be, bit for bit, those of the training whose casts are written out by hand (tests/hosts/common/reference.c).
 */
#include "levels.h"
#include "problem_rig.h"

#include <math.h>

/* Activations and elementwise gradients pass through ops that the model leaves at O1; at the 16-bit levels they are
 * rounded as everything is. The loss is no part of the model. */
static void describe(amp_level level) {
    static const amp_class classes[N_PLAIN_OPS] = { [PLAIN_NORM] = AMP_FP32, [PLAIN_RELU] = AMP_LEAVE,
                                                    [PLAIN_RELU_BACKWARD] = AMP_LEAVE };
    describe_params();
    for (int i = 0; i < N_PLAIN_OPS; i++)
        raw_op(&raw, OP(plain_ops[i].name, plain_ops[i].schema, plain_slot(&plain, i),
                        .backward_of = plain_ops[i].backward_of, .op_class = level_retypes(level) ? 0 : classes[i]));
    raw.ops[PLAIN_LOSS].op_class = raw.ops[PLAIN_LOSS_BACKWARD].op_class = AMP_LEAVE;
}

static amp_context *start(const amp_config *given) {
    amp_config config = *given;
    config.emulate = AMP_ON;
    describe(config.level);
    raw_start(&raw, config);
    return raw.context;
}

static void train(int from, int to) {
    for (int i = from; i < to; i++) ck_assert(iterate(i, NULL));
}

TEST_TIMES(it_is_the_training_with_casts_by_hand, N_EACH_LEVEL) {
    struct curve wanted, got;
    kit_train(&host, kit_config(each_level[_i]), &got);
    kit_reference(each_level[_i], &wanted);
    ck_assert_mem_eq(&got, &wanted, sizeof got);
    ck_assert_float_lt(got.loss[STEPS - 1], 0.2f * got.loss[0]); /* and it learns */
}

TEST_TIMES(resume_is_bit_exact, N_EACH_LEVEL) { kit_resume(&host, each_level[_i]); }

static int bad_step = -1;

/* Its input is infinite in fp16. */
static int iterate_with_a_bad_step(int number, float *loss) {
    struct kit_state before;
    if (number == bad_step) {
        float *x = &plain.data[number % BATCHES * BATCH * INPUTS], kept = *x;
        read_state(&before);
        *x = 1e30f;
        ck_assert_int_eq(iterate(number, NULL), 0);
        *x = kept;
        ck_assert_mem_eq(plain.params, before.params, sizeof before.params);
        ck_assert_mem_eq(plain.momentum, before.momentum, sizeof before.momentum);
    }
    return iterate(number, loss);
}

/* Powers of two change nothing while nothing overflows; what overflows is skipped, and nothing stays behind. */
TEST_TIMES(a_dynamic_scale_gives_the_same_bits_and_a_skip_leaves_nothing, 2) {
    const amp_level level = _i ? AMP_O2 : AMP_O1;
    struct kit_host dynamic = host;
    struct curve wanted, got;
    dynamic.iterate = iterate_with_a_bad_step;
    bad_step = 10;
    kit_train(&dynamic, CONFIG(level, .init_scale = SCALE), &got);
    kit_reference(level, &wanted);
    ck_assert_mem_eq(&got, &wanted, sizeof got);
}

/* ---- the parameters' block ---- */

TEST_TIMES(the_hosts_block_holds_what_16_bits_hold, N_RETYPING_LEVELS) {
    const amp_level level = level_where(level_retypes, _i);
    float start_values[PARAM_FLOATS];
    amp_master masters[N_PARAMS] = { AMP_MASTER_INIT };
    size_t n;
    problem_start(start_values);
    start_at(level);
    train(0, 5);
    ck_ok(amp_master_params(&raw.optimizer, masters, N_PARAMS, &n));
    ck_assert_uint_eq(n, N_PARAMS);
    for (int p = 0; p < N_PARAMS; p++) {
        const bool low = level_loses_fp32(level) || !problem_params[p].batch_norm;
        ck_assert_int_eq(masters[p].is_master, low && level_has_masters(level));
        ck_assert_int_eq(masters[p].dtype, AMP_FLOAT32);
        for (size_t i = 0; i < problem_params[p].size; i++) {
            const float exact = ((const float *)masters[p].data)[i];
            ck_assert_float_eq(plain_param(&plain, p)[i], low ? level_through(level, exact) : exact);
        }
    }
    finish(NULL);
    ck_assert_mem_ne(plain.params, start_values, sizeof start_values);
}

/* An initialize that fails at its very end, and a shutdown without a step, give back the exact values. */
TEST_TIMES(what_never_trained_comes_back_bit_for_bit, N_RETYPING_LEVELS) {
    const amp_level level = level_where(level_retypes, _i);
    float wanted[PARAM_FLOATS];
    problem_start(wanted);
    start_at(level);
    ck_assert_mem_ne(plain.params, wanted, sizeof wanted);
    finish(NULL);
    for (int i = 0; level_loses_fp32(level) && i < PARAM_FLOATS; i++) wanted[i] = level_through(level, wanted[i]);
    ck_assert_mem_eq(plain.params, wanted, sizeof wanted);
}

/* The host loads its FP32 checkpoint in mid-run: nobody tells libamp, and no bit is lost. */
TEST(what_the_host_loads_becomes_the_master) {
    float loaded[PARAM_FLOATS];
    start_at(AMP_O2);
    train(0, 3);
    for (int i = 0; i < PARAM_FLOATS; i++) loaded[i] = sinf((float)i) / 3.0f;
    memcpy(plain.params, loaded, sizeof loaded);
    ck_ok(amp_masters_reconcile(raw.context));
    for (size_t i = 0; i < problem_params[W1].size; i++)
        ck_assert_float_eq(plain_param(&plain, W1)[i], level_through(AMP_O2, loaded[i]));
    finish(NULL);
    ck_assert_mem_eq(plain.params, loaded, sizeof loaded);
}

/* Also where the host mends a NaN, element by element. */
TEST(a_nan_and_its_repair_become_the_master) {
    amp_master masters[N_PARAMS] = { AMP_MASTER_INIT };
    size_t n;
    start_at(AMP_O2);
    ck_ok(amp_master_params(&raw.optimizer, masters, N_PARAMS, &n));
    const float *master = masters[W1].data, before = master[1];
    float *weight = plain_param(&plain, W1);
    weight[2] = NAN;
    ck_ok(amp_masters_reconcile(raw.context));
    ck_assert(isnan(master[2]) && isnan(weight[2]));
    weight[2] = 0.5f;
    ck_ok(amp_masters_reconcile(raw.context));
    ck_assert_float_eq(master[2], 0.5f);
    ck_assert_float_eq(master[1], before);
    finish(NULL);
}

/* ---- what is rounded, and what is not ---- */

static void relu_once(bool rounded) {
    const float exact[2] = { 1.0f + 0x1p-20f, 2.0f };
    float y[2];
    plain.ops.relu(y, exact, 2);
    ck_assert_float_eq(y[0], rounded ? 1.0f : exact[0]);
}

static float run_model(void *self) {
    (void)self;
    relu_once(true);
    return 1.0f;
}

static float (*model_forward)(void *self) = run_model;

TEST(with_a_forward_what_runs_outside_is_not_the_model) {
    amp_op described = OP("forward", "forward(pointer self) -> float", &model_forward);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_scope scope;
    start_at(AMP_O2);
    relu_once(true); /* no forward is described: every op is the model's */
    finish(NULL);
    raw.model.forward = &described;
    raw.model.self = &plain;
    raw_start(&raw, CONFIG(AMP_O2, .emulate = AMP_ON));
    relu_once(false);
    ck_assert_float_eq(model_forward(&plain), 1.0f);
    ck_ok(amp_scope_enter(raw.context, &scope));
    relu_once(true);
    ck_ok(amp_scope_leave(&scope));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    relu_once(true);
    ck_ok(amp_scale_loss_cancel(&scaled));
    relu_once(false);
    finish(NULL);
}

TEST(an_op_that_is_left_is_not_the_model) {
    describe(AMP_O5);
    ck_ok(amp_register(&raw.model, "relu", AMP_LEAVE));
    raw_start(&raw, CONFIG(AMP_O5, .emulate = AMP_ON));
    ck_assert(plain.ops.relu == math_relu && plain.ops.relu_backward == math_relu_backward);
    ck_assert(plain.ops.linear != math_linear);
    relu_once(false);
    ck_assert_str_eq(explanation(raw.context, "relu"), "relu: leave (registered)\n");
    ck_assert_str_eq(explanation(raw.context, "linear"),
                     "linear: lower (emulated: every op of the model is rounded), wrapped\n");
    finish(NULL);
}

/* At O3 there is no master to take an exact gradient: unscaling rounds it, and what the type cannot hold overflows. */
TEST_TIMES(without_masters_unscaled_gradients_are_rounded, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_record record = AMP_RECORD_INIT;
    float *gradient = plain_grad(&plain, _i ? W2 : W1);
    const amp_config config = CONFIG(AMP_O3, .loss_scale = 0.5f);
    (void)start(&config);
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 0.5f);
    gradient[3] = _i ? 40000.0f : 1.0f + 0x1p-10f + 0x1p-12f; /* 80000 is infinite in fp16 */
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, _i ? AMP_SKIP : AMP_STEP);
    if (!_i) ck_assert_float_eq(gradient[3], 2.0f * (1.0f + 0x1p-10f));
    ck_ok(amp_get_record(raw.context, 0, &record));
    if (_i) ck_assert_str_eq(record.first_nonfinite, "linear2.weight");
    finish(NULL);
}
