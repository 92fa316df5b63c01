/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_config.verify holds 16-bit implementations against the op's own FP32 function: wrong ones are named, right ones
 * are not, nothing that they compute changes, and no op is said to be compared that was not.
 */
#include "found.h"
#include "raw.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>

enum { EDGE = 6, ROOM = EDGE * EDGE, MORE = 2 * ROOM };

enum fault { RIGHT, OTHER_TYPE, TRANSPOSED, LEADING, FORGETS_ALPHA, ASSIGNS, NOTHING_AT_ALL, ROUNDS, WRITES_FP32 };

static enum fault fault; /* of the implementation, in calls with the flag `ta` that is faulty_ta */
static int faulty_ta;
static bool adds, fickle, too_far; /* the FP32 function makes something else each time; it writes one element more */
static jmp_buf *way_out;           /* where it jumps to */
static amp_context *entered;       /* whose scope it enters */
static int fp32_calls, low_calls;

static unsigned long countdown; /* linked with --wrap: the allocation that fails, the implementation's apart */
WRAP(void *, calloc, size_t count, size_t size) {
    return countdown && !--countdown ? NULL : __real_calloc(count, size);
}
WRAP(void *, aligned_alloc, size_t alignment, size_t bytes) {
    return countdown && !--countdown ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* c (+)= alpha op(a) b, and a count in what is kept. */
typedef void product(int ta, float alpha, const float *a, const float *b, float *c, float *kept);
static struct {
    product *product;
    float (*pass)(float);
} table;

static float pass(float x) { return x; }

static uint16_t low_of(amp_dtype type, float x) {
    uint16_t low;
    const amp_span to = { &low, 1, type, 0 }, from = { &x, 1, AMP_FLOAT32, 0 };
    ck_ok(amp_cast_list(&to, &from, 1));
    return low;
}

static float at(amp_dtype type, uint16_t low) {
    float x;
    const amp_span to = { &x, 1, AMP_FLOAT32, 0 }, from = { &low, 1, type, 0 };
    ck_ok(amp_cast_list(&to, &from, 1));
    return x;
}

static void fp32_product(int ta, float alpha, const float *a, const float *b, float *c, float *kept) {
    fp32_calls++;
    if (way_out) longjmp(*way_out, 1);
    amp_scope scope;
    if (entered) ck_ok(amp_scope_enter(entered, &scope));
    *kept += 1.0f;
    for (int i = 0; i < EDGE; i++)
        for (int j = 0; j < EDGE; j++) {
            float sum = fickle ? (float)fp32_calls : 0.0f;
            for (int l = 0; l < EDGE; l++) sum += (ta ? a[l * EDGE + i] : a[i * EDGE + l]) * b[l * EDGE + j];
            c[i * EDGE + j] = (adds ? c[i * EDGE + j] : 0.0f) + table.pass(alpha * sum);
        }
    if (too_far) c[ROOM] = 1.0f;
    if (entered) ck_ok(amp_scope_leave(&scope));
}

/* Right: but each term is rounded to the type before it is added. */
static void rounded_product(amp_dtype type, float alpha, const uint16_t *a, const uint16_t *b, void *c) {
    for (int i = 0; i < ROOM; i++) {
        float sum = 0.0f;
        for (int l = 0; l < EDGE; l++)
            sum += at(type, low_of(type, at(type, a[i / EDGE * EDGE + l]) * at(type, b[l * EDGE + i % EDGE])));
        if (adds) ((float *)c)[i] += alpha * sum;
        else ((uint16_t *)c)[i] = low_of(type, alpha * sum);
    }
}

static void low_product(amp_dtype type, int ta, float alpha, const void *a, const void *b, void *c, float *kept) {
    const enum fault mine = ta == faulty_ta ? fault : RIGHT;
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    const unsigned long left = countdown;
    countdown = 0;
    low_calls++;
    *kept += 1.0f;
    if (mine == OTHER_TYPE) type = type == AMP_FLOAT16 ? AMP_BFLOAT16 : AMP_FLOAT16;
    g.m = g.n = g.k = EDGE, g.a = a, g.b = b, g.d = c;
    g.a_dtype = g.b_dtype = type, g.d_dtype = adds || mine == WRITES_FP32 ? AMP_FLOAT32 : type;
    g.transpose_a = ta != 0, g.transpose_b = mine == TRANSPOSED;
    g.alpha = mine == FORGETS_ALPHA ? 1.0f : mine == NOTHING_AT_ALL ? 0.0f : alpha;
    if (mine == LEADING) g.k = EDGE - 1; /* and so much lie rows of a apart */
    if (adds && mine != ASSIGNS) g.c = c, g.c_dtype = AMP_FLOAT32, g.beta = 1.0f;
    if (mine == ROUNDS) rounded_product(type, alpha, a, b, c);
    else ck_ok(amp_matmul(&g));
    countdown = left;
}

static void fp16_product(int ta, float alpha, const float *a, const float *b, float *c, float *kept) {
    low_product(AMP_FLOAT16, ta, alpha, a, b, c, kept);
}

static void bf16_product(int ta, float alpha, const float *a, const float *b, float *c, float *kept) {
    low_product(AMP_BFLOAT16, ta, alpha, a, b, c, kept);
}

static float a[ROOM], b[ROOM], c[MORE], kept[1];
static struct raw raw;

static const char *const schemas[] = {
    "product(int ta, float alpha, float a[6,6], float b[6,6], float(out a!) c[6,6], float(keep) kept[1]) -> void",
    "product(int ta, float alpha, float a[6,6], float b[6,6], float(a!) c[6,6], float(keep) kept[1]) -> void",
};

static void set_up(void) {
    fault = RIGHT, faulty_ta = fp32_calls = low_calls = 0;
    adds = fickle = too_far = false;
    way_out = NULL, entered = NULL;
    kept[0] = 0.0f;
    for (int i = 0; i < ROOM; i++) a[i] = (float)(i * 7 % 11) - 4.0f, b[i] = (float)(i * 5 % 13) / 8.0f;
    for (int i = 0; i < MORE; i++) c[i] = 8.0f;
    table.product = fp32_product, table.pass = pass;
    raw_init(&raw);
    raw_op(&raw, OP("matmul", NULL, &table.product, .fp16 = (amp_fn)fp16_product, .bf16 = (amp_fn)bf16_product));
    raw_op(&raw, OP("softmax", "pass(float x) -> float", &table.pass, .op_class = AMP_LOWER));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(set_up, tear_down)

static void start(amp_level level, bool adding, amp_switch verify) {
    adds = adding;
    raw.ops[0].schema = schemas[adding];
    raw_start(&raw, CONFIG(level, .verify = verify, .log = AMP_LOG_OFF));
}

static void call(int ta) { table.product(ta, 2.0f, a, b, c, kept); }

enum where { COMPARED, NOT_COMPARED };

/* Does the report have the op in this list? */
static bool lists(enum where where, const char *op) {
    static const char *const heads[] = { "verify, compared with FP32: ", "verify, not compared with FP32: " };
    char text[4096], name[64];
    ck_ok(amp_health(raw.context, text, sizeof text, NULL));
    const char *line = strstr(text, heads[where]);
    snprintf(name, sizeof name, " %s (", op);
    const char *at = line ? strstr(line, name) : NULL;
    return at && !memchr(line, '\n', (size_t)(at - line));
}

/* ---- right ones ---- */

static const amp_level levels[] = { AMP_O1, AMP_O4 };

TEST_TIMES(a_right_one_computes_what_it_computes_without_verify, 8) {
    float plain[MORE];
    amp_op_stats stats[2][2];
    int low[2];
    for (int verified = 0; verified < 2; verified++) {
        if (verified) set_up();
        start(levels[_i % 2], _i / 2 % 2, verified ? AMP_ON : AMP_OFF);
        entered = _i / 4 ? raw.context : NULL;
        for (int i = 0; i < 6; i++) call(i % 2);
        for (size_t i = 0; i < 2; i++) {
            stats[verified][i] = raw_stats(&raw, i);
            stats[verified][i].name = NULL;
        }
        low[verified] = low_calls;
        if (verified) break;
        ck_assert_int_eq(fp32_calls, 0);
        memcpy(plain, c, sizeof c);
        raw_stop(&raw);
    }
    ck_assert_mem_eq(plain, c, sizeof c);
    ck_assert_mem_eq(stats[0], stats[1], sizeof stats[0]); /* what the FP32 function calls is not counted */
    ck_assert_int_eq(low[0], low[1]);
    ck_assert(kept[0] == 6.0f);
    ck_assert(fp32_calls > 0 && lists(COMPARED, "matmul") && !lists(NOT_COMPARED, "matmul"));
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
}

/* The first calls of a kind, and no more. */
TEST(enough_is_enough) {
    start(AMP_O4, false, AMP_ON);
    for (int i = 0; i < 6; i++) call(0);
    const int calls = fp32_calls;
    ck_assert_int_gt(calls, 0);
    for (int i = 0; i < 6; i++) call(0);
    ck_assert_int_eq(fp32_calls, calls);
    call(1);
    ck_assert_int_gt(fp32_calls, calls);
}

/* The last terms cancel the others, so that the sums are no more than the terms' roundings: nothing against |A||B|. */
TEST_TIMES(sums_that_cancel_are_no_fault, 4) {
    fault = ROUNDS;
    for (int i = 0; i < ROOM; i++) a[i] = 1.0f + 0.171f * (float)(i % EDGE);
    for (int j = 0; j < EDGE; j++) {
        float sum = 0.0f;
        for (int l = 0; l + 1 < EDGE; l++) sum += a[l] * b[l * EDGE + j];
        b[ROOM - EDGE + j] = -sum / a[EDGE - 1];
    }
    start(levels[_i % 2], _i / 2, AMP_ON);
    for (int i = 0; i < 3; i++) call(0);
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
}

/* In place, through two arguments: y = 2 x, and x += y both ways. */
static void twice(const float *x, float *y, float *z) {
    for (int i = 0; i < EDGE; i++) y[i] = 2.0f * x[i], z[i] += y[i];
}
static void twice_bf16(const uint16_t *x, uint16_t *y, float *z) {
    for (int i = 0; i < EDGE; i++) {
        y[i] = low_of(AMP_BFLOAT16, 2.0f * at(AMP_BFLOAT16, x[i]));
        z[i] += at(AMP_BFLOAT16, y[i]);
    }
}
static void (*twice_slot)(const float *, float *, float *);

TEST_TIMES(arguments_may_be_one_buffer, 2) {
    twice_slot = twice;
    raw.ops[1] = OP("linear", "f(float x[6], float(out a!) y[6], float(b!) z[6]) -> void", &twice_slot,
                    .bf16 = (amp_fn)twice_bf16);
    start(AMP_O4, false, AMP_ON);
    float *x = _i ? b : c + EDGE;
    for (int i = 0; i < EDGE; i++) c[i] = 8.0f, x[i] = (float)i;
    twice_slot(x, _i ? x : a, _i ? c : x); /* it writes its input; it adds to it */
    for (int i = 0; i < EDGE; i++) {
        const float y = 2.0f * (float)i;
        ck_assert(_i ? x[i] == y && c[i] == 8.0f + y : a[i] == y && x[i] == (float)i + y);
    }
    ck_assert(lists(COMPARED, "linear"));
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
}

/* ---- wrong ones ---- */

static const struct {
    enum fault fault;
    bool adding;
} faults[] = {
    { OTHER_TYPE, false }, { TRANSPOSED, false }, { LEADING, false }, { FORGETS_ALPHA, false },
    { NOTHING_AT_ALL, false }, { OTHER_TYPE, true },  { TRANSPOSED, true },  { LEADING, true },
    { ASSIGNS, true },        { WRITES_FP32, false },
};
enum { N_FAULTS = sizeof faults / sizeof faults[0] };

TEST_TIMES(a_wrong_one_is_named, 2 * N_FAULTS) {
    fault = faults[_i / 2].fault;
    start(levels[_i % 2], faults[_i / 2].adding, AMP_ON);
    call(0);
    const bool fp32 = fault == WRITES_FP32; /* twice the copy's bytes, which its guards take */
    ck_assert_msg(found(raw.context, "AMP-M72") == !fp32 && found(raw.context, "AMP-M71") == fp32, "fault %d at O%d",
                  (int)fault, (int)(levels[_i % 2] - AMP_O0));
}

/* A flag is another kind of call, however late it comes. */
TEST(a_fault_in_later_calls_is_named) {
    fault = TRANSPOSED, faulty_ta = 1;
    start(AMP_O4, false, AMP_ON);
    for (int i = 0; i < 10; i++) call(0);
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
    call(1);
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 1);
}

/* ---- what proves nothing ---- */

enum useless { ALL_ZERO, ONE_ZERO, CONSTANT, TOO_LARGE, TOO_SMALL, N_USELESS };

static void make_useless(enum useless how) {
    for (int i = 0; i < ROOM; i++) {
        if (how == ALL_ZERO) a[i] = 0.0f;
        if (how == ALL_ZERO || how == ONE_ZERO) b[i] = 0.0f;
        if (how == CONSTANT) a[i] = b[i] = 0.5f;
        if (how == TOO_LARGE) a[i] = 1e30f * (float)(i + 1), b[i] = 1e20f;
        if (how == TOO_SMALL) a[i] = 1e-30f * (float)(i + 1), b[i] = 1e-20f * (float)(i + 1);
    }
}

TEST_TIMES(a_call_that_shows_nothing_is_no_comparison, 2 * N_USELESS) {
    fault = _i / 2 == ALL_ZERO || _i / 2 == ONE_ZERO ? TRANSPOSED : RIGHT;
    make_useless((enum useless)(_i / 2));
    start(levels[_i % 2], false, AMP_ON);
    for (int i = 0; i < 3; i++) call(0);
    ck_assert_msg(!lists(COMPARED, "matmul") && lists(NOT_COMPARED, "matmul"), "useless %d", _i / 2);
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
    for (int i = 0; i < ROOM; i++) a[i] = (float)(i * 7 % 11) - 4.0f, b[i] = (float)(i * 5 % 13) / 8.0f;
    call(0);
    ck_assert(lists(COMPARED, "matmul") && !lists(NOT_COMPARED, "matmul"));
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), fault != RIGHT);
}

