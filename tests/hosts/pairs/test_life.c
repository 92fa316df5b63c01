/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to duet besides training: shutdown, copied layers, overflows, checkpoints, jumps, traps, threads. */
#include <amp_diagnostics.h>
#include <amp_state.h>
#include <amp_train.h>
#include "../../support/levels.h"
#include "trainer.h"

#include <fenv.h> /* feenableexcept: the project defines _GNU_SOURCE */
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static const amp_level levels[] = { EACH_LEVEL };
enum { N_LEVELS = sizeof levels / sizeof levels[0], BAD_STEP = 20 };

static bool is_linear(const network *net, int i) { return net->layers[i].kind == DUET_LINEAR; }

/* ---- copied pointers ---- */

TEST_TIMES(layers_may_be_saved_and_put_back, N_LEVELS) {
    struct trainer trainer;
    struct curve expected, curve;
    layer saved[DUET_LAYERS];
    trainer_run(kit_config(levels[_i]), 0, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(levels[_i]), 0);
    for (int step = 0; step < STEPS; step++) {
        memcpy(saved, trainer.net->layers, sizeof saved);
        memset(trainer.net->layers, 0, sizeof saved);
        memcpy(trainer.net->layers, saved, sizeof saved);
        curve.loss[step] = trainer_step(&trainer, step);
    }
    ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve.params, trainer.net->params, sizeof curve.params);
    ck_same_curves(&curve, &expected);
    trainer_free(&trainer);
}

/* Seen from the outside the net is what it was before adapter_start, with the FP32 weights. */
TEST_TIMES(shutdown_leaves_duet_as_it_was, N_LEVELS) {
    struct trainer trainer;
    layer before[DUET_LAYERS], wrapped[DUET_LAYERS];
    float loss, copied_loss, params[PARAM_FLOATS], updates[PARAM_FLOATS];
    trainer_new(&trainer);
    network *net = trainer.net;
    memcpy(before, net->layers, sizeof before);
    trainer_start(&trainer, kit_config(levels[_i]), 0);
    for (int step = 0; step < 5; step++) (void)trainer_step(&trainer, step);
    memcpy(wrapped, net->layers, sizeof wrapped);
    ck_ok(adapter_stop(&trainer.adapter));
    ck_assert_mem_eq(net->layers, before, sizeof before);
    ck_assert(net->blas == &duet_default_blas);
    ck_assert(levels[_i] == AMP_O0 || wrapped[0].forward != before[0].forward);

    memcpy(params, net->params, sizeof params);
    memcpy(updates, net->updates, sizeof updates);
    loss = trainer_step(&trainer, 5); /* as if libamp had never been there */
    memcpy(net->params, params, sizeof params);
    memcpy(net->updates, updates, sizeof updates);
    memcpy(net->layers, wrapped, sizeof wrapped); /* the old copies of its pointers */
    float first[PARAM_FLOATS];
    copied_loss = trainer_step(&trainer, 5);
    memcpy(first, net->params, sizeof first);
    ck_assert(copied_loss == loss);
    memcpy(net->params, params, sizeof params);
    memcpy(net->updates, updates, sizeof updates);
    memcpy(net->layers, before, sizeof before);
    (void)trainer_step(&trainer, 5);
    ck_same(first, net->params, PARAM_FLOATS, "parameter");
    trainer_free(&trainer);
}

