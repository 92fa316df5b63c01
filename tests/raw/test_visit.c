/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers by value, over a kilobyte each, with a function pointer per layer and buffers behind their members: libamp
 * reaches the buffers through the host's visit.
 */
#include <amp_all.h>

#include "test.h"
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { N = 6 };

struct network;
struct layer {
    void (*forward)(struct layer, struct network *);
    char options[1100];
    float *weights, *output, *workspace, *shared;
    int n;
};
struct network {
    float *input;
};

static jmp_buf *jump;
static float *seen_input;

static void layer_forward(struct layer l, struct network *net) {
    seen_input = net->input;
    if (jump) longjmp(*jump, 1);
    for (int i = 0; i < l.n; i++) {
        l.workspace[i] = net->input[i] * l.weights[i];
        l.output[i] = l.workspace[i] + (l.shared ? l.shared[i] : 0.0f);
    }
}

/* ---- the adapter ---- */

static bool overlap;

static amp_status emit_one(amp_emit emit, void *self, const char *name, amp_role role, float **address, int64_t size) {
    amp_field field = AMP_FIELD_INIT;
    field.role = role;
    field.address = address;
    field.size = size;
    field.name = name;
    return emit(self, &field);
}

/* What a faulty hook does at the end of a visit. */
static enum fault {
    SOUND, EMITS_NULL, FAILS, POSITIVE, SWALLOWS, NEGATIVE, HUGE, WRAPS, NOWHERE, TWO_ROLES, KEPT_TOO, TWICE
} fault;

static amp_status misbehave(struct layer *layer, amp_emit emit, void *emit_self) {
    amp_status status = AMP_OK;
    switch (fault) {
    case SOUND: break;
    case EMITS_NULL: status = emit(emit_self, NULL); break;
    case FAILS: status = AMP_ERR_HOST_FAILED; break;
    case POSITIVE: status = 5; break;
    case SWALLOWS: (void)emit_one(emit, emit_self, "extra", 77, &layer->weights, N); break;
    case NEGATIVE: status = emit_one(emit, emit_self, "extra", AMP_ROLE_READ, &layer->shared, -3); break;
    case HUGE: status = emit_one(emit, emit_self, "extra", AMP_ROLE_WRITE, &layer->shared, INT64_MAX / 4); break;
    case WRAPS: status = emit_one(emit, emit_self, "extra", AMP_ROLE_WRITE, &layer->shared, PTRDIFF_MAX / 4); break;
    case NOWHERE: status = emit_one(emit, emit_self, "extra", AMP_ROLE_READ, NULL, N); break;
    case TWO_ROLES: status = emit_one(emit, emit_self, "weights again", AMP_ROLE_WRITE, &layer->weights, N); break;
    case TWICE:
        status = emit_one(emit, emit_self, "output again", AMP_ROLE_WRITE, &layer->output, N);
        if (status == AMP_OK) status = emit_one(emit, emit_self, "input again", AMP_ROLE_READ, &layer->weights, N);
        break;
    case KEPT_TOO: status = emit_one(emit, emit_self, "weights again", AMP_ROLE_KEEP, &layer->weights, N); break;
    }
    return status;
}

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct layer *layer = args[0]; /* the copy that the op will get */
    struct network *net = *(struct network **)args[1];
    (void)self;
    ck_assert_str_eq(op, "scale_layer"); /* the descriptor's name, not the schema's */
    amp_status status = emit_one(emit, emit_self, "input", AMP_ROLE_READ, &net->input, N);
    if (status == AMP_OK) status = emit_one(emit, emit_self, "weights", AMP_ROLE_READ, &layer->weights, N);
    if (status == AMP_OK) status = emit_one(emit, emit_self, "output", AMP_ROLE_WRITE, &layer->output, N);
    if (status == AMP_OK) status = emit_one(emit, emit_self, "workspace", AMP_ROLE_SCRATCH, &layer->workspace, N);
    if (status == AMP_OK && layer->shared)
        status = emit_one(emit, emit_self, "shared", AMP_ROLE_READ, &layer->shared, overlap ? N - 1 : N);
    return status == AMP_OK ? misbehave(layer, emit, emit_self) : status;
}

struct host {
    struct layer layer;
    struct network net;
    float input[N], weights[N], output[N], workspace[N];
    amp_buffer buffer;
    amp_param param;
    amp_host hooks;
    amp_struct structs[2];
    amp_op op;
    amp_model model;
    amp_context *context;
};

