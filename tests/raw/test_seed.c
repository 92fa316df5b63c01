/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The constant that a host's backward starts from carries the loss scale: as a raw argument (seed), or as a field that
 * visit emits with AMP_ROLE_SEED. The host's own buffer keeps its value, and nothing else carries the scale.
 */
#include <amp_all.h>

#include "test.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { N = 3 };

struct node {
    float *g, *to;
};

static int raw_backward(float *to, const float *g, int n) {
    for (int i = 0; i < n; i++) to[i] += 2.0f * g[i];
    return 0;
}

static int node_backward(struct node *p) { return raw_backward(p->to, p->g, N); }

static struct {
    int (*raw)(float *, const float *, int);
    int (*node)(struct node *);
} table;

struct host {
    float weight[N], gradient[N], one[N];
    struct node node;
    amp_buffer buffer, grad;
    void *trained[1];
    amp_host hooks;
    amp_struct structs[1];
    amp_param param;
    amp_op op;
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct node *p = *(struct node *const *)args[0];
    amp_field field = AMP_FIELD_INIT;
    (void)self, (void)op;
    field.name = "g", field.role = AMP_ROLE_SEED, field.address = &p->g, field.size = N;
    const amp_status status = emit(emit_self, &field);
    field.name = "to", field.role = AMP_ROLE_UPDATE, field.address = &p->to;
    return status == AMP_OK ? emit(emit_self, &field) : status;
}

static void set_up(struct host *host, bool node, uint32_t flags) {
    memset(host, 0, sizeof *host);
    table.raw = raw_backward;
    table.node = node_backward;
    for (int i = 0; i < N; i++) host->one[i] = 1.0f;
    host->node = (struct node){ host->one, host->gradient };
    host->buffer = host->grad = (amp_buffer)AMP_BUFFER_INIT;
    host->buffer.data = host->weight;
    host->grad.data = host->gradient;
    host->buffer.size = host->grad.size = N;
    host->buffer.grad = &host->grad;
    host->trained[0] = &host->buffer;
    host->hooks = *amp_buffer_host();
    host->hooks.visit = visit;
    host->structs[0] = (amp_struct)AMP_STRUCT_INIT;
    host->structs[0].name = "node";
    host->param = (amp_param)AMP_PARAM_INIT;
    host->param.tensor = &host->buffer;
    host->op = (amp_op)AMP_OP_INIT;
    host->op.name = "loss";
    host->op.op_class = AMP_LEAVE;
    host->op.flags = flags;
    host->op.slot = node ? (amp_fn *)(void *)&table.node : (amp_fn *)(void *)&table.raw;
    host->op.schema = node ? "loss(struct node *p) -> int" : "loss(float(a!) to[n], float(seed) g[n], int n) -> int";
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &host->hooks;
    host->model.ops = &host->op;
    host->model.n_ops = 1;
    host->model.params = &host->param;
    host->model.n_params = 1;
    host->model.structs = host->structs;
    host->model.n_structs = 1;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.params = host->trained;
    host->optimizer.n_params = 1;
}

static void start(struct host *host, amp_level level, float scale) {
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    config.loss_scale = scale;
    config.num_losses = 2;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
}

static void call(struct host *host, bool node) {
    if (node) table.node(&host->node);
    else table.raw(host->gradient, host->one, N);
}

TEST_TIMES(the_seed_carries_the_scale_and_nothing_else_does, 4) {
    struct host host;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(&host, _i & 1, _i & 1 ? AMP_OP_SEEDS : 0);
    start(&host, _i & 2 ? AMP_O1 : AMP_O0, 8.0f); /* at every level */
    ck_ok(amp_scale_loss_begin(&host.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f);
    call(&host, _i & 1);
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.gradient[i], 16.0f);
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.one[i], 1.0f);
    ck_assert_ptr_eq(host.node.g, host.one);
    ck_ok(amp_scale_loss_end(&scaled));
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.gradient[i], 2.0f);
    call(&host, _i & 1); /* outside of brackets: as it is */
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.gradient[i], 4.0f);
    ck_ok(amp_shutdown(host.context));
    ck_assert(table.raw == raw_backward && table.node == node_backward);
}

TEST(a_scale_of_one_wires_nothing) {
    struct host host;
    set_up(&host, true, AMP_OP_SEEDS);
    start(&host, AMP_O0, 0.0f);
    ck_assert(table.node == node_backward);
    ck_ok(amp_shutdown(host.context));
}

TEST(a_seed_without_the_flag_is_an_error) {
    struct host host;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(&host, true, 0);
    host.op.op_class = AMP_LOWER;
    amp_model *model = &host.model;
    amp_optimizer *optimizer = &host.optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O1;
    config.emulate = AMP_ON;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host.context));
    ck_ok(amp_scale_loss_begin(&host.optimizer, NULL, &scaled));
    ck_assert_float_gt(amp_seed_factor(&scaled), 1.0f);
    call(&host, true);
    ck_assert_int_eq(amp_scale_loss_end(&scaled), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "AMP_OP_SEEDS"));
    ck_ok(amp_shutdown(host.context));
}

TEST(two_brackets_at_once_are_refused) {
    struct host host;
    amp_scaled_loss first = AMP_SCALED_LOSS_INIT, second = AMP_SCALED_LOSS_INIT;
    set_up(&host, true, AMP_OP_SEEDS);
    start(&host, AMP_O1, 8.0f);
    ck_ok(amp_scale_loss_begin(&host.optimizer, NULL, &first));
    ck_assert_int_eq(amp_scale_loss_begin_many(host.context, NULL, 0, 1, 0, NULL, &second), AMP_ERR_WRONG_STATE);
    ck_ok(amp_scale_loss_cancel(&first));
    ck_ok(amp_scale_loss_begin_many(host.context, NULL, 0, 1, 0, NULL, &second));
    ck_ok(amp_scale_loss_end(&second));
    ck_ok(amp_shutdown(host.context));
}

TEST(a_direct_op_cannot_seed) {
    struct host host;
    set_up(&host, true, AMP_OP_SEEDS | AMP_OP_DIRECT);
    host.op.slot = NULL;
    ck_assert_int_eq(amp_initialize(&host.model, &host.optimizer, AMP_O1), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "seed_factor"));
}
