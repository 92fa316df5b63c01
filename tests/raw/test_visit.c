/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers by value, over a kilobyte each, with a function pointer per layer and buffers behind their members: libamp
 * reaches the buffers through the host's visit.
 */
#include "raw.h"

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>

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
    return emit(self, &FIELD(name, role, .address = address, .size = size));
}

/* What a faulty hook does at the end of a visit. */
static enum fault {
    SOUND, EMITS_NULL, FAILS, POSITIVE, SWALLOWS, NEGATIVE, OVERLONG, WRAPS, NOWHERE, TWO_ROLES, KEPT_TOO, TWICE
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
    case OVERLONG: status = emit_one(emit, emit_self, "extra", AMP_ROLE_WRITE, &layer->shared, INT64_MAX / 4); break;
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

static struct layer layer;
static struct network net;
static float input[N + 1], weights[N], output[N], workspace[N]; /* one more: an op may be given input + 1 */
static struct raw raw;

static void set_up(void) {
    overlap = false;
    fault = SOUND;
    jump = NULL;
    for (int i = 0; i < N; i++) {
        input[i] = sinf((float)i + 0.1f);
        weights[i] = cosf((float)i) / 3.0f;
        workspace[i] = 7.0f;
    }
    net.input = input;
    layer = (struct layer){ .forward = layer_forward, .weights = weights, .output = output, .workspace = workspace,
                            .n = N };
    raw_init(&raw);
    raw.host.visit = visit;
    raw_param(&raw, NULL, weights, NULL, N);
    *raw_struct(&raw, "layer") = SIZED(amp_struct, .name = "layer", .size = sizeof(struct layer),
                                       .alignment = _Alignof(struct layer));
    raw_struct(&raw, "network");
    raw_op(&raw, OP("scale_layer", "forward(struct layer l, struct network *net) -> void", &layer.forward,
                    .op_class = AMP_LOWER));
}

static void tear_down(void) {
    raw_stop(&raw);
    ck_assert(layer.forward == layer_forward);
}

TEST_FIXTURE(set_up, tear_down)

static void start(void) { raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON)); }
static void run(void) { layer.forward(layer, &net); }

static float half(float x) { return amp_half_to_float(amp_float_to_half(x)); }

/* As it is emulated, and as it is without libamp. */
static void ck_rounded(void) {
    for (int i = 0; i < N; i++) ck_assert_float_eq(output[i], half(half(input[i]) * half(weights[i])));
}
static void ck_plain(const float *out, const float *in) {
    for (int i = 0; i < N; i++) ck_assert_float_eq(out[i], in[i] * weights[i]);
}

static void ck_untouched(const float *shared) {
    ck_assert_ptr_eq(net.input, input);
    ck_assert_ptr_eq(layer.weights, weights);
    ck_assert_ptr_eq(layer.output, output);
    ck_assert_ptr_eq(layer.workspace, workspace);
    ck_assert_ptr_eq(layer.shared, shared);
}

TEST(what_structs_point_to_is_rounded) {
    start();
    run();
    ck_rounded();
    ck_assert_ptr_ne(seen_input, input); /* the op saw the rounded copy */
    ck_untouched(NULL);
    for (int i = 0; i < N; i++) ck_assert_float_eq(workspace[i], 7.0f); /* scratch is private */
}

TEST(one_buffer_emitted_twice_gets_one_copy) {
    layer.shared = input;
    start();
    run();
    for (int i = 0; i < N; i++) /* the product and the sum in FP32, rounded once */
        ck_assert_float_eq(output[i], half(half(input[i]) * half(weights[i]) + half(input[i])));
    ck_untouched(input);
}

TEST(a_partial_overlap_runs_untouched_and_is_kept) {
    layer.shared = input + 1;
    overlap = true;
    start();
    run();
    ck_assert_ptr_eq(seen_input, input);
    ck_untouched(input + 1);
    ck_refused(AMP_ERR_CONFLICT, "op scale_layer: visit: shared: it overlaps", amp_check(raw.context));
}

/* Read here and written there, told as two roles: what the op wrote would be lost, so it is not done. */
TEST(two_roles_for_one_buffer_run_untouched_and_are_kept) {
    float before[N];
    memcpy(before, input, sizeof before);
    layer.output = input;
    start();
    run();
    ck_plain(input, before);
    ck_refused(AMP_ERR_CONFLICT, "output: it is a buffer of the call already, in another role", amp_check(raw.context));
}

/* The pointers are put back when libamp next looks: at the next wrapped call, scope or bracket of the thread. */
TEST(a_longjmp_out_of_the_op_puts_pointers_back) {
    jmp_buf out;
    amp_scope scope;
    start();
    if (!setjmp(out)) {
        jump = &out;
        run();
        ck_abort_msg("not reached");
    }
    jump = NULL;
    ck_ok(amp_scope_enter(raw.context, &scope));
    ck_untouched(NULL);
    ck_ok(amp_scope_leave(&scope));
    run();
    ck_rounded();
}

/* A node whose two inputs are one emits one address twice. */
TEST(one_address_may_be_emitted_twice) {
    start();
    fault = TWICE;
    run();
    ck_rounded();
    ck_untouched(NULL);
}

