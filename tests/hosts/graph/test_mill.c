/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static graph whose table has executors only, in FP32 only: emulated, and with 16-bit implementations for one op.
 * Its kernels do the problem's arithmetic in the problem's order, so every level is compared with the reference bit for
 * bit.
 */
#include "mill_adapter.h"
#include "mill_net.h"
#include "kit.h"

#include <string.h>

enum { CLASSIC = 1, LOW = 2, CLEARS = 4 }; /* momentum in a block of its own; 16-bit implementations; backward zeroes */

static int flags;
static struct {
    struct mill_net net;
    struct mill_adapter adapter;
    amp_context *context;
    mill_op *table[MILL_N_OPS];
} run;

static amp_context *start(const amp_config *given) {
    amp_config config = *given;
    config.emulate = AMP_ON;
    ck_assert(mill_net_init(&run.net, flags & CLASSIC));
    run.net.graph->clears = flags & CLEARS;
    mill_adapter_init(&run.adapter, run.net.graph, &run.net.sgd, flags & LOW);
    memcpy(run.table, mill_ops, sizeof mill_ops);
    amp_model *model = &run.adapter.model;
    amp_optimizer *optimizer = &run.adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context));
    mill_traps(1);
    return run.context;
}

static int pass(int step, float *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct mill_net *net = &run.net;
    mill_net_feed(net, step);
    ck_assert_int_eq(mill_forward(net->graph), MILL_OK);
    if (loss) *loss = net->loss->x[0];
    ck_ok(amp_scale_loss_begin(&run.adapter.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f); /* mill's own seed carries the scale */
    ck_assert_int_eq(mill_backward(net->graph, net->loss), MILL_OK);
    ck_ok(amp_scale_loss_end(&scaled));
    return net->sgd.step(&net->sgd);
}

/* The step returns its number, 0 for a skip. */
static int iterate(int step, float *loss) {
    const int stepped = pass(step, loss);
    ck_assert(!stepped || stepped == run.net.sgd.steps);
    return stepped;
}

static void finish(float *params) {
    mill_traps(0);
    ck_ok(amp_shutdown(run.context));
    ck_assert_mem_eq(run.table, mill_ops, sizeof mill_ops);
    ck_assert(run.net.sgd.step == mill_sgd_step);
    if (params) memcpy(params, run.net.graph->params, PARAM_FLOATS * sizeof(float));
    mill_net_free(&run.net);
}

static void read_state(struct kit_state *state) {
    memcpy(state->params, run.net.graph->params, sizeof state->params);
    memcpy(state->momentum, mill_net_momentum(&run.net), sizeof state->momentum);
}

static void write_state(const struct kit_state *state) {
    memcpy(run.net.graph->params, state->params, sizeof state->params);
    memcpy(mill_net_momentum(&run.net), state->momentum, sizeof state->momentum);
}

static const struct kit_host host = { start, iterate, finish, read_state, write_state };

/* ---- the framework by itself ---- */

TEST_TIMES(mill_alone_is_the_reference, 2) {
    struct curve reference, curve;
    struct mill_net net;
    ck_assert(mill_net_init(&net, _i));
    for (int step = 0; step < STEPS; step++) {
        mill_net_feed(&net, step);
        ck_assert_int_eq(mill_forward(net.graph), MILL_OK);
        curve.loss[step] = net.loss->x[0];
        ck_assert_int_eq(mill_backward(net.graph, net.loss), MILL_OK);
        net.sgd.step(&net.sgd);
    }
    memcpy(curve.params, net.graph->params, sizeof curve.params);
    kit_reference(AMP_O0, &reference);
    ck_same_curves(&curve, &reference);
    ck_assert_uint_lt(net.graph->arena_floats, net.graph->unshared_floats); /* buffers are reused */
    mill_net_free(&net);
}

/* ---- levels ---- */

static const struct kind {
    amp_level level;
    int flags;
} kinds[] = {
    { AMP_O0, CLASSIC }, { AMP_O1, CLASSIC }, { AMP_O2, CLASSIC }, { AMP_O3, CLASSIC }, { AMP_O4, CLASSIC },
    { AMP_O5, CLASSIC }, { AMP_O0, 0 }, { AMP_O1, 0 }, { AMP_O2, 0 }, { AMP_O4, 0 }, { AMP_O5, 0 }, { AMP_O1, LOW },
    { AMP_O4, LOW }, { AMP_O1, CLASSIC | CLEARS }, { AMP_O4, CLASSIC | CLEARS },
};

TEST_TIMES(every_level_is_the_reference, sizeof kinds / sizeof kinds[0]) {
    flags = kinds[_i].flags;
    kit_agrees(&host, kinds[_i].level);
}

/* What the step left in the gradients is neither added to what backward makes nor seen at another scale. */
TEST_TIMES(a_power_of_two_changes_no_bit_at_o0, 12) {
    static const float scales[] = { 2.0f, 0x1p10f, 0x1p16f, 0x1p40f };
    static const int flags_of[] = { 0, CLASSIC, CLASSIC | CLEARS };
    struct curve reference, curve;
    flags = flags_of[_i / 4];
    kit_train(&host, CONFIG(AMP_O0, .loss_scale = scales[_i % 4]), &curve);
    kit_reference(AMP_O0, &reference);
    ck_same_curves(&curve, &reference);
}

/* O3 has neither masters nor, at scale 1, a bracket that sets the buffers aside: a gradient that keeps the momentum is
 * a 16-bit sum as any other. */
TEST(momentum_in_16_bit_gradients_is_16_bit) {
    struct curve reference, curve;
    kit_train(&host, kit_config(AMP_O3), &curve);
    reference_train_momentum_in_gradients(3, &reference);
    ck_same_curves(&curve, &reference);
}

/* Through the wired slots: asking a node for its size is no work for a 16-bit implementation. */
TEST_TIMES(a_wired_graph_can_be_asked_for_sizes, 2) {
    const amp_config config = kit_config(_i ? AMP_O4 : AMP_O1);
    flags = LOW;
    (void)start(&config);
    for (int i = 0; i < run.net.graph->n; i++) {
        mill_node *p = run.net.graph->nodes[i];
        if (p->op) ck_assert_int_eq(mill_ops[p->op](p, MILL_SIZE), MILL_OK);
    }
    ck_ok(amp_check(run.context));
    finish(NULL);
}

TEST(ops_inside_ops_run_as_they_come) {
    const amp_config config = kit_config(AMP_O1);
    amp_op_stats stats[MILL_N_OPS] = { AMP_OP_STATS_INIT };
    size_t n;
    (void)start(&config);
    iterate(0, NULL);
    ck_ok(amp_get_op_stats(run.context, stats, MILL_N_OPS, &n));
    ck_assert_str_eq(stats[0].name, "linear");
    ck_assert_uint_eq(stats[0].calls, 4); /* two layers, forward and backward */
    ck_assert_str_eq(stats[1].name, "matmul");
    ck_assert_uint_eq(stats[1].calls, 0);
    finish(NULL);
}

/* ---- what every host can ---- */

TEST_RANGE(an_overflow_is_skipped_and_leaves_nothing_behind, AMP_O1, AMP_O2 + 1) { kit_overflow(&host, _i); }

TEST_RANGE(a_resumed_training_is_the_uninterrupted_one, AMP_O1, AMP_O5 + 1) {
    flags = _i == AMP_O2 ? CLASSIC : 0;
    kit_resume(&host, _i);
}

TEST_TIMES(what_is_right_is_sound, sizeof kinds / sizeof kinds[0]) {
    flags = kinds[_i].flags;
    kit_sound(&host, kinds[_i].level);
}
