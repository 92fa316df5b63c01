/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to duet besides training: shutdown, copied layers, overflows, checkpoints, jumps, traps, threads. */
#include "../../support/levels.h"
#include "../../support/traps.h"
#include "trainer.h"

#include <math.h>
#include <setjmp.h>
#include <unistd.h>

enum { BAD_STEP = 20 };

static bool is_linear(const network *net, int i) { return net->layers[i].kind == DUET_LINEAR; }

/* At O1 and O2 of two tests each. */
static amp_level o1_or_o2(int i) { return i ? AMP_O2 : AMP_O1; }

/* ---- copied pointers ---- */

/* What duet's user does before a step changes nothing of the training. */
static int saves_and_puts_back(int step, float *loss) {
    layer saved[DUET_LAYERS], *layers = trainer_of_kit.net->layers;
    memcpy(saved, layers, sizeof saved);
    memset(layers, 0, sizeof saved);
    memcpy(layers, saved, sizeof saved);
    return trainer_host.iterate(step, loss);
}

static jmp_buf interrupted;
static int layers_until_interrupt;

static void interrupt(const layer *l) {
    (void)l;
    if (layers_until_interrupt && !--layers_until_interrupt) longjmp(interrupted, 1);
}

/* Each of the five layers in its turn; and then the step itself. */
static int is_interrupted(int step, float *loss) {
    layers_until_interrupt = step % 7 < 5 ? step % 7 : 0;
    if (layers_until_interrupt) {
        if (!setjmp(interrupted)) (void)trainer_host.iterate(step, loss);
        else ck_ok(adapter_cancel(&trainer_of_kit.adapter));
    }
    return trainer_host.iterate(step, loss);
}

TEST_TIMES(layers_may_be_put_back_and_left_by_a_longjmp, 2 * N_EACH_LEVEL) {
    const amp_config config = kit_config(each_level[_i / 2]);
    struct kit_host host = trainer_host;
    struct curve expected, curve;
    kit_train(&trainer_host, config, &expected);
    host.iterate = _i % 2 ? is_interrupted : saves_and_puts_back;
    duet_interrupt = interrupt;
    kit_train(&host, config, &curve);
    ck_same_curves(&curve, &expected);
}

/* Seen from the outside the net is what it was before adapter_start, with the FP32 weights. */
TEST_TIMES(shutdown_leaves_duet_as_it_was, N_EACH_LEVEL) {
    struct trainer trainer;
    struct kit_state state;
    layer before[DUET_LAYERS], wrapped[DUET_LAYERS];
    float params[PARAM_FLOATS];
    trainer_new(&trainer);
    network *net = trainer.net;
    memcpy(before, net->layers, sizeof before);
    trainer_start(&trainer, kit_config(each_level[_i]), 0);
    for (int step = 0; step < 5; step++) (void)trainer_step(&trainer, step);
    memcpy(wrapped, net->layers, sizeof wrapped);
    ck_ok(adapter_stop(&trainer.adapter));
    ck_assert_mem_eq(net->layers, before, sizeof before);
    ck_assert(net->blas == &duet_default_blas);
    ck_assert(each_level[_i] == AMP_O0 || wrapped[0].forward != before[0].forward);

    trainer_read(&trainer, &state);
    const float loss = trainer_step(&trainer, 5); /* as if libamp had never been there */
    memcpy(params, net->params, sizeof params);
    trainer_write(&trainer, &state);
    memcpy(net->layers, wrapped, sizeof wrapped); /* the old copies of its pointers */
    ck_assert(trainer_step(&trainer, 5) == loss);
    ck_same(params, net->params, PARAM_FLOATS, "parameter");
    trainer_free(&trainer);
}

TEST(a_level_may_follow_another) {
    struct trainer trainer;
    struct curve expected;
    reference_train(1, SCALE, &expected);
    trainer_open(&trainer, kit_config(AMP_O5), 0);
    for (int step = 0; step < 3; step++) (void)trainer_step(&trainer, step);
    ck_ok(adapter_stop(&trainer.adapter));
    problem_start(trainer.net->params);
    memset(trainer.net->updates, 0, PARAM_FLOATS * sizeof(float));
    trainer_start(&trainer, kit_config(AMP_O1), 0);
    for (int step = 0; step < STEPS; step++) ck_assert(trainer_step(&trainer, step) == expected.loss[step]);
    trainer_close(&trainer, NULL);
}

/* ---- overflow ---- */

/* A batch whose loss gradient is beyond fp16. */
static void bad_bracket(struct trainer *trainer) {
    trainer_feed(trainer, 0);
    ck_ok(adapter_begin(&trainer->adapter));
    trainer->net->layers[trainer->net->n - 1].scale *= 1e30f;
    duet_forward(trainer->net);
    duet_backward(trainer->net);
    ck_ok(adapter_end(&trainer->adapter));
    ck_assert_int_eq(trainer->adapter.scaled.action, AMP_SKIP);
}

static void ck_momentum(const struct trainer *trainer, const struct kit_state *state) {
    ck_assert_mem_eq(state->momentum, trainer->net->updates, sizeof state->momentum);
}