/* ---- what cannot be compared ---- */

TEST(one_with_state_runs_once_and_is_listed) {
    raw.ops[0].flags = AMP_OP_STATEFUL;
    fault = TRANSPOSED;
    start(AMP_O4, false, AMP_ON);
    for (int i = 0; i < 3; i++) call(0);
    ck_assert_int_eq(fp32_calls, 0);
    ck_assert(!lists(COMPARED, "matmul") && lists(NOT_COMPARED, "matmul"));
}

TEST(one_that_does_not_repeat_itself_is_listed) {
    fickle = true;
    start(AMP_O4, false, AMP_ON);
    for (int i = 0; i < 3; i++) call(0);
    ck_assert(!lists(COMPARED, "matmul") && lists(NOT_COMPARED, "matmul"));
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), 0);
    char text[4096];
    ck_ok(amp_health(raw.context, text, sizeof text, NULL));
    ck_assert_msg(strstr(text, "it seems to keep state") && strstr(text, "AMP_OP_STATEFUL"), "%s", text);
}

static int averages; /* calls */
static void average(float *y, float *mean, const float *x) {
    averages++;
    for (int i = 0; i < EDGE; i++) mean[i] = 0.5f * mean[i] + x[i], y[i] = 2.0f * x[i];
}
static void average_low(uint16_t *y, float *mean, const uint16_t *x) {
    averages++;
    for (int i = 0; i < EDGE; i++) mean[i] = 0.5f * mean[i] + 1.0f, y[i] = low_of(AMP_BFLOAT16, 2.0f * (float)i);
    (void)x;
}
static void (*average_slot)(float *, float *, const float *);

