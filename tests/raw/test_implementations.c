/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which function runs: the host's own, or an implementation that the op's descriptor gives. A static graph calls its
 * nodes through one pointer to infer sizes, and to compute; only the second is work for an implementation.
 */
#include "levels.h"
#include "raw.h"

#include <stdbool.h>

enum { N = 4 };
enum action { SIZE, EMPTY, KEPT, FORWARD, N_ACTIONS };
enum ran { NOBODY, ORIGINAL, FP16, BF16, FP32 };

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
static void node_fp32(struct node *p, int action) { run_node(p, action, FP32); }
static void (*node_slot)(struct node *, int);

static amp_status emit_one(amp_emit emit, void *self, amp_role role, float **address) {
    return emit(self, &FIELD(NULL, role, .address = address, .size = N));
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

static float x[N], y[N], labels[N];
static struct node the_node;
static struct raw raw;

static void set_up(void) {
    node_slot = node;
    the_node = (struct node){ x, y, labels, NULL, 0 };
    raw_init(&raw);
    raw.host.visit = visit;
    raw_struct(&raw, "node");
    raw_op(&raw, OP("linear", "op(struct node *p, int32 action) -> void", &node_slot, .fp16 = (amp_fn)node_fp16,
                    .bf16 = (amp_fn)node_bf16));
}

static void tear_down(void) {
    raw_stop(&raw);
    ck_assert(node_slot == node);
}

TEST_FIXTURE(set_up, tear_down)

/* Only what computes is work for an implementation. */
static void ck_runs(enum ran who) {
    for (int i = 0; i < N_ACTIONS; i++) {
        ran = NOBODY;
        the_node.inferred = 0;
        node_slot(&the_node, i);
        ck_assert_int_eq(the_node.inferred, i == FORWARD ? 0 : N);
        ck_assert_msg(ran == (i == FORWARD ? who : ORIGINAL), "action %d", i);
    }
}

/* ---- calls in which visit emits nothing ---- */

TEST_TIMES(a_call_without_work_takes_the_original, 4) {
    raw_start(&raw, CONFIG(levels[_i].level, .emulate = level_has_masters(levels[_i].level) ? AMP_ON : AMP_DEFAULT));
    ck_runs(levels[_i].low);
}

/* ---- FP32 ---- */

static const struct {
    amp_level level;
    amp_switch emulate;
    amp_class op_class;
    bool has_low;
    enum ran who;
} fp32_rows[] = {
    { AMP_O0, AMP_DEFAULT, AMP_BY_LIST, true, FP32 },
    { AMP_O1, AMP_DEFAULT, AMP_BY_LIST, true, FP16 },
    { AMP_O1, AMP_DEFAULT, AMP_BY_LIST, false, FP32 }, /* nothing for the low type */
    { AMP_O4, AMP_DEFAULT, AMP_FP32, true, FP32 },
    { AMP_O4, AMP_DEFAULT, AMP_LEAVE, true, FP32 },
    { AMP_O4, AMP_ON, AMP_BY_LIST, false, FP32 }, /* in the original's place, on rounded values */
    { AMP_O5, AMP_ON, AMP_BY_LIST, false, FP32 },
    { AMP_O5, AMP_ON, AMP_BY_LIST, true, BF16 },
    { AMP_O5, AMP_ON, AMP_LEAVE, true, FP32 },
};

TEST_TIMES(buffers_are_fp32, sizeof fp32_rows / sizeof fp32_rows[0]) {
    raw.ops[0].op_class = fp32_rows[_i].op_class;
    raw.ops[0].fp32 = (amp_fn)node_fp32;
    if (!fp32_rows[_i].has_low) raw.ops[0].fp16 = raw.ops[0].bf16 = NULL;
    raw_start(&raw, CONFIG(fp32_rows[_i].level, .emulate = fp32_rows[_i].emulate));
    ck_runs(fp32_rows[_i].who);
}

/* The gate holds a call back, and one that works on nothing stays the original's. */
TEST(held_calls_take_it) {
    raw.ops[0].fp32 = (amp_fn)node_fp32;
    raw_start(&raw, CONFIG(AMP_O4));
    ck_ok(amp_gate_set(raw.context, "linear", AMP_GATE_NEVER));
    ck_runs(FP32);
}

/* ---- a gemm of buffers: O0 with fp32 is the program whose slot held it ---- */

static void slow_gemm(float *d, const float *a, const float *b, const float *one, int n) {
    ran = ORIGINAL;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            d[i * n + j] = sum * one[0];
        }
}