static const int wanted = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW; /* traps */

/* Momentum lives in the gradient buffers: one infinity that stayed there would be there for ever. From 4 on with traps,
 * which infinities, and what comes of them, must not spring. */
TEST_TIMES(an_overflow_is_skipped_and_momentum_stays, 6) {
    const bool traps = _i >= 4;
    struct trainer trainer;
    struct curve expected, curve;
    struct kit_state before;
    reference_train(_i % 2 ? 2 : 1, SCALE, &expected);
    if (traps && (feenableexcept(wanted) < 0 || (fegetexcept() & wanted) != wanted)) return; /* a machine without */
    trainer_open(&trainer, kit_config(o1_or_o2(_i % 2)), _i / 2 == 1 ? ADAPTER_INLINED : 0);
    for (int step = 0; step < STEPS; step++) {
        if (step == BAD_STEP) {
            trainer_read(&trainer, &before);
            bad_bracket(&trainer);
            ck_momentum(&trainer, &before); /* at the end of the bracket already */
            trainer_update(&trainer, step);
            ck_assert_mem_eq(before.params, trainer.net->params, sizeof before.params);
            ck_momentum(&trainer, &before);
        }
        curve.loss[step] = trainer_step(&trainer, step);
        if (traps) ck_assert_int_eq(fegetexcept() & wanted, wanted);
    }
    trainer_close(&trainer, curve.params);
    if (traps) ck_assert_int_eq(fegetexcept() & wanted, wanted);
    (void)fedisableexcept(wanted);
    ck_same_curves(&curve, &expected); /* the scale is static: nothing remembers the bad batch */
}

/* A clean micro-batch, one that overflows, the skip: neither is left in the momentum. */
TEST_TIMES(a_skip_forgets_the_clean_micro_batches_too, 2) {
    struct trainer trainer;
    struct kit_state before;
    trainer_open(&trainer, kit_config(o1_or_o2(_i)), 0);
    for (int step = 0; step < 3; step++) (void)trainer_step(&trainer, step);
    trainer_read(&trainer, &before);
    (void)trainer_bracket(&trainer, 3);
    ck_assert_mem_ne(before.momentum, trainer.net->updates, sizeof before.momentum);
    bad_bracket(&trainer);
    trainer_update(&trainer, 3);
    ck_momentum(&trainer, &before);
    trainer_close(&trainer, NULL);
}

/* A frozen layer's update is never called: the step is over all the same, and a later skip goes back to its end. */
TEST_TIMES(a_frozen_layer_brings_back_no_old_momentum, 2) {
    struct trainer trainer;
    struct kit_state before;
    trainer_open(&trainer, kit_config(o1_or_o2(_i)), 0);
    network *net = trainer.net;
    for (int step = 0; step < 4; step++) {
        const duet_args args = { step, RATE, MOMENTUM };
        trainer_read(&trainer, &before);
        if (step < 3) (void)trainer_bracket(&trainer, step);
        else bad_bracket(&trainer);
        for (int i = 1; i < net->n; i++)
            if (net->layers[i].update) net->layers[i].update(net->layers[i], args);
    }
    ck_momentum(&trainer, &before);
    trainer_close(&trainer, NULL);
}

/* A scale that is a power of two changes no bit in FP32; two micro-batches are added to what the older left. */
TEST(micro_batches_add_to_the_momentum) {
    struct trainer plain, scaled;
    trainer_new(&plain);
    trainer_open(&scaled, CONFIG(AMP_O0, .loss_scale = SCALE), 0);
    for (int step = 0; step < 20; step++) {
        for (int micro = 0; micro < 2; micro++) {
            trainer_feed(&plain, 2 * step + micro);
            duet_forward(plain.net);
            duet_backward(plain.net);
            (void)trainer_bracket(&scaled, 2 * step + micro);
        }
        trainer_update(&plain, step);
        trainer_update(&scaled, step);
    }
    ck_same(plain.net->updates, scaled.net->updates, PARAM_FLOATS, "momentum");
    ck_same(plain.net->params, scaled.net->params, PARAM_FLOATS, "parameter");
    trainer_close(&scaled, NULL);
    trainer_free(&plain);
}

/* ---- checkpoints ---- */