/* Memory behind a pointer that the op may write through is nobody's to put back; what is const is no state. */
TEST_TIMES(one_that_may_keep_state_behind_a_pointer_is_not_compared, 3) {
    static const char *const keeps[] = { "float *mean", "pointer mean", "const float *mean" };
    char schema[96];
    snprintf(schema, sizeof schema, "f(float(out a!) y[6], %s, float x[6]) -> void", keeps[_i]);
    average_slot = average, averages = 0;
    raw.ops[1] = OP("linear", schema, &average_slot, .bf16 = (amp_fn)average_low);
    start(AMP_O4, false, AMP_ON);
    float mean[EDGE] = { 0 };
    for (int i = 0; i < EDGE; i++) b[i] = (float)i;
    for (int i = 0; i < 3; i++) average_slot(a, mean, b);
    ck_assert(_i == 2 ? averages > 3 : averages == 3 && mean[0] == 1.75f);
    ck_assert(lists(COMPARED, "linear") == (_i == 2) && lists(NOT_COMPARED, "linear") == (_i != 2));
}

static float *pointed(const float *x, float *y) { return y[0] = 2.0f * x[0], fp32_calls++, y; }
static uint16_t *pointed_low(const uint16_t *x, uint16_t *y) { return y[0] = x[0], y; }
static float *(*pointed_slot)(const float *, float *);

