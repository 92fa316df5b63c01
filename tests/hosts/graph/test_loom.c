/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A static graph whose table has constructors, with 16-bit storage: parameters are re-typed before the graph is built,
 * casts become nodes of it, and memory is planned afterwards. Every level is the reference bit for bit.
 */
#include "loom_adapter.h"
#include "kit.h"

#include <string.h>

static bool copied; /* the const table is described, and each graph's copy wrapped */
static struct {
    struct loom_net net;
    struct loom_adapter adapter;
    amp_context *context;
} run;

/* Re-types the parameters, then builds the graph, then plans its memory. */
static amp_context *start(const amp_config *config) {
    ck_assert(loom_net_init(&run.net));
    loom_adapter_init(&run.adapter, &run.net, copied ? (loom_ops *)(uintptr_t)&loom_default_ops : &run.net.graph->ops);
    for (int i = 0; copied && i < LOOM_N_OPS; i++) run.adapter.ops[i].flags = AMP_OP_COPY;
    amp_model *model = &run.adapter.model;
    amp_optimizer *optimizer = &run.adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, config, &run.context));
    if (copied) {
        ck_ok(amp_wrap_table(run.context, &loom_default_ops, sizeof loom_default_ops, &run.net.graph->ops));
    }
    ck_assert(loom_net_finish(&run.net));
    ck_ok(amp_check(run.context)); /* nothing asked for data that was not there yet */
    return run.context;
}

static int iterate(int step, float *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct loom_net *net = &run.net;
    loom_net_feed(net, step);
    loom_forward(net->graph);
    if (loss) *loss = *(float *)net->loss->data;
    ck_ok(amp_scale_loss_begin(&run.adapter.optimizer, NULL, &scaled));
    loom_backward(net->graph, net->loss, amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    const int stepped = net->sgd.step(&net->sgd);
    net->sgd.zero_grad(&net->sgd);
    return stepped;
}

static void finish(float *params) {
    ck_ok(amp_shutdown(run.context));
    if (!copied) ck_assert_mem_eq(&run.net.graph->ops, &loom_default_ops, sizeof loom_default_ops);
    ck_assert(run.net.sgd.step == loom_sgd_step && run.net.sgd.zero_grad == loom_sgd_zero_grad);
    for (int i = 0; i < N_PARAMS; i++) ck_assert_int_eq(run.net.params[i]->dtype, LOOM_F32);
    if (params) loom_net_params(&run.net, params);
    loom_net_free(&run.net);
}

static void read_state(struct kit_state *state) {
    loom_net_params(&run.net, state->params);
    memcpy(state->momentum, run.net.momentum, sizeof state->momentum);
}

static void write_state(const struct kit_state *state) {
    loom_net_set_params(&run.net, state->params);
    memcpy(run.net.momentum, state->momentum, sizeof state->momentum);
}

static const struct kit_host host = { start, iterate, finish, read_state, write_state };

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

TEST_TIMES(the_levels_types_are_in_the_graph, 6) {
    const amp_config config = kit_config(AMP_O0 + _i);
    (void)start(&config);
    ck_assert_uint_eq(run.adapter.casts, cast_nodes[_i]);
    const bool low_model = _i == 2 || _i == 3 || _i == 5;
    ck_assert_int_eq(run.net.params[W1]->dtype != LOOM_F32, low_model);
    ck_assert_int_eq(run.net.params[GAMMA]->dtype != LOOM_F32, _i == 3);
    finish(NULL);
}

/* From 6 on through copies: the table that graphs are copied from is const, but each graph's copy can get the
 * wrappers. */
TEST_TIMES(every_level_is_the_reference, 7) {
    copied = _i == 6;
    kit_agrees(&host, copied ? AMP_O1 : AMP_O0 + _i);
    ck_assert_uint_eq(run.adapter.casts, cast_nodes[copied ? 1 : _i]); /* running the graph builds nothing */
}

/* It is found out before anything is written. */
TEST(a_const_table_is_refused) {
    ck_assert(loom_net_init(&run.net));
    loom_adapter_init(&run.adapter, &run.net, (loom_ops *)(uintptr_t)&loom_default_ops);
    ck_fails(AMP_ERR_READ_ONLY, amp_initialize(&run.adapter.model, &run.adapter.optimizer, AMP_O1));
    ck_assert(run.net.sgd.step == loom_sgd_step);
    loom_net_free(&run.net);
}

/* A second graph over the same parameters gets cast nodes of its own, because casts end with the scope of a build. */
TEST(a_graph_gets_its_own_casts) {
    const amp_config config = kit_config(AMP_O1);
    (void)start(&config);
    const unsigned casts = run.adapter.casts;
    run.net.graph->planned = 0; /* as if it could be extended */
    ck_assert_ptr_nonnull(run.net.build(&run.net, run.net.x));
    ck_assert_uint_eq(run.adapter.casts, 2 * casts - 1); /* all but the loss's */
    finish(NULL);
}

/* ---- what every host can ---- */

TEST_RANGE(an_overflow_is_skipped_and_leaves_nothing_behind, AMP_O1, AMP_O2 + 1) { kit_overflow(&host, _i); }
TEST_RANGE(a_resumed_training_is_the_uninterrupted_one, AMP_O1, AMP_O5 + 1) { kit_resume(&host, _i); }
TEST_RANGE(what_is_right_is_sound, AMP_O0, AMP_O5 + 1) { kit_sound(&host, _i); }
