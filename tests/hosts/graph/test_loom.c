/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static graph whose table has constructors, with 16-bit storage: parameters are re-typed before the graph is built,
 * casts become nodes of it, and memory is planned afterwards. Every level is the reference bit for bit.
 */
#include <amp_call.h>
#include <amp_diagnostics.h>
#include "loom_adapter.h"
#include "kit.h"

#include <string.h>

struct run {
    struct loom_net net;
    struct loom_adapter adapter;
    amp_context *context;
};

/* Re-types the parameters, then builds the graph, then plans its memory. */
static void start(struct run *run, const amp_config *config) {
    ck_assert(loom_net_init(&run->net));
    loom_adapter_init(&run->adapter, &run->net, &run->net.graph->ops);
    amp_model *model = &run->adapter.model;
    amp_optimizer *optimizer = &run->adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, config, &run->context));
    ck_assert(loom_net_finish(&run->net));
    ck_ok(amp_check(run->context)); /* nothing asked for data that was not there yet */
}

static int iterate(struct run *run, int step, float *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct loom_net *net = &run->net;
    loom_net_feed(net, step);
    loom_forward(net->graph);
    if (loss) *loss = *(float *)net->loss->data;
    ck_ok(amp_scale_loss_begin(&run->adapter.optimizer, NULL, &scaled));
    loom_backward(net->graph, net->loss, amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    const int stepped = net->sgd.step(&net->sgd);
    net->sgd.zero_grad(&net->sgd);
    return stepped;
}

static void finish(struct run *run, float *params) {
    ck_ok(amp_shutdown(run->context));
    ck_assert_mem_eq(&run->net.graph->ops, &loom_default_ops, sizeof loom_default_ops);
    ck_assert(run->net.sgd.step == loom_sgd_step && run->net.sgd.zero_grad == loom_sgd_zero_grad);
    for (int i = 0; i < N_PARAMS; i++) ck_assert_int_eq(run->net.params[i]->dtype, LOOM_F32);
    if (params) loom_net_params(&run->net, params);
    loom_net_free(&run->net);
}

/* ---- levels ---- */

TEST(loom_alone_is_the_reference) {
    struct curve reference, curve;
    struct loom_net net;
    ck_assert(loom_net_init(&net) && loom_net_finish(&net));
    for (int step = 0; step < STEPS; step++) {
        loom_net_feed(&net, step);
        loom_forward(net.graph);
        curve.loss[step] = *(float *)net.loss->data;
        loom_backward(net.graph, net.loss, 1.0f);
        net.sgd.step(&net.sgd);
        net.sgd.zero_grad(&net.sgd);
    }
    loom_net_params(&net, curve.params);
    kit_reference(AMP_O0, &reference);
    ck_same_curves(&curve, &reference);
    ck_assert_uint_lt(net.graph->arena_bytes, net.graph->unshared_bytes); /* buffers are reused */
    loom_net_free(&net);
}

/* Cast nodes: of x, four parameters, batch norm's input, the second linear's input, logits; a 16-bit model casts its
 * input and its result alone. */
static const unsigned cast_nodes[] = { 0, 8, 2, 2, 8, 2 };

TEST_TIMES(every_level_is_the_reference, 6) {
    static struct run run;
    struct curve reference, curve;
    const amp_config config = kit_config(AMP_O0 + _i);
    start(&run, &config);
    ck_assert_uint_eq(run.adapter.casts, cast_nodes[_i]);
    const bool low_model = _i == 2 || _i == 3 || _i == 5;
    ck_assert_int_eq(run.net.params[W1]->dtype != LOOM_F32, low_model);
    ck_assert_int_eq(run.net.params[GAMMA]->dtype != LOOM_F32, _i == 3);
    for (int step = 0; step < STEPS; step++) ck_assert_int_eq(iterate(&run, step, &curve.loss[step]), 1);
    ck_ok(amp_check(run.context));
    ck_assert_uint_eq(run.adapter.casts, cast_nodes[_i]); /* running the graph builds nothing */
    finish(&run, curve.params);
    kit_reference(AMP_O0 + _i, &reference);
    ck_same_curves(&curve, &reference);
    ck_assert_float_lt(curve.loss[STEPS - 1], 0.5f * curve.loss[0]);
}

/* The table that graphs are copied from is const: it is found out before anything is written. */
TEST(a_const_table_is_refused) {
    static struct run run;
    ck_assert(loom_net_init(&run.net));
    loom_adapter_init(&run.adapter, &run.net, (loom_ops *)(uintptr_t)&loom_default_ops);
    ck_assert_int_eq(amp_initialize(&run.adapter.model, &run.adapter.optimizer, AMP_O1), AMP_ERR_READ_ONLY);
    ck_assert(run.net.sgd.step == loom_sgd_step);
    loom_net_free(&run.net);
}

/* But each graph has a copy, and that can get the wrappers. */
TEST(a_const_table_is_wired_in_a_copy) {
    static struct run run;
    struct curve reference, curve;
    amp_config config = kit_config(AMP_O1);
    ck_assert(loom_net_init(&run.net));
    loom_adapter_init(&run.adapter, &run.net, (loom_ops *)(uintptr_t)&loom_default_ops);
    for (int i = 0; i < LOOM_N_OPS; i++) run.adapter.ops[i].flags = AMP_OP_COPY;
    amp_model *model = &run.adapter.model;
    amp_optimizer *optimizer = &run.adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context));
    ck_ok(amp_wrap_table(run.context, &loom_default_ops, sizeof loom_default_ops, &run.net.graph->ops));
    ck_assert(loom_net_finish(&run.net));
    ck_assert_uint_eq(run.adapter.casts, cast_nodes[1]);
    for (int step = 0; step < STEPS; step++) iterate(&run, step, &curve.loss[step]);
    ck_ok(amp_shutdown(run.context));
    loom_net_params(&run.net, curve.params);
    loom_net_free(&run.net);
    kit_reference(AMP_O1, &reference);
    ck_same_curves(&curve, &reference);
}