TEST(a_level_may_follow_another) {
    struct trainer trainer;
    struct curve expected;
    float updates[PARAM_FLOATS] = { 0 };
    reference_train(1, SCALE, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(AMP_O5), 0);
    for (int step = 0; step < 3; step++) (void)trainer_step(&trainer, step);
    ck_ok(adapter_stop(&trainer.adapter));
    problem_start(trainer.net->params);
    memcpy(trainer.net->updates, updates, sizeof updates);
    trainer_start(&trainer, kit_config(AMP_O1), 0);
    for (int step = 0; step < STEPS; step++) ck_assert(trainer_step(&trainer, step) == expected.loss[step]);
    ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

/* ---- overflow ---- */

/* A batch whose loss gradient is beyond fp16. */
static void bad_bracket(struct trainer *trainer, amp_action expected) {
    trainer_feed(trainer, 0);
    ck_ok(adapter_begin(&trainer->adapter));
    trainer->net->layers[trainer->net->n - 1].scale *= 1e30f;
    duet_forward(trainer->net);
    duet_backward(trainer->net);
    ck_ok(adapter_end(&trainer->adapter));
    ck_assert_int_eq(trainer->adapter.scaled.action, expected);
}

/* Momentum lives in the gradient buffers: one infinity that stayed there would be there for ever. */
TEST_TIMES(an_overflow_is_skipped_and_momentum_stays, 4) {
    const amp_level level = _i < 2 ? AMP_O1 : AMP_O2;
    const unsigned options = _i % 2 ? ADAPTER_INLINED : 0;
    struct trainer trainer;
    struct curve expected, curve;
    float params[PARAM_FLOATS], updates[PARAM_FLOATS];
    reference_train(level == AMP_O1 ? 1 : 2, SCALE, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(level), options);
    for (int step = 0; step < STEPS; step++) {
        if (step == BAD_STEP) {
            memcpy(params, trainer.net->params, sizeof params);
            memcpy(updates, trainer.net->updates, sizeof updates);
            bad_bracket(&trainer, AMP_SKIP);
            ck_assert_mem_eq(updates, trainer.net->updates, sizeof updates); /* at the end of the bracket already */
            trainer_update(&trainer, step);
            ck_assert_mem_eq(params, trainer.net->params, sizeof params);
            ck_assert_mem_eq(updates, trainer.net->updates, sizeof updates);
        }
        curve.loss[step] = trainer_step(&trainer, step);
    }
    ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve.params, trainer.net->params, sizeof curve.params);
    ck_same_curves(&curve, &expected); /* the scale is static: nothing remembers the bad batch */
    trainer_free(&trainer);
}

/* A clean micro-batch, one that overflows, the skip: neither is left in the momentum. */
TEST_TIMES(a_skip_forgets_the_clean_micro_batches_too, 2) {
    struct trainer trainer;
    float updates[PARAM_FLOATS];
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(_i ? AMP_O2 : AMP_O1), 0);
    for (int step = 0; step < 3; step++) (void)trainer_step(&trainer, step);
    memcpy(updates, trainer.net->updates, sizeof updates);
    trainer_feed(&trainer, 3);
    ck_ok(adapter_begin(&trainer.adapter));
    duet_forward(trainer.net);
    duet_backward(trainer.net);
    ck_ok(adapter_end(&trainer.adapter));
    ck_assert_int_ne(memcmp(updates, trainer.net->updates, sizeof updates), 0);
    bad_bracket(&trainer, AMP_SKIP);
    trainer_update(&trainer, 3);
    ck_assert_mem_eq(updates, trainer.net->updates, sizeof updates);
    ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

/* A frozen layer's update is never called: the step is over all the same, and a later skip goes back to its end. */
TEST_TIMES(a_frozen_layer_brings_back_no_old_momentum, 2) {
    struct trainer trainer;
    float updates[PARAM_FLOATS];
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(_i ? AMP_O2 : AMP_O1), 0);
    network *net = trainer.net;
    for (int step = 0; step < 4; step++) {
        const duet_args args = { step, RATE, MOMENTUM };
        memcpy(updates, net->updates, sizeof updates);
        if (step < 3) {
            trainer_feed(&trainer, step);
            ck_ok(adapter_begin(&trainer.adapter));
            duet_forward(net);
            duet_backward(net);
            ck_ok(adapter_end(&trainer.adapter));
        } else {
            bad_bracket(&trainer, AMP_SKIP);
        }
        for (int i = 1; i < net->n; i++)
            if (net->layers[i].update) net->layers[i].update(net->layers[i], args);
    }
    ck_assert_mem_eq(updates, net->updates, sizeof updates);
    ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

/* A scale that is a power of two changes no bit in FP32; two micro-batches are added to what is left of the older ones. */
TEST(micro_batches_add_to_the_momentum) {
    struct trainer plain, scaled;
    amp_config config = kit_config(AMP_O0);
    config.loss_scale = SCALE;
    trainer_new(&plain);
    trainer_new(&scaled);
    trainer_start(&scaled, config, 0);
    for (int step = 0; step < 20; step++) {
        for (int micro = 0; micro < 2; micro++) {
            trainer_feed(&plain, 2 * step + micro);
            duet_forward(plain.net);
            duet_backward(plain.net);
            trainer_feed(&scaled, 2 * step + micro);
            ck_ok(adapter_begin(&scaled.adapter));
            duet_forward(scaled.net);
            duet_backward(scaled.net);
            ck_ok(adapter_end(&scaled.adapter));
        }
        trainer_update(&plain, step);
        trainer_update(&scaled, step);
    }
    ck_same(plain.net->updates, scaled.net->updates, PARAM_FLOATS, "momentum");
    ck_same(plain.net->params, scaled.net->params, PARAM_FLOATS, "parameter");
    ck_ok(adapter_stop(&scaled.adapter));
    trainer_free(&plain);
    trainer_free(&scaled);
}

