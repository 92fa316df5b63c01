/* SPDX-License-Identifier: Apache-2.0 */
/* duet trains the hosts' common problem at every level, and agrees with the casts written by hand. */
#include "../../support/levels.h"
#include "trainer.h"

static void reference(int i, struct curve *curve) {
    if (level_loses_fp32(each_level[i])) reference_train_momentum_in_gradients(3, curve);
    else kit_reference(each_level[i], curve);
}

TEST(plain_duet_is_the_reference) {
    struct trainer trainer;
    struct curve expected, curve;
    trainer_new(&trainer);
    for (int step = 0; step < STEPS; step++) curve.loss[step] = trainer_step(&trainer, step);
    trainer_close(&trainer, curve.params);
    reference_train(0, 1.0f, &expected);
    ck_same_curves(&curve, &expected);
    ck_learned(&curve);
}

static const unsigned options[] = { 0, ADAPTER_INLINED, ADAPTER_SEEDS };
enum { N_OPTIONS = sizeof options / sizeof options[0] };

static int iterate_with_a_seed(int step, float *loss) {
    const int stepped = trainer_host.iterate(step, loss);
    ck_assert_float_eq(amp_seed_factor(&trainer_of_kit.adapter.scaled), 1.0f);
    return stepped;
}

/* As it is; with an optimizer inlined in a loop; and where duet's own cost factor stays as it is: libamp shows the cost
 * layer's backward a scaled loss gradient. */
TEST_TIMES(emulated_levels_are_the_reference_bit_for_bit, N_OPTIONS * N_EACH_LEVEL) {
    const int level = _i % N_EACH_LEVEL;
    struct kit_host host = trainer_host;
    struct curve expected, curve, fp32;
    reference(level, &expected);
    trainer_options = options[_i / N_EACH_LEVEL];
    if (trainer_options == ADAPTER_SEEDS) host.iterate = iterate_with_a_seed;
    kit_train(&host, kit_config(each_level[level]), &curve);
    ck_same_curves(&curve, &expected);
    reference_train(0, 1.0f, &fp32);
    ck_assert(!level_is_low(each_level[level]) || curve_distance(&curve, &fp32) > 0.0); /* and something was rounded */
}

/* Two batches a step, one after the other in one bracket, as frameworks of this kind subdivide a batch: what backward
 * adds to is momentum, then momentum and the first half. scale 0: without libamp. */
static void train_in_halves(float scale, struct curve *curve) {
    struct trainer trainer;
    trainer_new(&trainer);
    if (scale != 0.0f) trainer_start(&trainer, CONFIG(AMP_O0, .loss_scale = scale), 0);
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
    trainer_close(&trainer, curve->params);
}

TEST_TIMES(a_power_of_two_changes_no_bit_at_o0, 5) {
    static const float scales[] = { 2.0f, 0x1p10f, 0x1p16f, 0x1p40f, AMP_DYNAMIC };
    struct curve plain, curve;
    train_in_halves(0.0f, &plain);
    train_in_halves(scales[_i], &curve);
    ck_same_curves(&curve, &plain);
}

/* ---- nothing to find ---- */

TEST_TIMES(what_is_right_is_sound, N_OPTIONS * N_EACH_LEVEL) {
    trainer_options = options[_i / N_EACH_LEVEL];
    kit_sound(&trainer_host, each_level[_i % N_EACH_LEVEL]);
}

TEST_TIMES(replaced_products_are_sound, 2) {
    trainer_options = ADAPTER_REPLACE;
    kit_sound(&trainer_host, _i ? AMP_O4 : AMP_O1);
}
