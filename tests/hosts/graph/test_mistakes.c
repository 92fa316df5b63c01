/* SPDX-License-Identifier: Apache-2.0 */
/* What docs/hosts-graph.md says libamp says: each mistake is made here, and its message looked for. */
#include <amp_diagnostics.h>
#include <amp_raw.h>
#include <amp_train.h>
#include "loom_adapter.h"
#include "mill_adapter.h"
#include "mill_net.h"
#include "kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mill_net mill;
static struct mill_adapter adapter;
static struct loom_net loom;
static struct loom_adapter weaver;
static amp_context *context;
static char said[16384];

static void say_error(amp_status status) {
    ck_assert_int_ne(status, AMP_OK);
    snprintf(said, sizeof said, "%s", amp_last_error());
}

static void say_warnings(void) { ck_ok(amp_explain(context, NULL, said, sizeof said, NULL)); }

static amp_status start_mill(amp_level level, amp_switch emulate) {
    amp_model *model = &adapter.model;
    amp_optimizer *optimizer = &adapter.optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    config.emulate = emulate;
    config.num_losses = 2;
    return amp_initialize_many(&model, 1, &optimizer, 1, &config, &context);
}

static void make_mill(void) {
    ck_assert(mill_net_init(&mill, 0));
    mill_adapter_init(&adapter, mill.graph, &mill.sgd, 0);
    mill_net_feed(&mill, 0);
}

static void end_mill(void) {
    if (context) ck_ok(amp_shutdown(context));
    context = NULL;
    mill_net_free(&mill);
}

static amp_op *op_named(const char *name) {
    for (size_t i = 0; i < adapter.n_ops; i++)
        if (!strcmp(adapter.ops[i].name, name)) return &adapter.ops[i];
    return NULL;
}

/* ---- mistakes with executors ---- */

static void wire_before_memory(void) {
    memset(&mill, 0, sizeof mill);
    mill.graph = mill_new();
    mill_param(mill.graph, "weight", 2, 3);
    mill_adapter_init(&adapter, mill.graph, &mill.sgd, 0);
    adapter.n_ops = 0;
    mill.sgd.step = mill_sgd_step;
    say_error(start_mill(AMP_O1, AMP_ON));
    end_mill();
}

static void forget_emulate(void) {
    make_mill();
    say_error(start_mill(AMP_O2, AMP_DEFAULT));
    end_mill();
}

static amp_status emit_two(mill_node *p, amp_role first, amp_role second, int64_t less, amp_emit emit,
                           void *emit_self) {
    amp_field field = AMP_FIELD_INIT;
    field.name = "x", field.role = first, field.address = &p->in[0]->x, field.size = mill_size(p);
    const amp_status status = emit(emit_self, &field);
    field.name = "y", field.role = second, field.address = &p->x, field.size -= less;
    return status == AMP_OK ? emit(emit_self, &field) : status;
}

static amp_status visit_in_two_roles(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    (void)self;
    if (strcmp(op, "relu") != 0) return AMP_OK;
    return emit_two(*(mill_node *const *)args[0], AMP_ROLE_READ, AMP_ROLE_WRITE, 0, emit, emit_self);
}

static amp_status visit_a_part(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    (void)self;
    if (strcmp(op, "relu") != 0) return AMP_OK;
    return emit_two(*(mill_node *const *)args[0], AMP_ROLE_UPDATE, AMP_ROLE_UPDATE, 1, emit, emit_self);
}

static void run_with(amp_status (*visit)(void *, const char *, void *const *, amp_emit, void *)) {
    make_mill();
    adapter.host.visit = visit;
    ck_ok(start_mill(AMP_O2, AMP_ON));
    ck_assert_int_eq(mill_forward(mill.graph), MILL_OK); /* the op ran untouched, and the error is kept */
    say_error(amp_check(context));
    end_mill();
}

static void tell_two_roles(void) { run_with(visit_in_two_roles); }
static void tell_a_part(void) { run_with(visit_a_part); }