static void set_up(struct host *host) {
    memset(host, 0, sizeof *host);
    overlap = false;
    fault = SOUND;
    jump = NULL;
    for (int i = 0; i < N; i++) {
        host->input[i] = sinf((float)i + 0.1f);
        host->weights[i] = cosf((float)i) / 3.0f;
        host->workspace[i] = 7.0f;
    }
    host->net.input = host->input;
    host->layer = (struct layer){ .forward = layer_forward, .weights = host->weights, .output = host->output,
                                  .workspace = host->workspace, .n = N };
    host->buffer = (amp_buffer)AMP_BUFFER_INIT;
    host->buffer.data = host->weights;
    host->buffer.size = N;
    host->param = (amp_param)AMP_PARAM_INIT;
    host->param.tensor = &host->buffer;
    host->hooks = *amp_buffer_host();
    host->hooks.visit = visit;
    host->structs[0] = host->structs[1] = (amp_struct)AMP_STRUCT_INIT;
    host->structs[0].name = "layer";
    host->structs[0].size = sizeof(struct layer);
    host->structs[0].alignment = _Alignof(struct layer);
    host->structs[1].name = "network";
    host->op = (amp_op)AMP_OP_INIT;
    host->op.name = "scale_layer";
    host->op.schema = "forward(struct layer l, struct network *net) -> void";
    host->op.op_class = AMP_LOWER;
    host->op.slot = (amp_fn *)(void *)&host->layer.forward;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &host->hooks;
    host->model.ops = &host->op;
    host->model.n_ops = 1;
    host->model.params = &host->param;
    host->model.n_params = 1;
    host->model.structs = host->structs;
    host->model.n_structs = 2;
}

static void start(struct host *host) {
    amp_model *model = &host->model;
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O1;
    config.emulate = AMP_ON;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host->context));
}

static float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }

static void ck_untouched(const struct host *host) {
    ck_assert_ptr_eq(host->net.input, host->input);
    ck_assert_ptr_eq(host->layer.weights, host->weights);
    ck_assert_ptr_eq(host->layer.output, host->output);
    ck_assert_ptr_eq(host->layer.workspace, host->workspace);
}

static void ck_untouched_by(const struct host *host, const float *shared) {
    ck_untouched(host);
    ck_assert_ptr_eq(host->layer.shared, shared);
}

TEST(what_structs_point_to_is_rounded) {
    struct host host;
    float expected[N];
    set_up(&host);
    for (int i = 0; i < N; i++) expected[i] = half(half(host.input[i]) * half(host.weights[i]));
    start(&host);
    host.layer.forward(host.layer, &host.net);
    ck_assert_mem_eq(host.output, expected, sizeof expected);
    ck_assert_ptr_ne(seen_input, host.input); /* the op saw the rounded copy */
    ck_untouched(&host);
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.workspace[i], 7.0f); /* scratch is private */
    ck_ok(amp_shutdown(host.context));
    ck_assert(host.layer.forward == layer_forward);
}

TEST(one_buffer_emitted_twice_gets_one_copy) {
    struct host host;
    set_up(&host);
    host.layer.shared = host.input;
    start(&host);
    host.layer.forward(host.layer, &host.net);
    for (int i = 0; i < N; i++) /* the product and the sum in FP32, rounded once */
        ck_assert_float_eq(host.output[i], half(half(host.input[i]) * half(host.weights[i]) + half(host.input[i])));
    ck_assert_ptr_eq(host.layer.shared, host.input);
    ck_ok(amp_shutdown(host.context));
}

TEST(a_partial_overlap_runs_untouched_and_is_kept) {
    struct host host;
    set_up(&host);
    host.layer.shared = host.input + 1;
    overlap = true;
    start(&host);
    host.layer.forward(host.layer, &host.net);
    ck_assert_ptr_eq(seen_input, host.input);
    ck_untouched(&host);
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "op scale_layer: visit: shared: it overlaps"));
    ck_ok(amp_shutdown(host.context));
}

/* Read here and written there, told as two roles: what the op wrote would be lost, so it is not done. */
TEST(two_roles_for_one_buffer_run_untouched_and_are_kept) {
    struct host host;
    float expected[N];
    set_up(&host);
    host.layer.output = host.input;
    for (int i = 0; i < N; i++) expected[i] = host.input[i] * host.weights[i];
    start(&host);
    host.layer.forward(host.layer, &host.net);
    ck_assert_mem_eq(host.input, expected, sizeof expected); /* as without libamp */
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "output: it is a buffer of the call already, in another role"));
    ck_ok(amp_shutdown(host.context));
}