/* ---- checkpoints ---- */

static amp_config moving_scale(amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    if (level_is_dynamic(level)) config.init_scale = 256.0f, config.window = 7; /* saved in mid-window */
    return config;
}

/* duet's own checkpoint is the two blocks; it may be loaded before libamp starts or after its state is there. */
TEST_TIMES(resuming_is_bit_exact, 2 * N_LEVELS) {
    enum { N = 25 };
    const amp_config config = moving_scale(levels[_i / 2]);
    const bool late = _i % 2 == 1;
    struct trainer whole, resumed;
    float params[PARAM_FLOATS], updates[PARAM_FLOATS];
    char path[] = "/tmp/pairs-XXXXXX";
    const int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    trainer_new(&whole);
    trainer_start(&whole, config, 0);
    for (int step = 0; step < N; step++) (void)trainer_step(&whole, step);
    ck_ok(amp_state_save(whole.adapter.model.amp, path, AMP_STATE_SAFETENSORS));
    memcpy(params, whole.net->params, sizeof params);
    memcpy(updates, whole.net->updates, sizeof updates);

    trainer_new(&resumed);
    if (!late) memcpy(resumed.net->params, params, sizeof params);
    trainer_start(&resumed, config, 0);
    ck_ok(amp_state_load(resumed.adapter.model.amp, path));
    if (late) memcpy(resumed.net->params, params, sizeof params);
    if (late) ck_ok(amp_masters_reconcile(resumed.adapter.model.amp)); /* duet has no versions: say that weights changed */
    memcpy(resumed.net->updates, updates, sizeof updates);
    for (int step = N; step < STEPS; step++)
        ck_assert(trainer_step(&whole, step) == trainer_step(&resumed, step));
    ck_ok(adapter_stop(&whole.adapter));
    ck_ok(adapter_stop(&resumed.adapter));
    ck_assert_mem_eq(whole.net->params, resumed.net->params, sizeof params);
    ck_assert_mem_eq(whole.net->updates, resumed.net->updates, sizeof updates);
    trainer_free(&whole);
    trainer_free(&resumed);
    unlink(path);
}

/* ---- a user's interrupt ---- */

static jmp_buf interrupted;
static int layers_until_interrupt;

static void interrupt(const layer *l) {
    (void)l;
    if (layers_until_interrupt && !--layers_until_interrupt) longjmp(interrupted, 1);
}

TEST_TIMES(a_longjmp_out_of_a_layer_leaves_everything_usable, N_LEVELS) {
    struct trainer trainer;
    struct curve expected, curve;
    trainer_run(kit_config(levels[_i]), 0, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(levels[_i]), 0);
    duet_interrupt = interrupt;
    for (volatile int step = 0; step < STEPS; step++) {
        layers_until_interrupt = step % 7 < 5 ? step % 7 : 0; /* each of the five layers in its turn */
        const volatile bool awaited = layers_until_interrupt != 0;
        if (!setjmp(interrupted)) curve.loss[step] = trainer_step(&trainer, step);
        else ck_ok(adapter_cancel(&trainer.adapter));
        if (awaited) curve.loss[step] = trainer_step(&trainer, step);
    }
    duet_interrupt = NULL;
    ck_ok(adapter_stop(&trainer.adapter));
    memcpy(curve.params, trainer.net->params, sizeof curve.params);
    ck_same_curves(&curve, &expected);
    trainer_free(&trainer);
}

/* ---- floating-point traps ---- */

TEST_TIMES(traps_survive_an_overflow, 2) {
    const int wanted = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW;
    struct trainer trainer;
    struct curve expected;
    if (feenableexcept(wanted) < 0 || (fegetexcept() & wanted) != wanted) return; /* a machine without traps */
    trainer_new(&trainer);
    reference_train(_i ? 2 : 1, SCALE, &expected);
    trainer_start(&trainer, kit_config(_i ? AMP_O2 : AMP_O1), 0);
    for (int step = 0; step < STEPS; step++) {
        if (step == BAD_STEP) {
            bad_bracket(&trainer, AMP_SKIP); /* infinities, and what comes of them */
            trainer_update(&trainer, step);
        }
        ck_assert(trainer_step(&trainer, step) == expected.loss[step]);
        ck_assert_int_eq(fegetexcept() & wanted, wanted);
    }
    ck_ok(adapter_stop(&trainer.adapter));
    ck_assert_int_eq(fegetexcept() & wanted, wanted);
    (void)fedisableexcept(wanted);
    trainer_free(&trainer);
}