TEST(one_that_returns_a_pointer_or_draws_numbers_is_listed) {
    pointed_slot = pointed;
    raw.ops[0].name = "linear_dropout", raw.ops[0].op_class = AMP_LOWER;
    raw.ops[1] = OP("linear", "f(float x[1], float(out a!) y[1]) -> pointer", &pointed_slot,
                    .bf16 = (amp_fn)pointed_low);
    start(AMP_O4, false, AMP_ON);
    call(0);
    pointed_slot(a, c);
    ck_assert_int_eq(fp32_calls, 0);
    ck_assert(lists(NOT_COMPARED, "linear_dropout") && lists(NOT_COMPARED, "linear"));
}

TEST(one_without_a_call_is_listed) {
    start(AMP_O4, false, AMP_ON);
    ck_assert(lists(NOT_COMPARED, "matmul"));
    raw_stop(&raw);
    start(AMP_O4, false, AMP_OFF);
    ck_assert_msg(!lists(NOT_COMPARED, "matmul"), "without verify none is");
}

/* The FP32 function's own slip: the host's memory behind the extents is not touched by a run that is not the host's. */
TEST(fp32_that_writes_too_far_is_found_on_a_copy) {
    too_far = true;
    start(AMP_O4, false, AMP_ON);
    call(0);
    ck_assert_uint_eq(found(raw.context, "AMP-M26"), 1);
    ck_assert(c[ROOM] == 8.0f);
}