/* duet's own checkpoint is the two blocks; it may be loaded before libamp starts or after its state is there. */
TEST_TIMES(resuming_is_bit_exact, 2 * N_EACH_LEVEL) {
    enum { N = 25 };
    const bool late = _i % 2 == 1;
    struct trainer whole, resumed;
    struct kit_state state;
    char path[] = "/tmp/pairs-XXXXXX";
    const int file = mkstemp(path);
    amp_config config = CONFIG(each_level[_i / 2]);
    if (level_is_dynamic(config.level)) config.init_scale = 256.0f, config.window = 7; /* saved in mid-window */
    ck_assert_int_ge(file, 0);
    close(file);
    trainer_open(&whole, config, 0);
    for (int step = 0; step < N; step++) (void)trainer_step(&whole, step);
    ck_ok(amp_state_save(whole.adapter.model.amp, path, AMP_STATE_SAFETENSORS));
    trainer_read(&whole, &state);

    trainer_new(&resumed);
    if (!late) trainer_write(&resumed, &state);
    trainer_start(&resumed, config, 0);
    ck_ok(amp_state_load(resumed.adapter.model.amp, path));
    if (late) trainer_write(&resumed, &state);
    if (late) ck_ok(amp_masters_reconcile(resumed.adapter.model.amp)); /* duet has no versions: say it */
    for (int step = N; step < STEPS; step++)
        ck_assert(trainer_step(&whole, step) == trainer_step(&resumed, step));
    ck_ok(adapter_stop(&whole.adapter));
    ck_ok(adapter_stop(&resumed.adapter));
    ck_assert_mem_eq(whole.net->params, resumed.net->params, sizeof state.params);
    ck_assert_mem_eq(whole.net->updates, resumed.net->updates, sizeof state.momentum);
    trainer_free(&whole);
    trainer_free(&resumed);
    unlink(path);
}

/* ---- ops in ops, on workers ---- */

static amp_op_stats stats_of(const struct trainer *trainer, const char *name, uint32_t index) {
    amp_op_stats stats[2 * DUET_LAYERS + 1] = { AMP_OP_STATS_INIT };
    size_t n;
    ck_ok(amp_get_op_stats(trainer->adapter.model.amp, stats, sizeof stats / sizeof stats[0], &n));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(stats[i].name, name) && stats[i].index == index) return stats[i];
    ck_abort_msg("no op %s#%u", name, (unsigned)index);
    return stats[0];
}

/* The products that a wrapped layer's threads make are the layer's own business. */
TEST_RANGE(what_a_layers_threads_call_is_inside_the_layer, 1, 3) {
    struct trainer trainer;
    trainer_open(&trainer, kit_config(each_level[_i]), 0);
    (void)trainer_step(&trainer, 0);
    const amp_op_stats product = stats_of(&trainer, "gemm", 0), layer0 = stats_of(&trainer, "linear", 0);
    ck_assert_uint_eq(product.calls, 0);
    ck_assert_uint_eq(product.passed, 9); /* two threads in two layers, there and back, and one delta */
    ck_assert_uint_eq(layer0.calls, 1);
    trainer_close(&trainer, NULL);
}

/*
 * 16-bit products instead of emulated layers. What comes out of them is FP32 and the bias is added in FP32, so that
 * bits differ from the reference's. Tolerance: the reference's roundings move the curve by d from FP32's; this training
 * has fewer of the same size, so it lies within about d of FP32, and within 2 d of the reference by the triangle
 * inequality.
 */
TEST_TIMES(replaced_products_train_as_well, 2) {
    const amp_level level = _i ? AMP_O4 : AMP_O1;
    struct trainer trainer;
    struct curve fp32, expected, curve;
    reference_train(0, 1.0f, &fp32);
    kit_reference(level, &expected);
    trainer_open(&trainer, kit_config(level), ADAPTER_REPLACE);
    for (int step = 0; step < STEPS; step++) curve.loss[step] = trainer_step(&trainer, step);
    const amp_op_stats product = stats_of(&trainer, "gemm", 0);
    ck_assert_uint_eq(product.calls, 9 * STEPS);
    ck_assert_int_eq(product.last_target, level_low(level));
    ck_assert_uint_gt(product.cache_hits, STEPS); /* weights are packed once a step, without a scope */
    trainer_close(&trainer, NULL);
    const double d = curve_distance(&expected, &fp32), seen = curve_distance(&curve, &expected);
    ck_assert_msg(seen > 0.0 && seen <= 2.0 * d, "%g from the reference, which is %g from FP32", seen, d);
}

/* ---- slots ---- */

TEST(one_layer_of_a_name_can_be_left_alone) {
    struct trainer trainer;
    trainer_new(&trainer);
    ck_ok(amp_register(&trainer.adapter.model, "linear#1", AMP_LEAVE));
    ck_ok(adapter_start(&trainer.adapter, kit_config(AMP_O1)));
    for (int i = 0, seen = 0; i < trainer.net->n; i++)
        if (is_linear(trainer.net, i))
            ck_assert((trainer.net->layers[i].forward != duet_linear_forward) == (seen++ == 0));
    ck_assert_int_eq(stats_of(&trainer, "linear", 0).wrapped, 1);
    ck_assert_int_eq(stats_of(&trainer, "linear", 1).wrapped, 0);
    trainer_close(&trainer, NULL);
}

TEST(the_const_table_itself_is_refused) {
    struct trainer trainer;
    layer before[DUET_LAYERS];
    trainer_new(&trainer);
    memcpy(before, trainer.net->layers, sizeof before);
    trainer.adapter.ops[0].slot = (amp_fn *)(uintptr_t)&duet_default_blas.gemm;
    ck_refused(AMP_ERR_READ_ONLY, "gemm", adapter_start(&trainer.adapter, kit_config(AMP_O1)));
    ck_assert_mem_eq(before, trainer.net->layers, sizeof before);
    trainer_free(&trainer);
}