/* ---- ops in ops, on workers ---- */

static amp_op_stats stats_of(const struct trainer *trainer, const char *name, uint32_t index) {
    amp_op_stats stats[2 * DUET_LAYERS + 1];
    size_t n;
    for (size_t i = 0; i < sizeof stats / sizeof stats[0]; i++) stats[i] = (amp_op_stats)AMP_OP_STATS_INIT;
    ck_ok(amp_get_op_stats(trainer->adapter.model.amp, stats, sizeof stats / sizeof stats[0], &n));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(stats[i].name, name) && stats[i].index == index) return stats[i];
    ck_abort_msg("no op %s#%u", name, (unsigned)index);
    return stats[0];
}

/* The products that a wrapped layer's threads make are the layer's own business. */
TEST_RANGE(what_a_layers_threads_call_is_inside_the_layer, 1, 3) {
    struct trainer trainer;
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(levels[_i]), 0);
    (void)trainer_step(&trainer, 0);
    const amp_op_stats product = stats_of(&trainer, "gemm", 0), layer0 = stats_of(&trainer, "linear", 0);
    ck_assert_uint_eq(product.calls, 0);
    ck_assert_uint_eq(product.passed, 9); /* two threads in two layers, there and back, and one delta */
    ck_assert_uint_eq(layer0.calls, 1);
    ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

/*
 * 16-bit products instead of emulated layers. What comes out of them is FP32 and the bias is added in FP32, so that bits
 * differ from the reference's. Tolerance: the reference's roundings move the curve by d from FP32's; this training has fewer of
 * the same size, so it lies within about d of FP32, and within 2 d of the reference by the triangle inequality.
 */
TEST_TIMES(replaced_products_train_as_well, 2) {
    const amp_level level = _i ? AMP_O4 : AMP_O1;
    struct trainer trainer;
    struct curve fp32, expected, curve;
    reference_train(0, 1.0f, &fp32);
    reference_train(_i ? 4 : 1, _i ? 1.0f : SCALE, &expected);
    trainer_new(&trainer);
    trainer_start(&trainer, kit_config(level), ADAPTER_REPLACE);
    for (int step = 0; step < STEPS; step++) curve.loss[step] = trainer_step(&trainer, step);
    const amp_op_stats product = stats_of(&trainer, "gemm", 0);
    ck_assert_uint_eq(product.calls, 9 * STEPS);
    ck_assert_int_eq(product.last_target, _i ? AMP_BFLOAT16 : AMP_FLOAT16);
    ck_assert_uint_gt(product.cache_hits, STEPS); /* weights are packed once a step, without a scope */
    ck_ok(adapter_stop(&trainer.adapter));
    const double d = curve_distance(&expected, &fp32), seen = curve_distance(&curve, &expected);
    ck_assert_msg(seen > 0.0 && seen <= 2.0 * d, "%g from the reference, which is %g from FP32", seen, d);
    trainer_free(&trainer);
}

/* ---- slots ---- */

TEST(one_layer_of_a_name_can_be_left_alone) {
    struct trainer trainer;
    trainer_new(&trainer);
    ck_ok(amp_register(&trainer.adapter.model, "linear#1", AMP_LEAVE));
    ck_ok(adapter_start(&trainer.adapter, kit_config(AMP_O1)));
    for (int i = 0, seen = 0; i < trainer.net->n; i++)
        if (is_linear(trainer.net, i)) ck_assert((trainer.net->layers[i].forward != duet_linear_forward) == (seen++ == 0));
    ck_assert_int_eq(stats_of(&trainer, "linear", 0).wrapped, 1);
    ck_assert_int_eq(stats_of(&trainer, "linear", 1).wrapped, 0);
    ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

TEST(the_const_table_itself_is_refused) {
    struct trainer trainer;
    layer before[DUET_LAYERS];
    trainer_new(&trainer);
    memcpy(before, trainer.net->layers, sizeof before);
    trainer.adapter.ops[0].slot = (amp_fn *)(uintptr_t)&duet_default_blas.gemm;
    ck_assert_int_eq(adapter_start(&trainer.adapter, kit_config(AMP_O1)), AMP_ERR_READ_ONLY);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "gemm"));
    ck_assert_mem_eq(before, trainer.net->layers, sizeof before);
    trainer_free(&trainer);
}