/* Each integer makes a kind of its own, of which 64 are remembered. */
TEST(kinds_of_calls_without_room_are_listed) {
    start(AMP_O4, false, AMP_ON);
    for (int ta = 0; ta < 64; ta++) call(ta);
    ck_assert(lists(COMPARED, "matmul") && !lists(NOT_COMPARED, "matmul"));
    call(64);
    ck_assert(lists(COMPARED, "matmul") && lists(NOT_COMPARED, "matmul"));
}

TEST(kept_memory_of_unknown_length_cannot_be_put_back) {
    raw_param(&raw, "kept", kept, NULL, 1);
    raw.ops[0].schema =
        "product(int ta, float alpha, float a[6,6], float b[6,6], float(out a!) c[6,6], float(keep) kept[?]) -> void";
    raw_start(&raw, CONFIG(AMP_O4, .verify = AMP_ON, .log = AMP_LOG_OFF));
    call(0);
    ck_assert_int_eq(fp32_calls, 0);
    ck_assert(kept[0] == 1.0f && lists(NOT_COMPARED, "matmul"));
}

/* ---- behind structs ---- */

struct layer {
    const float *a, *b;
    float *c, *kept, *workspace;
    int ta;
};

static void fp32_layer(struct layer *l) {
    l->workspace[0] = 1.0f; /* nobody compares that */
    fp32_product(l->ta, 2.0f, l->a, l->b, l->c, l->kept);
}

