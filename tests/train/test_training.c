/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the demo shows, on its network: the levels reach the accuracy of plain FP32, O0 is plain FP32 bit for bit,
 * activations shrink, gradients that underflow are saved by the scaler. Argument: the digits.
 *
 * Margins: accuracies are means over three seeds of 600 images each; a point is 18 of 1,800 images. Trainings that
 * differ by rounding alone were seen to differ by up to 0.5 points, so 1.5 are granted.
 */
#include "run.h"

#include "../support/levels.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 3
#define MARGIN 1.5
#define STEPS(setup) ((DIGITS_TRAIN + (setup).batch - 1) / (setup).batch * (setup).epochs)

static struct digits *data;
static int is_short;

/* ---- trainings ---- */

/* One epoch; in the short form five steps, with large batches. */
static struct run_setup setup_of(amp_level level) {
    struct run_setup setup = { .label = "test", .config = AMP_CONFIG_INIT, .epochs = 1, .batch = is_short ? 240 : 32,
                               .lr = 0.05, .seed = 1, .loss_multiplier = 1.0 };
    setup.config.level = level;
    return setup;
}

/* Whatever a training does, afterwards the host's table is as before and its memory is free. */
static struct run_result train(const struct run_setup *setup) {
    const mt_ops before = *mt_ops_default();
    struct run_result result;
    const int status = run_training(setup, data, NULL, &result);
    ck_assert_msg(status == 0, "%s", result.error);
    ck_assert_mem_eq(&before, mt_ops_default(), sizeof before);
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
    ck_assert_int_eq(result.steps, STEPS(*setup));
    /* gradients that underflow are none, and that is found */
    const bool underflows = setup->loss_multiplier < 1.0 && setup->config.loss_scale == 1.0F;
    const bool stuck = result.skipped == result.steps;
    /* without masters some updates are lost (AMP-M89), unless the training is short; some gradients are not all 0 */
    const bool loses = level_loses_fp32(setup->config.level) && setup->config.master_weights != AMP_ON;
    const int found = atoi(result.health), least = setup->config.level && (underflows || stuck);
    ck_assert_msg(found >= least && found <= least + loses + underflows, "%s", result.health);
    if (!found) ck_assert_str_eq(result.health, setup->config.level ? "sound" : "");
    return result;
}

static void assert_same_training(const struct run_result *a, const struct run_result *b) {
    ck_assert_uint_eq(a->n_weights, b->n_weights);
    ck_assert_mem_eq(a->weights, b->weights, a->n_weights * sizeof *a->weights);
    ck_assert_mem_eq(a->losses, b->losses, (size_t)a->steps * sizeof *a->losses);
}

/* Mean accuracy after six epochs over the seeds; in *last (if wanted) the last training, which the caller ends. */
static double mean_accuracy(struct run_setup setup, struct run_result *last) {
    double sum = 0.0;
    setup.epochs = 6;
    for (int i = 0; i < SEEDS; i++, setup.seed++) {
        struct run_result result = train(&setup);
        sum += result.test_accuracy;
        if (last && i == SEEDS - 1) *last = result;
        else run_result_done(&result);
    }
    return sum / SEEDS;
}

/* ---- five steps of everything ---- */

TEST_TIMES(every_level_trains, N_EACH_LEVEL + 1) {
    struct run_setup setup = setup_of((amp_level)_i);
    struct run_result result;
    setup.batch = 240;
    result = train(&setup);
    ck_assert_int_eq(result.steps, 5);
    for (int i = 0; i < result.steps; i++) ck_assert(isfinite(result.losses[i]) && result.scales[i] > 0.0F);
    for (size_t i = 0; i < result.n_weights; i++) ck_assert(isfinite(result.weights[i]));
    ck_assert(result.losses[4] < result.losses[0]);
    ck_assert_int_eq(result.skipped, 0);
    run_result_done(&result);
}

/* 200 steps; `train` looks at what was found. */
TEST_TIMES(what_is_right_is_sound, 2 * N_EACH_LEVEL) {
    struct run_setup setup = setup_of((amp_level)(1 + _i / 2));
    struct run_result result;
    setup.batch = 6;
    setup.tested = 6;
    setup.host_kernels = _i % 2;
    result = train(&setup);
    ck_assert_int_eq(result.steps, 200);
    run_result_done(&result);
}