/* Whatever the hook does wrong: the op runs as without libamp, once, and the message says which op and which field. */
static const struct {
    enum fault fault;
    amp_status status;
    const char *message;
} faults[] = {
    { EMITS_NULL, AMP_ERR_INVALID_ARGUMENT, "emit was given NULL" },
    { FAILS, AMP_ERR_HOST_FAILED, "op scale_layer: the host's hook visit failed (status -6)" },
    { POSITIVE, AMP_ERR_HOST_FAILED, "op scale_layer: the host's hook visit failed (status 5)" },
    { SWALLOWS, AMP_ERR_INVALID_ARGUMENT, "op scale_layer: visit: extra: its role is 77" },
    { NEGATIVE, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is -3 elements" },
    { OVERLONG, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is 2305843009213693951 elements" },
    { WRAPS, AMP_ERR_INVALID_ARGUMENT, "visit: extra: its size is " },
    { NOWHERE, AMP_ERR_INVALID_ARGUMENT, "visit: extra: it has neither an address nor a tensor" },
    { TWO_ROLES, AMP_ERR_CONFLICT, "visit: weights again: it is a buffer of the call already, in another role" },
    { KEPT_TOO, AMP_ERR_CONFLICT, "visit: weights again: it is a buffer of the call already, in another role" },
};

TEST_TIMES(a_faulty_hook_is_told_and_harmless, sizeof faults / sizeof faults[0]) {
    float shared[N] = { 0 };
    layer.shared = shared;
    start();
    fault = faults[_i].fault;
    run();
    ck_plain(output, input);
    ck_untouched(shared);
    ck_fails(faults[_i].status, amp_check(raw.context));
    ck_says(faults[_i].message);
    fault = SOUND;
    run(); /* and libamp goes on */
    ck_rounded();
}

static void fp32_forward(struct layer l, struct network *n) { l.output[0] = n->input[0] + 1000.0f; }

/* Where the hook is asked only whether there is work for the implementation. */
TEST_TIMES(a_faulty_hook_is_told_before_an_fp32_implementation, 4) {
    static const enum fault told[] = { FAILS, SWALLOWS, NEGATIVE, NOWHERE };
    float shared[N] = { 0 };
    raw.ops[0].fp32 = (amp_fn)fp32_forward;
    layer.shared = shared;
    raw_start(&raw, CONFIG(AMP_O0));
    fault = told[_i];
    run();
    ck_plain(output, input); /* the original's */
    ck_fails(fault == FAILS ? AMP_ERR_HOST_FAILED : AMP_ERR_INVALID_ARGUMENT, amp_check(raw.context));
    ck_says("op scale_layer: ");
    fault = SOUND;
    run();
    ck_assert_float_eq(output[0], input[0] + 1000.0f);
}

/* ---- an op that keeps addresses for backward ---- */

struct cell {
    int n;
    const float *input; /* of the last forward */
    float *output;
};

static void remember(struct cell *cell, const float *in) {
    cell->input = in + 1;
    for (int i = 0; i < cell->n; i++) cell->output[i] = 2.0f * in[i];
}

static void (*cell_forward)(struct cell *cell, const float *in) = remember;
static bool emits_input;

static void low_remember(struct cell *cell, const uint16_t *in) {
    cell->input = (const float *)(const void *)(in + 1);
    for (int i = 0; i < cell->n; i++) ((uint16_t *)(void *)cell->output)[i] = in[i];
}

static amp_status visit_cell(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct cell *cell = *(struct cell **)args[0];
    (void)self, (void)op;
    amp_status status = emit_one(emit, emit_self, "output", AMP_ROLE_WRITE, &cell->output, N);
    if (status == AMP_OK && emits_input)
        status = emit_one(emit, emit_self, "input", AMP_ROLE_READ, (float **)(void *)&cell->input, N);
    return status;
}

/* Emulated and replaced, with and without a name for the field, which still points to the buffer of the last call. */
TEST_TIMES(an_address_that_an_op_keeps_is_the_hosts, 8) {
    static float last[N], made[N];
    struct cell cell = { .n = N, .input = last, .output = made };
    const bool replaced = _i & 1;
    emits_input = _i & 2;
    raw.model.n_ops = raw.model.n_structs = 0;
    raw.host.visit = visit_cell;
    *raw_struct(&raw, "cell") = SIZED(amp_struct, .name = "cell", .size = sizeof(struct cell),
                                      .alignment = _Alignof(struct cell),
                                      .members = "int n, pointer input, pointer output");
    raw_op(&raw, OP("cell", "forward(struct cell *cell, float in[cell->n]) -> void", &cell_forward,
                    .op_class = AMP_LOWER))->fp16 = replaced ? (amp_fn)low_remember : NULL;
    raw_start(&raw, CONFIG(AMP_O1, .emulate = replaced ? AMP_OFF : AMP_ON, .verify = _i & 4 ? AMP_ON : AMP_OFF));
    cell_forward(&cell, input);
    ck_ok(amp_check(raw.context));
    ck_assert_ptr_eq(cell.input, input + 1);
    ck_assert_ptr_eq(cell.output, made);
    ck_assert_float_eq(made[1], replaced ? half(input[1]) : half(2.0f * half(input[1])));
}