static void bf16_layer(struct layer *l) { bf16_product(l->ta, 2.0f, l->a, l->b, l->c, l->kept); }
static void (*layer_slot)(struct layer *);

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct layer *l = *(struct layer *const *)args[0];
    const amp_field fields[] = { FIELD("a", AMP_ROLE_READ, .address = (float **)(void *)&l->a, .size = ROOM),
                                 FIELD("b", AMP_ROLE_READ, .address = (float **)(void *)&l->b, .size = ROOM),
                                 FIELD("c", adds ? AMP_ROLE_UPDATE : AMP_ROLE_WRITE, .address = &l->c, .size = ROOM),
                                 FIELD("kept", AMP_ROLE_KEEP, .address = &l->kept, .size = 1),
                                 FIELD("workspace", AMP_ROLE_SCRATCH, .address = &l->workspace, .size = 1) };
    (void)self, (void)op;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const amp_status status = emit(emit_self, &fields[i]);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

static struct layer layer;
static float workspace[1];

static void start_layer(bool adding, enum fault of) {
    layer = (struct layer){ a, b, c, kept, workspace, 0 };
    workspace[0] = 5.0f;
    layer_slot = fp32_layer;
    adds = adding, fault = of;
    raw.host.visit = visit;
    raw_struct(&raw, "layer");
    raw.ops[0] = OP("linear", "layer(struct layer *l) -> void", &layer_slot, .bf16 = (amp_fn)bf16_layer);
    raw_start(&raw, CONFIG(AMP_O4, .verify = AMP_ON, .log = AMP_LOG_OFF));
}

static void ck_own_pointers(void) {
    ck_assert(layer.a == a && layer.b == b && layer.c == c && layer.kept == kept && layer.workspace == workspace);
    ck_assert(workspace[0] == 5.0f);
}

TEST_TIMES(a_layer_is_compared_too, 4) {
    start_layer(_i % 2, _i / 2 ? TRANSPOSED : RIGHT);
    layer_slot(&layer);
    ck_own_pointers();
    ck_assert(kept[0] == 1.0f);
    ck_assert(lists(COMPARED, "linear"));
    ck_assert_uint_eq(found(raw.context, "AMP-M72"), _i / 2 != 0);
}

/* Out of the FP32 function, which the host did not call: it finds its struct as it was, at the next call at the latest,
 * and what that calls is counted again. */
TEST(a_jump_out_of_it_leaves_nothing_behind) {
    jmp_buf out;
    start_layer(true, RIGHT);
    way_out = &out;
    if (!setjmp(out)) layer_slot(&layer);
    way_out = NULL;
    ck_assert(table.pass(1.0f) == 1.0f);
    ck_own_pointers();
    ck_assert(low_calls == 0 && c[0] == 8.0f);
    ck_assert_uint_eq(raw_stats(&raw, 1).calls, 1);
    layer_slot(&layer);
    ck_assert(lists(COMPARED, "linear"));
}

/* Whichever allocation fails, the implementation has run or has not, and the host's memory is its own. */
TEST_TIMES(without_memory_a_call_is_whole_or_not_at_all, 2) {
    bool complete = false;
    for (unsigned long at = 1; !complete; at++) {
        set_up();
        start_layer(_i, RIGHT);
        countdown = at;
        layer_slot(&layer);
        complete = countdown > 0;
        countdown = 0;
        const amp_status status = amp_check(raw.context);
        ck_own_pointers();
        ck_assert_msg(at < 100 && low_calls == (status == AMP_OK) && kept[0] == (float)low_calls &&
                      (c[0] != 8.0f) == low_calls, "allocation %lu: %d", at, status);
        raw_stop(&raw);
    }
}