static void fast_gemm(float *d, const float *a, const float *b, const float *one, int n) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    ran = FP32;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32;
    g.m = g.n = g.k = n;
    g.a = a, g.b = b, g.d = d, g.alpha = one[0];
    ck_ok(amp_matmul(&g));
}

static void (*gemm_slot)(float *, const float *, const float *, const float *, int);

TEST_TIMES(a_seed_and_a_scale_of_fp32_calls, 2) {
    enum { EDGE = 40 };
    static float a[EDGE * EDGE], b[EDGE * EDGE], d[EDGE * EDGE], expected[EDGE * EDGE];
    const float one = 1.0f, eight = 8.0f;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    for (int i = 0; i < EDGE * EDGE; i++) a[i] = (float)(i % 13) / 7.0f, b[i] = (float)(i % 11) / 3.0f;
    fast_gemm(expected, a, b, &one, EDGE);
    gemm_slot = slow_gemm;
    raw.ops[0] = OP("gemm", "gemm(float(out a!) d[N,N], float a[N,N], float b[N,N], float(seed) one[1], int N) -> void",
                    &gemm_slot, .op_class = _i ? AMP_FP32 : AMP_BY_LIST, .fp32 = (amp_fn)fast_gemm);
    raw_start(&raw, CONFIG(_i ? AMP_O1 : AMP_O0, .loss_scale = 8.0f));
    gemm_slot(d, a, b, &one, EDGE);
    ck_assert_int_eq(ran, FP32);
    ck_assert_mem_eq(d, expected, sizeof d);
    ck_ok(amp_scale_loss_begin_many(raw.context, NULL, 0, 0, 0, NULL, &scaled));
    gemm_slot(d, a, b, &one, EDGE); /* the seed carries the scale, whoever runs */
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(ran, FP32);
    fast_gemm(expected, a, b, &eight, EDGE);
    ck_assert_mem_eq(d, expected, sizeof d);
    raw_stop(&raw);
    ck_assert(gemm_slot == slow_gemm);
}

/* Buffers of another floating type: no call of it is one in FP32. */
static void widen(float *to, const uint16_t *from, int n) { ran = ORIGINAL, to[0] = (float)from[0] * (float)n; }
static void widen_fp32(float *to, const uint16_t *from, int n) { ran = FP32, to[0] = (float)from[0] * (float)n; }
static void (*widen_slot)(float *, const uint16_t *, int);

TEST(a_mixture_is_the_originals) {
    float to[1];
    const uint16_t from[1] = { 1 };
    widen_slot = widen;
    raw.ops[0] = OP("widen", "widen(float(out a!) y[n], half x[n], int n) -> void", &widen_slot,
                    .fp32 = (amp_fn)widen_fp32);
    raw_start(&raw, CONFIG(AMP_O0));
    widen_slot(to, from, 1);
    ck_assert_int_eq(ran, ORIGINAL);
}

/* ---- who is warned ---- */

static int warnings;

static void count_warnings(void *self, const amp_event *event) {
    (void)self;
    warnings += event->kind == AMP_EVENT_WARNING && strstr(event->message, "so it runs in FP32");
}

/* An op that should run low and cannot is told of; one that can, or should not, is not. */
static const struct {
    amp_class op_class;
    bool fp16, bf16;
    amp_level level;
    int warnings;
} warned_rows[] = {
    { AMP_LOWER, false, false, AMP_O1, 1 }, { AMP_LOWER, true, false, AMP_O1, 0 },
    { AMP_LOWER, false, true, AMP_O1, 1 },  { AMP_LOWER, true, false, AMP_O4, 1 },
    { AMP_LOWER, false, true, AMP_O4, 0 },  { AMP_FP32, false, false, AMP_O1, 0 },
    { AMP_LEAVE, false, false, AMP_O1, 0 }, { AMP_FP32, true, true, AMP_O1, 0 },
    { AMP_LOWER, false, false, AMP_O0, 0 },
};

TEST_TIMES(what_cannot_run_low_is_told_of, sizeof warned_rows / sizeof warned_rows[0]) {
    raw.host.event = count_warnings;
    raw.ops[0].op_class = warned_rows[_i].op_class;
    if (!warned_rows[_i].fp16) raw.ops[0].fp16 = NULL;
    if (!warned_rows[_i].bf16) raw.ops[0].bf16 = NULL;
    raw_start(&raw, CONFIG(warned_rows[_i].level));
    ck_assert_int_eq(warnings, warned_rows[_i].warnings);
}