TEST(o0_is_plain_fp32_bit_for_bit) {
    for (int optimizer = RUN_SGD; optimizer <= RUN_ADAM; optimizer++) {
        struct run_setup plain = setup_of(0), o0 = setup_of(AMP_O0);
        struct run_result a, b;
        plain.optimizer = o0.optimizer = (enum run_optimizer)optimizer;
        plain.lr = o0.lr = optimizer == RUN_ADAM ? 0.005 : 0.05;
        a = train(&plain);
        b = train(&o0);
        assert_same_training(&a, &b);
        ck_assert_uint_eq(a.activation_peak_bytes, b.activation_peak_bytes);
        run_result_done(&a);
        run_result_done(&b);
    }
}

/* m, and the rate divided by it: powers of two change no bit. Adam's moments carry the square of it: 2^-16 keeps them
 * far from the smallest floats. */
TEST(loss_multiplier_leaves_fp32_unchanged) {
    for (int optimizer = RUN_SGD; optimizer <= RUN_ADAM; optimizer++) {
        struct run_setup setup = setup_of(0);
        struct run_result plain, multiplied;
        setup.optimizer = (enum run_optimizer)optimizer;
        if (optimizer == RUN_ADAM) setup.lr = 0.005;
        plain = train(&setup);
        setup.loss_multiplier = 0x1p-16;
        multiplied = train(&setup);
        assert_same_training(&plain, &multiplied);
        run_result_done(&plain);
        run_result_done(&multiplied);
    }
}

TEST(memory_is_what_the_levels_say) {
    const struct run_setup plain_setup = setup_of(AMP_O0), half_setup = setup_of(AMP_O2), low_setup = setup_of(AMP_O3);
    struct run_result plain = train(&plain_setup), half = train(&half_setup), low = train(&low_setup);
    ck_assert((double)half.activation_peak_bytes <= 0.6 * (double)plain.activation_peak_bytes);
    ck_assert_uint_eq(plain.master_bytes, 0);
    ck_assert_uint_eq(low.master_bytes, 0);
    ck_assert_uint_eq(low.param_bytes, plain.param_bytes / 2);
    /* What is half as large now has a master as large as it was. */
    ck_assert_uint_eq(half.master_bytes, 2 * (plain.param_bytes - half.param_bytes));
    run_result_done(&plain);
    run_result_done(&half);
    run_result_done(&low);
}

/* From 2^30 every one of the first five steps overflows: the scale halves each time and no parameter moves. */
/* By libamp's optimizer and by the host's, which are no different in that. */
TEST_TIMES(split_masters_train_to_the_bit, 2) {
    struct run_setup setup = setup_of(AMP_O5);
    setup.host_kernels = _i;
    struct run_result whole = train(&setup);
    setup.config.master_weights = AMP_SPLIT;
    struct run_result split = train(&setup);
    assert_same_training(&whole, &split);
    ck_assert_uint_lt(split.master_bytes, whole.master_bytes * 6 / 10); /* 2 1/8 of 4 bytes */
    run_result_done(&whole);
    run_result_done(&split);
}

/* Each number of bits takes less, and gives the same training again; the rounding leaves 8 bits close to none. */
TEST_TIMES(packed_activations_train, 2) {
    struct run_setup setup = setup_of(_i ? AMP_O5 : 0);
    struct run_result exact = train(&setup);
    size_t before = exact.activation_peak_bytes;
    for (setup.activations = 8; setup.activations >= 2; setup.activations /= 2) {
        struct run_result packed = train(&setup), again = train(&setup);
        assert_same_training(&packed, &again);
        ck_assert_uint_lt(packed.activation_peak_bytes, before);
        before = packed.activation_peak_bytes;
        ck_assert(memcmp(packed.weights, exact.weights, exact.n_weights * sizeof *exact.weights) != 0);
        const double off = fabs((double)(packed.losses[packed.steps - 1] - exact.losses[exact.steps - 1]));
        if (setup.activations == 8) ck_assert_msg(off < 0.1, "the last loss is %g off", off);
        run_result_done(&packed);
        run_result_done(&again);
    }
    run_result_done(&exact);
}

