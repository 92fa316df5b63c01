/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static graph whose table has executors only, in FP32 only: emulated, and with 16-bit implementations for one op.
 * Its kernels do the problem's arithmetic in the problem's order, so every level is compared with the reference bit for
 * bit.
 */
#include <amp_diagnostics.h>
#include "mill_adapter.h"
#include "mill_net.h"
#include "kit.h"

#include <string.h>

enum { CLASSIC = 1, LOW = 2, CLEARS = 4 }; /* momentum in a block of its own; 16-bit implementations; backward zeroes */

struct run {
    struct mill_net net;
    struct mill_adapter adapter;
    amp_context *context;
    mill_op *table[MILL_N_OPS];
};

static void start(struct run *run, int flags, amp_config config) {
    config.emulate = AMP_ON;
    ck_assert(mill_net_init(&run->net, flags & CLASSIC));
    run->net.graph->clears = flags & CLEARS;
    mill_adapter_init(&run->adapter, run->net.graph, &run->net.sgd, flags & LOW);
    memcpy(run->table, mill_ops, sizeof mill_ops);
    amp_model *model = &run->adapter.model;
    amp_optimizer *optimizer = &run->adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &run->context));
    mill_traps(1);
}

/* One iteration; returns what the step returned, 0 for a skip. */
static int iterate(struct run *run, int step, float *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct mill_net *net = &run->net;
    mill_net_feed(net, step);
    ck_assert_int_eq(mill_forward(net->graph), MILL_OK);
    if (loss) *loss = net->loss->x[0];
    ck_ok(amp_scale_loss_begin(&run->adapter.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f); /* mill's own seed carries the scale */
    ck_assert_int_eq(mill_backward(net->graph, net->loss), MILL_OK);
    ck_ok(amp_scale_loss_end(&scaled));
    return net->sgd.step(&net->sgd);
}

static void finish(struct run *run, float *params) {
    mill_traps(0);
    ck_ok(amp_shutdown(run->context));
    ck_assert_mem_eq(run->table, mill_ops, sizeof mill_ops);
    ck_assert(run->net.sgd.step == mill_sgd_step);
    if (params) memcpy(params, run->net.graph->params, PARAM_FLOATS * sizeof(float));
    mill_net_free(&run->net);
}

static void train_at(amp_config config, int flags, struct curve *curve) {
    static struct run run;
    start(&run, flags, config);
    for (int step = 0; step < STEPS; step++) ck_assert_int_eq(iterate(&run, step, &curve->loss[step]), step + 1);
    ck_ok(amp_check(run.context));
    finish(&run, curve->params);
}

static void train(int level, int flags, struct curve *curve) { train_at(kit_config(AMP_O0 + level), flags, curve); }

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
    int level, flags;
} kinds[] = {
    { 0, CLASSIC }, { 1, CLASSIC }, { 2, CLASSIC }, { 3, CLASSIC }, { 4, CLASSIC }, { 5, CLASSIC },
    { 0, 0 }, { 1, 0 }, { 2, 0 }, { 4, 0 }, { 5, 0 },
    { 1, LOW }, { 4, LOW },
    { 1, CLASSIC | CLEARS }, { 4, CLASSIC | CLEARS },
};

TEST_TIMES(every_level_is_the_reference, sizeof kinds / sizeof kinds[0]) {
    struct curve reference, curve;
    const struct kind *kind = &kinds[_i];
    train(kind->level, kind->flags, &curve);
    kit_reference(AMP_O0 + kind->level, &reference);
    ck_same_curves(&curve, &reference);
    ck_assert_float_lt(curve.loss[STEPS - 1], 0.5f * curve.loss[0]);
}

/* What the step left in the gradients is neither added to what backward makes nor seen at another scale. */
TEST_TIMES(a_power_of_two_changes_no_bit_at_o0, 12) {
    static const float scales[] = { 2.0f, 0x1p10f, 0x1p16f, 0x1p40f };
    static const int flags[] = { 0, CLASSIC, CLASSIC | CLEARS };
    struct curve reference, curve;
    amp_config config = kit_config(AMP_O0);
    config.loss_scale = scales[_i % 4];
    train_at(config, flags[_i / 4], &curve);
    kit_reference(AMP_O0, &reference);
    ck_same_curves(&curve, &reference);
}

/* O3 has neither masters nor, at scale 1, a bracket that sets the buffers aside: a gradient that keeps the momentum is
 * a 16-bit sum as any other. */
TEST(momentum_in_16_bit_gradients_is_16_bit) {
    struct curve reference, curve;
    train(3, 0, &curve);
    reference_train_momentum_in_gradients(3, &reference);
    ck_same_curves(&curve, &reference);
}

/* Through the wired slots: asking a node for its size is no work for a 16-bit implementation, which knows nothing of it. */
TEST_TIMES(a_wired_graph_can_be_asked_for_sizes, 2) {
    static struct run run;
    start(&run, LOW, kit_config(_i ? AMP_O4 : AMP_O1));
    for (int i = 0; i < run.net.graph->n; i++) {
        mill_node *p = run.net.graph->nodes[i];
        if (p->op) ck_assert_int_eq(mill_ops[p->op](p, MILL_SIZE), MILL_OK);
    }
    ck_ok(amp_check(run.context));
    finish(&run, NULL);
}

TEST(ops_inside_ops_run_as_they_come) {
    static struct run run;
    amp_op_stats stats[MILL_N_OPS];
    size_t n;
    start(&run, 0, kit_config(AMP_O1));
    iterate(&run, 0, NULL);
    stats[0].struct_size = sizeof stats[0];
    ck_ok(amp_get_op_stats(run.context, stats, MILL_N_OPS, &n));
    ck_assert_str_eq(stats[0].name, "linear");
    ck_assert_uint_eq(stats[0].calls, 4); /* two layers, forward and backward */
    ck_assert_str_eq(stats[1].name, "matmul");
    ck_assert_uint_eq(stats[1].calls, 0);
    finish(&run, NULL);
}

/* ---- what every host can ---- */

static int trained_flags;

static amp_context *training_start(void *self, const amp_config *config) {
    struct run *run = self;
    start(run, trained_flags, *config);
    return run->context;
}

static int training_iterate(void *self, int step, float *loss) { return iterate(self, step, loss); }
static void training_finish(void *self, float *params) { finish(self, params); }

static void training_read(void *self, struct kit_state *state) {
    struct run *run = self;
    memcpy(state->params, run->net.graph->params, sizeof state->params);
    memcpy(state->momentum, mill_net_momentum(&run->net), sizeof state->momentum);
}

static void training_write(void *self, const struct kit_state *state) {
    struct run *run = self;
    memcpy(run->net.graph->params, state->params, sizeof state->params);
    memcpy(mill_net_momentum(&run->net), state->momentum, sizeof state->momentum);
}

static struct run trained;
static const struct kit_training training = { &trained, training_start, training_iterate, training_finish, training_read,
                                              training_write };

TEST_RANGE(an_overflow_is_skipped_and_leaves_nothing_behind, AMP_O1, AMP_O2 + 1) { kit_overflow(&training, _i); }

TEST_RANGE(a_resumed_training_is_the_uninterrupted_one, AMP_O1, AMP_O5 + 1) {
    trained_flags = _i == AMP_O2 ? CLASSIC : 0;
    kit_resume(&training, _i);
}

TEST_TIMES(what_is_right_is_sound, sizeof kinds / sizeof kinds[0]) {
    trained_flags = kinds[_i].flags;
    kit_sound(&training, AMP_O0 + kinds[_i].level);
}