/* The pointers are put back when libamp next looks: at the next wrapped call, scope or bracket of the thread. */
TEST(a_longjmp_out_of_the_op_puts_pointers_back) {
    struct host host;
    jmp_buf out;
    amp_scope scope;
    set_up(&host);
    start(&host);
    if (!setjmp(out)) {
        jump = &out;
        host.layer.forward(host.layer, &host.net);
        ck_abort_msg("not reached");
    }
    jump = NULL;
    ck_ok(amp_scope_enter(host.context, &scope));
    ck_untouched(&host);
    ck_ok(amp_scope_leave(&scope));
    host.layer.forward(host.layer, &host.net);
    ck_assert_float_eq(host.output[1], half(half(host.input[1]) * half(host.weights[1])));
    ck_ok(amp_shutdown(host.context));
}

/* A node whose two inputs are one emits one address twice. */
TEST(one_address_may_be_emitted_twice) {
    struct host host;
    set_up(&host);
    start(&host);
    fault = TWICE;
    host.layer.forward(host.layer, &host.net);
    for (int i = 0; i < N; i++) ck_assert_float_eq(host.output[i], half(half(host.input[i]) * half(host.weights[i])));
    ck_untouched(&host);
    ck_ok(amp_check(host.context));
    ck_ok(amp_shutdown(host.context));
}

/* Whatever the hook does wrong: the op runs as without libamp, once, and the message says which op and which field. */
TEST_TIMES(a_faulty_hook_is_told_and_harmless, 10) {
    static const struct {
        enum fault fault;
        amp_status status;
        const char *message;
    } rows[] = {
        { EMITS_NULL, AMP_ERR_INVALID_ARGUMENT, "emit was given NULL" },
        { FAILS, AMP_ERR_HOST_FAILED, "op scale_layer: the host's hook visit failed (status -6)" },
        { POSITIVE, AMP_ERR_HOST_FAILED, "op scale_layer: the host's hook visit failed (status 5)" },
        { SWALLOWS, AMP_ERR_INVALID_ARGUMENT, "op scale_layer: visit: extra: its role is 77" },
        { NEGATIVE, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is -3 elements" },
        { HUGE, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is 2305843009213693951 elements" },
        { WRAPS, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is " },
        { NOWHERE, AMP_ERR_INVALID_ARGUMENT, "visit: extra: it has neither an address nor a tensor" },
        { TWO_ROLES, AMP_ERR_CONFLICT, "visit: weights again: it is a buffer of the call already, in another role" },
        { KEPT_TOO, AMP_ERR_CONFLICT, "visit: weights again: it is a buffer of the call already, in another role" },
    };
    struct host host;
    float expected[N], shared[N] = { 0 };
    set_up(&host);
    host.layer.shared = shared;
    for (int i = 0; i < N; i++) expected[i] = host.input[i] * host.weights[i];
    start(&host);
    fault = rows[_i].fault;
    host.layer.forward(host.layer, &host.net);
    ck_assert_mem_eq(host.output, expected, sizeof expected);
    ck_untouched_by(&host, shared);
    ck_assert_int_eq(amp_check(host.context), rows[_i].status);
    ck_assert_msg(strstr(amp_last_error(), rows[_i].message) != NULL, "%s", amp_last_error());
    fault = SOUND;
    host.layer.forward(host.layer, &host.net); /* and libamp goes on */
    ck_assert_float_eq(host.output[1], half(half(host.input[1]) * half(host.weights[1])));
    ck_ok(amp_check(host.context));
    ck_ok(amp_shutdown(host.context));
}

static void fp32_forward(struct layer l, struct network *net) { l.output[0] = net->input[0] + 1000.0f; }

/* Where the hook is asked only whether there is work for the implementation. */
TEST_TIMES(a_faulty_hook_is_told_before_an_fp32_implementation, 4) {
    static const enum fault faults[] = { FAILS, SWALLOWS, NEGATIVE, NOWHERE };
    struct host host;
    set_up(&host);
    host.op.fp32 = (amp_fn)fp32_forward;
    float shared[N] = { 0 };
    host.layer.shared = shared;
    ck_ok(amp_initialize(&host.model, NULL, AMP_O0));
    fault = faults[_i];
    host.layer.forward(host.layer, &host.net);
    ck_assert_float_eq(host.output[1], host.input[1] * host.weights[1]); /* the original's */
    ck_assert_int_eq(amp_check(host.model.amp), fault == FAILS ? AMP_ERR_HOST_FAILED : AMP_ERR_INVALID_ARGUMENT);
    ck_assert_msg(strstr(amp_last_error(), "op scale_layer: ") != NULL, "%s", amp_last_error());
    fault = SOUND;
    host.layer.forward(host.layer, &host.net);
    ck_assert_float_eq(host.output[0], host.input[0] + 1000.0f);
    ck_ok(amp_check(host.model.amp));
    ck_ok(amp_shutdown(host.model.amp));
}
