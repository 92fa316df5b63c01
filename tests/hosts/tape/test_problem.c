/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tape host trains the hosts' common problem in real 16-bit storage, through the demo's own adapter, and agrees
 * with the training whose casts are written out by hand.
 *
 * Tolerances. minitape sums in an order of its own, so that FP32 itself agrees to rounding only: a step makes sums of
 * up to 32 terms in each of three products, an error of at most 96 units of 2^-24 relative to the loss, and 60 steps
 * carry at most 60 times that: 60 * 96 * 2^-24 = 3.4e-4. At the other levels a difference of one such unit can turn a
 * rounding the other way, which is as large as the level's own roundings: those move the curve by d from FP32's, so
 * that two trainings that round the same way at different places lie within d of FP32 each, and within 2 d of each
 * other.
 */
#include "adapter.h"
#include "problem_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    amp_level level;
    mt_dtype storage; /* of the weights outside batch norm, while training */
} levels[] = { { AMP_O0, MT_F32 }, { AMP_O1, MT_F32 }, { AMP_O2, MT_F16 },
               { AMP_O3, MT_F16 }, { AMP_O4, MT_F32 }, { AMP_O5, MT_BF16 } };
enum { N_LEVELS = sizeof levels / sizeof levels[0] };
static const double fp32_tolerance = STEPS * 96 * 0x1p-24;

/* ---- training ---- */

static struct {
    struct net net;
    mt_optimizer *sgd;
    struct adapter adapter;
    float x[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
} life;

static amp_context *start(const amp_config *config) {
    mt_tensor *params[NET_TENSORS];
    amp_context *context;
    problem_data(life.x, life.labels);
    problem_net_init(&life.net);
    const size_t n = net_params(&life.net, params);
    life.sgd = mt_sgd_new(params, n, RATE, MOMENTUM, 0.0f);
    ck_tensor(life.sgd);
    adapter_init(&life.adapter, &life.net, life.sgd, NULL, NULL);
    amp_model *model = &life.adapter.model;
    amp_optimizer *optimizer = &life.adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, config, &context));
    return context;
}

static int iterate(int step, float *value) {
    struct net *net = &life.net;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    mt_tensor *y, *x = problem_net_batch(life.x, life.labels, step, &y);
    mt_tensor *scores = mt_then(x, net->forward(net, x));
    mt_tensor *loss = mt_then(scores, net_loss(net, scores, y));
    mt_release(y);
    ck_tensor(loss);
    if (value) *value = (float)mt_get(loss, 0);
    life.sgd->zero_grad(life.sgd);
    ck_ok(amp_scale_loss_begin(&life.adapter.optimizer, loss, &scaled));
    ck_assert_msg(mt_backward(scaled.loss) == 0, "%s", mt_error());
    ck_ok(amp_scale_loss_end(&scaled));
    const int steps = life.sgd->step(life.sgd);
    ck_assert_int_eq(steps > 0, scaled.action == AMP_STEP);
    mt_release(loss);
    return steps;
}

/* The momentum is left behind: what is found does not depend on it. */
static void read_state(struct kit_state *state) {
    for (int p = 0; p < N_PARAMS; p++) mt_read(life.net.list[p].tensor, state->params + problem_params[p].offset);
}

static void write_state(const struct kit_state *state) {
    for (int p = 0; p < N_PARAMS; p++) mt_write(life.net.list[p].tensor, state->params + problem_params[p].offset);
}

static mt_dtype storage; /* of the weights outside batch norm, before the end */

static void finish(float *params) {
    storage = life.net.list[W2].tensor->dtype;
    ck_ok(amp_shutdown(life.adapter.model.amp));
    for (int p = 0; params && p < N_PARAMS; p++) mt_read(life.net.list[p].tensor, params + problem_params[p].offset);
    mt_optimizer_free(life.sgd);
    net_done(&life.net);
    for (int c = 0; c < MT_MEM_CATEGORIES; c++) ck_assert_uint_eq(mt_mem_now((mt_category)c), 0);
}

static const struct kit_host host = { start, iterate, finish, read_state, write_state };

/* The scale is one that skips nothing. */
TEST_TIMES(the_tape_agrees_with_the_reference, N_LEVELS) {
    struct curve fp32, expected, curve;
    kit_train(&host, kit_config(levels[_i].level), &curve);
    ck_assert_int_eq(storage, levels[_i].storage);
    kit_reference(AMP_O0, &fp32);
    kit_reference(levels[_i].level, &expected);
    const double seen = curve_distance(&curve, &expected);
    const double tolerance = fp32_tolerance + 2.0 * curve_distance(&expected, &fp32);
    ck_assert_msg(seen <= tolerance, "%g from the reference, where %g is granted", seen, tolerance);
    /* the level was at work: more than what one step's sums in another order make */
    if (levels[_i].level != AMP_O0) ck_assert_double_gt(curve_distance(&curve, &fp32), fp32_tolerance / STEPS);
    ck_learned(&curve);
}

TEST_TIMES(what_is_right_is_sound, N_LEVELS) { kit_sound(&host, levels[_i].level); }
