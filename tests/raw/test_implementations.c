/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which function runs: the host's own, or an implementation that the op's descriptor gives. A static graph calls its nodes
 * through one pointer to infer sizes, and to compute; only the second is work for an implementation.
 */
#include <amp.h>
#include <amp_kernels.h>

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { N = 4 };
enum action { SIZE, EMPTY, KEPT, FORWARD, N_ACTIONS };
enum ran { NOBODY, ORIGINAL, FP16, BF16 };

struct node {
    float *x, *y, *labels, *nothing;
    int inferred;
};

static enum ran ran;

static void run_node(struct node *p, int action, enum ran who) {
    ran = who;
    if (action == FORWARD) return;
    p->inferred = N; /* in FP32's structures, where a 16-bit implementation knows nothing of it */
}

static void node(struct node *p, int action) { run_node(p, action, ORIGINAL); }
static void node_fp16(struct node *p, int action) { run_node(p, action, FP16); }
static void node_bf16(struct node *p, int action) { run_node(p, action, BF16); }
static void (*node_slot)(struct node *, int);

static amp_status emit_one(amp_emit emit, void *self, amp_role role, float **address) {
    amp_field field = AMP_FIELD_INIT;
    field.role = role, field.address = address, field.size = N;
    return emit(self, &field);
}

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct node *p = *(struct node *const *)args[0];
    const int action = *(const int *)args[1];
    amp_status status = AMP_OK;
    (void)self, (void)op;
    if (action == SIZE) return AMP_OK;
    if (action == EMPTY) return emit_one(emit, emit_self, AMP_ROLE_READ, &p->nothing); /* memory is not planned yet */
    status = emit_one(emit, emit_self, AMP_ROLE_KEEP, &p->labels);
    if (action == KEPT || status != AMP_OK) return status;
    status = emit_one(emit, emit_self, AMP_ROLE_READ, &p->x);
    return status == AMP_OK ? emit_one(emit, emit_self, AMP_ROLE_WRITE, &p->y) : status;
}

static const struct {
    amp_level level;
    enum ran low;
} levels[] = { { AMP_O1, FP16 }, { AMP_O4, BF16 }, { AMP_O2, FP16 }, { AMP_O5, BF16 } };

struct host {
    struct node node;
    float x[N], y[N], labels[N];
    amp_host hooks;
    amp_struct structs[1];
    amp_op op;
    amp_model model;
    amp_context *context;
};

static void set_up(struct host *host) {
    memset(host, 0, sizeof *host);
    node_slot = node;
    host->node = (struct node){ host->x, host->y, host->labels, NULL, 0 };
    host->hooks = *amp_buffer_host();
    host->hooks.visit = visit;
    host->structs[0] = (amp_struct)AMP_STRUCT_INIT;
    host->structs[0].name = "node";
    host->op = (amp_op)AMP_OP_INIT;
    host->op.name = "linear";
    host->op.schema = "op(struct node *p, int32 action) -> void";
    host->op.slot = (amp_fn *)(void *)&node_slot;
    host->op.fp16 = (amp_fn)node_fp16;
    host->op.bf16 = (amp_fn)node_bf16;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &host->hooks;
    host->model.ops = &host->op, host->model.n_ops = 1;
    host->model.structs = host->structs, host->model.n_structs = 1;
}

static void start(struct host *host, amp_level level, amp_switch emulate) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    config.emulate = emulate;
    amp_model *model = &host->model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host->context));
}

static void finish(struct host *host) {
    ck_ok(amp_check(host->context));
    ck_ok(amp_shutdown(host->context));
    ck_assert(node_slot == node);
}

static enum ran call(struct host *host, enum action action) {
    ran = NOBODY;
    host->node.inferred = 0;
    node_slot(&host->node, (int)action);
    ck_assert_int_eq(host->node.inferred, action == FORWARD ? 0 : N);
    return ran;
}

/* ---- calls in which visit emits nothing ---- */

START_TEST(a_call_without_work_takes_the_original) {
    struct host host;
    set_up(&host);
    start(&host, levels[_i].level, levels[_i].level == AMP_O2 || levels[_i].level == AMP_O5 ? AMP_ON : AMP_DEFAULT);
    for (int i = 0; i < N_ACTIONS; i++)
        ck_assert_msg(call(&host, (enum action)i) == (i == FORWARD ? levels[_i].low : ORIGINAL), "action %d", i);
    finish(&host);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("implementations");
    tcase_add_loop_test(tcase, a_call_without_work_takes_the_original, 0, 4);
    Suite *suite = suite_create("implementations");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