/* To the end, where logits are far apart: rounded ones gave NaN after 200 steps. */
TEST(packed_activations_train_to_the_end) {
    struct run_setup setup = setup_of(AMP_O5);
    setup.epochs = 15, setup.activations = 4;
    struct run_result packed = train(&setup);
    ck_assert_msg(packed.test_accuracy > 95.0, "accuracy %g", (double)packed.test_accuracy);
    run_result_done(&packed);
}

TEST(overflows_skip_and_halve) {
    struct run_setup setup = setup_of(AMP_O2);
    struct run_result result;
    setup.batch = 240;
    setup.config.init_scale = setup.config.max_scale = 0x1p30F;
    result = train(&setup);
    ck_assert_int_eq(result.skipped, 5);
    for (int i = 0; i < 5; i++) ck_assert(result.scales[i] == 0x1p30F / (float)(1 << i));
    ck_assert(result.loss_scale == 0x1p25);
    run_result_done(&result);
}

TEST(refusals_are_in_words) {
    struct run_setup setup = setup_of(AMP_O1);
    char error[1024] = "";
    setup.config.keep_batchnorm_fp32 = AMP_ON;
    ck_assert_int_eq(run_check(&setup, error, sizeof error), -1);
    ck_assert_msg(strstr(error, "keep_batchnorm_fp32") != NULL, "%s", error);
    for (int i = 0; i < MT_MEM_CATEGORIES; i++) ck_assert_uint_eq(mt_mem_now((mt_category)i), 0);
}

/* ---- trainings that assert accuracy ---- */

/* O0 is FP32 to the last bit, above. */
static void levels_reach_fp32(double plain) {
    for (amp_level level = 1; level <= N_EACH_LEVEL; level++) {
        if (!level_is_low(level) || !level_has_fp32(level)) continue;
        const double accuracy = mean_accuracy(setup_of(level), NULL);
        ck_assert_msg(fabs(accuracy - plain) <= MARGIN, "O%d: %.2f, FP32: %.2f", level - AMP_O0, accuracy, plain);
    }
}

static void underflow_without_scaling_and_with(double plain) {
    struct run_setup setup = setup_of(AMP_O2);
    double accuracy;
    setup.loss_multiplier = 0x1p-16;
    accuracy = mean_accuracy(setup, NULL);
    ck_assert_msg(fabs(accuracy - plain) <= MARGIN, "dynamic: %.2f, FP32: %.2f", accuracy, plain);
    setup.config.loss_scale = 1.0F;
    accuracy = mean_accuracy(setup, NULL);
    ck_assert_msg(accuracy < 50.0, "loss scale 1: %.2f", accuracy);
}

static void a_far_too_large_scale_finds_its_place(double plain) {
    struct run_setup setup = setup_of(AMP_O2);
    struct run_result last;
    double accuracy;
    int falling = 0;
    setup.config.init_scale = setup.config.max_scale = 0x1p30F;
    accuracy = mean_accuracy(setup, &last);
    while (falling < last.steps - 1 && last.scales[falling + 1] == last.scales[falling] / 2.0F) falling++;
    ck_assert_msg(falling >= 5, "%d skips at the start", falling);
    ck_assert(last.skipped >= falling && last.skipped < last.steps / 4);
    ck_assert(last.loss_scale == ldexp(0x1p30, -last.skipped)); /* too few steps for it to grow again */
    ck_assert_msg(fabs(accuracy - plain) <= MARGIN, "from 2^30: %.2f, FP32: %.2f", accuracy, plain);
    run_result_done(&last);
}

/* One test, for FP32's accuracy is what all are held against. */
TEST_TIMES(accuracies, !is_short) {
    const double plain = mean_accuracy(setup_of(0), NULL);
    ck_assert_msg(plain > 96.0, "FP32: %.2f", plain);
    levels_reach_fp32(plain);
    underflow_without_scaling_and_with(plain);
    a_far_too_large_scale_finds_its_place(plain);
}

int main(int argc, char **argv) {
    const char *text = getenv("AMP_TEST_SHORT");
    char error[256] = "argument: the digits";
    is_short = text && strcmp(text, "1") == 0;
    data = argc > 1 ? digits_load(argv[1], error, sizeof error) : NULL;
    if (!data) return fprintf(stderr, "%s\n", error), 99;
    suite_seconds = 280;
    const int result = suite_run();
    free(data);
    return result;
}
