/* SPDX-License-Identifier: Apache-2.0 */
/* duet trains the hosts' common problem at every level, and agrees with the training whose casts are written by hand. */
#include "trainer.h"

static const amp_level levels[] = { AMP_O0, AMP_O1, AMP_O2, AMP_O3, AMP_O4, AMP_O5 };
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static void reference(int i, struct curve *curve) {
    if (levels[i] == AMP_O3) reference_train_momentum_in_gradients(3, curve);
    else kit_reference(levels[i], curve);
}

TEST(plain_duet_is_the_reference) {
    struct trainer trainer;
    struct curve expected, curve;
    trainer_new(&trainer);
    for (int step = 0; step < STEPS; step++) curve.loss[step] = trainer_step(&trainer, step);
    memcpy(curve.params, trainer.net->params, sizeof curve.params);
    reference_train(0, 1.0f, &expected);
    ck_same_curves(&curve, &expected);
    ck_assert(curve.loss[STEPS - 1] < 0.5f * curve.loss[0]); /* it learns */
    trainer_free(&trainer);
}

TEST_TIMES(emulated_levels_are_the_reference_bit_for_bit, N_LEVELS) {
    struct curve expected, curve, fp32;
    reference(_i, &expected);
    trainer_run(kit_config(levels[_i]), 0, &curve);
    ck_same_curves(&curve, &expected);
    reference_train(0, 1.0f, &fp32);
    ck_assert(levels[_i] == AMP_O0 || curve_distance(&curve, &fp32) > 0.0); /* and something was rounded */
}

TEST_TIMES(an_optimizer_inlined_in_a_loop_is_the_same, N_LEVELS) {
    struct curve expected, curve;
    reference(_i, &expected);
    trainer_run(kit_config(levels[_i]), ADAPTER_INLINED, &curve);
    ck_same_curves(&curve, &expected);
}

/* duet's own cost factor stays as it is: libamp shows the cost layer's backward a scaled loss gradient. */
TEST_TIMES(a_seed_in_backward_carries_the_scale_as_well, N_LEVELS) {
    struct trainer trainer;
    struct curve expected, curve;
    reference(_i, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(levels[_i]), ADAPTER_SEEDS);
    for (int step = 0; step < STEPS; step++) {
        curve.loss[step] = trainer_step(&trainer, step);
        ck_assert_float_eq(amp_seed_factor(&trainer.adapter.scaled), 1.0f);
    }
    ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve.params, trainer.net->params, sizeof curve.params);
    ck_same_curves(&curve, &expected);
    trainer_free(&trainer);
}

/* Two batches a step, one after the other in one bracket, as frameworks of this kind subdivide a batch: what backward adds to is
 * momentum, then momentum and the first half. scale 0: without libamp. */
static void train_in_halves(float scale, struct curve *curve) {
    struct trainer trainer;
    amp_config config = kit_config(AMP_O0);
    config.loss_scale = scale;
    trainer_new(&trainer);
    if (scale != 0.0f) trainer_start(&trainer, config, 0);
    for (int step = 0; step < STEPS; step++) {
        if (scale != 0.0f) ck_ok(adapter_begin(&trainer.adapter));
        for (int half = 0; half < 2; half++) {
            trainer_feed(&trainer, 2 * step + half);
            duet_forward(trainer.net);
            duet_backward(trainer.net);
        }
        if (scale != 0.0f) ck_ok(adapter_end(&trainer.adapter));
        trainer_update(&trainer, step);
        curve->loss[step] = duet_cost(trainer.net);
    }
    if (scale != 0.0f) ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve->params, trainer.net->params, sizeof curve->params);
    trainer_free(&trainer);
}

TEST_TIMES(a_power_of_two_changes_no_bit_at_o0, 5) {
    static const float scales[] = { 2.0f, 0x1p10f, 0x1p16f, 0x1p40f, AMP_DYNAMIC };
    struct curve plain, curve;
    train_in_halves(0.0f, &plain);
    train_in_halves(scales[_i], &curve);
    ck_same_curves(&curve, &plain);
}

/* ---- nothing to find ---- */

static struct trainer trained;
static unsigned trained_options;

static amp_context *training_start(void *self, const amp_config *config) {
    (void)self;
    trainer_new(&trained);
    trainer_start(&trained, *config, trained_options);
    return trained.adapter.model.amp;
}

static int training_iterate(void *self, int step, float *loss) {
    (void)self;
    const float cost = trainer_step(&trained, step);
    if (loss) *loss = cost;
    return trained.adapter.scaled.action != AMP_SKIP;
}

static void training_finish(void *self, float *params) {
    (void)self;
    ck_ok(adapter_stop(&trained.adapter));
    if (params) memcpy(params, trained.net->params, PARAM_FLOATS * sizeof(float));
    trainer_free(&trained);
}

static void training_read(void *self, struct kit_state *state) {
    (void)self;
    memcpy(state->params, trained.net->params, sizeof state->params);
    memcpy(state->momentum, trained.net->updates, sizeof state->momentum);
}

static void training_write(void *self, const struct kit_state *state) {
    (void)self;
    memcpy(trained.net->params, state->params, sizeof state->params);
    memcpy(trained.net->updates, state->momentum, sizeof state->momentum);
}

static const struct kit_training training = { NULL, training_start, training_iterate, training_finish, training_read,
                                              training_write };

TEST_TIMES(what_is_right_is_sound, 3 * N_LEVELS) {
    static const unsigned options[] = { 0, ADAPTER_INLINED, ADAPTER_SEEDS };
    trained_options = options[_i / N_LEVELS];
    kit_sound(&training, levels[_i % N_LEVELS]);
}

TEST_TIMES(replaced_products_are_sound, 2) {
    trained_options = ADAPTER_REPLACE;
    kit_sound(&training, _i ? AMP_O4 : AMP_O1);
}