/* A second graph over the same parameters gets cast nodes of its own, because casts end with the scope of a build. */
TEST(a_graph_gets_its_own_casts) {
    static struct run run;
    const amp_config config = kit_config(AMP_O1);
    start(&run, &config);
    const unsigned casts = run.adapter.casts;
    run.net.graph->planned = 0; /* as if it could be extended */
    ck_assert_ptr_nonnull(run.net.build(&run.net, run.net.x));
    ck_assert_uint_eq(run.adapter.casts, 2 * casts - 1); /* all but the loss's */
    finish(&run, NULL);
}

/* ---- what every host can ---- */

static amp_context *training_start(void *self, const amp_config *config) {
    struct run *run = self;
    start(run, config);
    return run->context;
}

static int training_iterate(void *self, int step, float *loss) { return iterate(self, step, loss); }
static void training_finish(void *self, float *params) { finish(self, params); }

static void training_read(void *self, struct kit_state *state) {
    struct run *run = self;
    loom_net_params(&run->net, state->params);
    memcpy(state->momentum, run->net.momentum, sizeof state->momentum);
}

static void training_write(void *self, const struct kit_state *state) {
    struct run *run = self;
    loom_net_set_params(&run->net, state->params);
    memcpy(run->net.momentum, state->momentum, sizeof state->momentum);
}

static struct run trained;
static const struct kit_training training = { &trained, training_start, training_iterate, training_finish, training_read,
                                              training_write };

TEST_RANGE(an_overflow_is_skipped_and_leaves_nothing_behind, AMP_O1, AMP_O2 + 1) { kit_overflow(&training, _i); }
TEST_RANGE(a_resumed_training_is_the_uninterrupted_one, AMP_O1, AMP_O5 + 1) { kit_resume(&training, _i); }
TEST_RANGE(what_is_right_is_sound, AMP_O0, AMP_O5 + 1) { kit_sound(&training, _i); }
