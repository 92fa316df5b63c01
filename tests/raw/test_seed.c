/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The constant that a host's backward starts from carries the loss scale: as a raw argument (seed), or as a field that
 * visit emits with AMP_ROLE_SEED. The host's own buffer keeps its value, and nothing else carries the scale.
 */
#include "raw.h"

#include <stdbool.h>

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

static float weight[N], gradient[N], one[N];
static struct node the_node = { one, gradient };
static struct raw raw;

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct node *p = *(struct node *const *)args[0];
    (void)self, (void)op;
    const amp_status status = emit(emit_self, &FIELD("g", AMP_ROLE_SEED, .address = &p->g, .size = N));
    return status == AMP_OK ? emit(emit_self, &FIELD("to", AMP_ROLE_UPDATE, .address = &p->to, .size = N)) : status;
}

static void set_up(bool node, uint32_t flags) {
    table.raw = raw_backward;
    table.node = node_backward;
    for (int i = 0; i < N; i++) one[i] = 1.0f;
    raw_init(&raw);
    raw.host.visit = visit;
    raw_struct(&raw, "node");
    raw_param(&raw, NULL, weight, gradient, N);
    raw_op(&raw, OP("loss", "loss(float(a!) to[n], float(seed) g[n], int n) -> int", &table.raw, .flags = flags,
                    .op_class = AMP_LEAVE));
    if (node) raw.ops[0].schema = "loss(struct node *p) -> int", raw.ops[0].slot = (amp_fn *)(void *)&table.node;
}

static void start(amp_level level, float scale) {
    raw_start(&raw, CONFIG(level, .loss_scale = scale, .num_losses = 2));
}

static void tear_down(void) {
    raw_stop(&raw);
    ck_assert(table.raw == raw_backward && table.node == node_backward);
}

TEST_FIXTURE(NULL, tear_down)

static void call(bool node) {
    if (node) table.node(&the_node);
    else table.raw(gradient, one, N);
}

static void ck_all(const float *elements, float value) {
    for (int i = 0; i < N; i++) ck_assert_float_eq(elements[i], value);
}

TEST_TIMES(the_seed_carries_the_scale_and_nothing_else_does, 4) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(_i & 1, _i & 1 ? AMP_OP_SEEDS : 0);
    start(_i & 2 ? AMP_O1 : AMP_O0, 8.0f); /* at every level */
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 1.0f);
    call(_i & 1);
    ck_all(gradient, 16.0f);
    ck_all(one, 1.0f);
    ck_assert_ptr_eq(the_node.g, one);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_all(gradient, 2.0f);
    call(_i & 1); /* outside of brackets: as it is */
    ck_all(gradient, 4.0f);
}

TEST(a_scale_of_one_wires_nothing) {
    set_up(true, AMP_OP_SEEDS);
    start(AMP_O0, 0.0f);
    ck_assert(table.node == node_backward);
}

TEST(a_seed_without_the_flag_is_an_error) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(true, 0);
    raw.ops[0].op_class = AMP_LOWER;
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_assert_float_gt(amp_seed_factor(&scaled), 1.0f);
    call(true);
    ck_refused(AMP_ERR_CONFLICT, "it is a seed, but the op lacks the flag AMP_OP_SEEDS", amp_scale_loss_end(&scaled));
}

/* Three by name. */
TEST_TIMES(seeds_that_saw_no_call_are_named, 4) {
    static const char *const schemas[] = { "b(struct node *p) -> int", "c(struct node *p) -> int",
                                           "d(struct node *p) -> int" };
    static const char *const names[] = { "b", "c", "d" };
    static const char *const words[] = {
        "bracket: loss saw no call", "bracket: loss, b saw no call", "bracket: loss, b, c saw no call",
        "bracket: loss, b, c, ... saw no call",
    };
    static int (*slots[3])(struct node *) = { node_backward, node_backward, node_backward };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(true, AMP_OP_SEEDS);
    for (int k = 0; k < _i; k++)
        raw_op(&raw, OP(names[k], schemas[k], &slots[k], .flags = AMP_OP_SEEDS, .op_class = AMP_LEAVE));
    start(AMP_O1, 8.0f);
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    gradient[0] = 1.0f;
    ck_refused(AMP_ERR_CONFLICT, words[_i], amp_scale_loss_end(&scaled));
}

TEST(two_brackets_at_once_are_refused) {
    amp_scaled_loss first = AMP_SCALED_LOSS_INIT, second = AMP_SCALED_LOSS_INIT;
    set_up(true, AMP_OP_SEEDS);
    start(AMP_O1, 8.0f);
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &first));
    ck_fails(AMP_ERR_WRONG_STATE, amp_scale_loss_begin_many(raw.context, NULL, 0, 1, 0, NULL, &second));
    ck_says("a seed in an op's arguments belongs to no particular bracket");
    ck_ok(amp_scale_loss_cancel(&first));
    ck_ok(amp_scale_loss_begin_many(raw.context, NULL, 0, 1, 0, NULL, &second));
    ck_ok(amp_scale_loss_end(&second));
}

TEST(a_direct_op_cannot_seed) {
    set_up(true, AMP_OP_SEEDS | AMP_OP_DIRECT);
    raw.ops[0].slot = NULL;
    ck_refused(AMP_ERR_CONFLICT, "seed_factor", raw_initialize(&raw, CONFIG(AMP_O1)));
}