static void forget_the_flag(void) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    make_mill();
    op_named("cross_entropy")->flags = 0;
    op_named("cross_entropy")->op_class = AMP_LOWER;
    ck_ok(start_mill(AMP_O1, AMP_ON));
    mill_forward(mill.graph);
    ck_ok(amp_scale_loss_begin(&adapter.optimizer, NULL, &scaled));
    mill_backward(mill.graph, mill.loss);
    say_error(amp_scale_loss_end(&scaled));
    end_mill();
}

static void open_two_brackets(void) {
    amp_scaled_loss first = AMP_SCALED_LOSS_INIT, second = AMP_SCALED_LOSS_INIT;
    make_mill();
    ck_ok(start_mill(AMP_O1, AMP_ON));
    ck_ok(amp_scale_loss_begin(&adapter.optimizer, NULL, &first));
    say_error(amp_scale_loss_begin_many(context, NULL, 0, 1, 0, NULL, &second));
    ck_ok(amp_scale_loss_cancel(&first));
    end_mill();
}

/* As a train() does that updates by itself, and never through the slot. */
static void update_by_itself(void) {
    make_mill();
    ck_ok(start_mill(AMP_O1, AMP_ON));
    for (int step = 0; step < 3; step++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        mill_forward(mill.graph);
        ck_ok(amp_scale_loss_begin(&adapter.optimizer, NULL, &scaled));
        mill_backward(mill.graph, mill.loss);
        ck_ok(amp_scale_loss_end(&scaled));
        mill_sgd_step(&mill.sgd);
    }
    say_warnings();
    end_mill();
}

static void use_own_names(void) {
    make_mill();
    op_named("linear")->name = "linaer";
    adapter.model.n_ops = 1;
    ck_ok(start_mill(AMP_O1, AMP_ON));
    say_warnings();
    end_mill();
}

/* ---- mistakes with constructors ---- */

static void build_before_wiring(void) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_assert(loom_net_init(&loom) && loom_net_finish(&loom));
    loom_adapter_init(&weaver, &loom, &loom.graph->ops);
    ck_ok(amp_initialize(&weaver.model, &weaver.optimizer, AMP_O1));
    context = weaver.model.amp;
    ck_ok(amp_scale_loss_begin(&weaver.optimizer, NULL, &scaled));
    loom_backward(loom.graph, loom.loss, amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    say_warnings();
    ck_ok(amp_shutdown(context));
    context = NULL;
    loom_net_free(&loom);
}

static void wire_the_const_table(void) {
    ck_assert(loom_net_init(&loom));
    loom_adapter_init(&weaver, &loom, (loom_ops *)(uintptr_t)&loom_default_ops);
    say_error(amp_initialize(&weaver.model, &weaver.optimizer, AMP_O1));
    loom_net_free(&loom);
}

/* docs/hosts-graph.md has a row for each. */
static const struct {
    void (*make)(void);
    const char *message;
} mistakes[] = {
    { wire_before_memory, "a view with elements has no data" },
    { forget_emulate, "needs the hook swap_data of amp_host" },
    { tell_two_roles, "y: it is a buffer of the call already, in another role" },
    { tell_a_part, "y: it overlaps another buffer of the call without being the same" },
    { forget_the_flag, "it is a seed, but the op lacks the flag AMP_OP_SEEDS" },
    { open_two_brackets, "a seed in an op's arguments cannot tell whose it is" },
    { update_by_itself, "its slot step saw no call, and yet its parameters changed after two brackets" },
    { use_own_names, "0 of 1 ops got a class from the apex lists, so nothing is cast" },
    { build_before_wiring, "the forward slot of model 0 saw no call in the first bracket" },
    { wire_the_const_table, "lies in read-only memory (a const table?)" },
};

TEST_TIMES(a_mistake_is_told, sizeof mistakes / sizeof mistakes[0]) {
    mistakes[_i].make();
    ck_assert_msg(strstr(said, mistakes[_i].message) != NULL, "\"%s\" is not in:\n%s", mistakes[_i].message, said);
}
