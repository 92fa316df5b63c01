/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer without tensors: float pointers, extents as integers, all weights in one allocation, gradients that
 * backward adds into. It registers amp_buffers and writes no hook.
 */
#include "levels.h"
#include "raw.h"

#include <math.h>
#include <stdbool.h>

enum { B = 3, C = 5, OC = 4, LD = 7 };

/* ---- the host's functions ---- */

static void matmul_forward(float *out, const float *inp, const float *weight, int b, int c, int oc) {
    for (int i = 0; i < b; i++)
        for (int o = 0; o < oc; o++) {
            float sum = 0.0f;
            for (int k = 0; k < c; k++) sum += inp[i * c + k] * weight[o * c + k];
            out[i * oc + o] = sum;
        }
}

static void matmul_backward(float *dweight, const float *dout, const float *inp, int b, int c, int oc) {
    for (int i = 0; i < b; i++)
        for (int o = 0; o < oc; o++)
            for (int k = 0; k < c; k++) dweight[o * c + k] += dout[i * oc + o] * inp[i * c + k];
}

static void scale_rows(float *x, int rows, int cols, int ld) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) x[i * ld + j] *= 1.1f;
}

/* libamp's own matmul as the implementation for fp16. */
static unsigned low_calls;
static void matmul_forward_fp16(uint16_t *out, const uint16_t *inp, const uint16_t *weight, int b, int c, int oc) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.transpose_b = 1;
    args.a_dtype = args.b_dtype = args.d_dtype = AMP_FLOAT16;
    args.m = b, args.n = oc, args.k = c;
    args.a = inp, args.b = weight, args.d = out;
    low_calls++;
    ck_ok(amp_matmul(&args));
}

/* In place on the host's own FP32 elements, whether or not anybody registered them. */
static void scale_rows_fp16(float *x, int rows, int cols, int ld) {
    low_calls++;
    scale_rows(x, rows, cols, ld);
}

static struct {
    void (*forward)(float *, const float *, const float *, int, int, int);
    void (*backward)(float *, const float *, const float *, int, int, int);
    void (*rows)(float *, int, int, int);
} table;

/* ---- one host ---- */

static float weights[2 * OC * C], gradients[2 * OC * C]; /* one allocation each; two layers */
static struct raw raw;
enum { FORWARD, BACKWARD, ROWS };

static void set_up(void) {
    table.forward = matmul_forward;
    table.backward = matmul_backward;
    table.rows = scale_rows;
    memset(gradients, 0, sizeof gradients);
    for (int i = 0; i < 2 * OC * C; i++) weights[i] = sinf((float)i) / 3.0f;
    raw_init(&raw);
    raw_param(&raw, "first", weights, gradients, OC * C);
    raw_param(&raw, "second", weights + OC * C, gradients + OC * C, OC * C);
    raw_op(&raw, OP("matmul", "matmul(float(out a!) out[B,OC], float inp[B,C], float weight[OC,C], int B, int C, "
                    "int OC) -> void", &table.forward));
    raw_op(&raw, OP("matmul_backward", "matmul_backward(float(a!) dweight[OC,C], float dout[B,OC], float inp[B,C], "
                    "int B, int C, int OC) -> void", &table.backward, .backward_of = "matmul"));
    raw_op(&raw, OP("rows", "rows(float(a!) x[R,N : ld], int R, int N, int ld) -> void", &table.rows,
                    .op_class = AMP_LOWER));
}

static void tear_down(void) {
    raw_stop(&raw);
    ck_assert(table.forward == matmul_forward && table.backward == matmul_backward && table.rows == scale_rows);
}

TEST_FIXTURE(set_up, tear_down)

static void round_all(amp_level level, float *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = level_through(level, src[i]);
}

static void fill(float *x, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) x[i] = cosf((float)i * 1.7f) * factor;
}

/* What the product is where operands and result are rounded: few enough terms for one order of sums. */
static void expect_product(amp_level level, float *expected, const float *inp, const float *weight) {
    float rounded_inp[B * C], rounded_weight[OC * C];
    round_all(level, rounded_inp, inp, B * C);
    round_all(level, rounded_weight, weight, OC * C);
    matmul_forward(expected, rounded_inp, rounded_weight, B, C, OC);
    round_all(level, expected, expected, B * OC);
}

/* ---- emulate ---- */

TEST_TIMES(an_emulated_op_is_round_compute_round, N_CASTING_LEVELS) {
    const amp_level level = level_where(level_casts_ops, _i);
    float inp[B * C], kept[B * C], out[B * OC], expected[B * OC];
    fill(inp, B * C, 2.0f);
    memcpy(kept, inp, sizeof inp);
    expect_product(level, expected, inp, weights + OC * C);
    raw_start(&raw, CONFIG(level, .emulate = AMP_ON));
    table.forward(out, inp, weights + OC * C, B, C, OC);
    ck_assert_mem_eq(out, expected, sizeof out);
    ck_assert_mem_eq(inp, kept, sizeof inp); /* the host's own inputs are only read */
}

TEST_TIMES(gradient_accumulators_stay_fp32_sums, N_CASTING_LEVELS) {
    const amp_level level = level_where(level_casts_ops, _i);
    float inp[B * C], dout[B * OC], rounded_inp[B * C], rounded_dout[B * OC], added[OC * C] = { 0 }, expected[OC * C];
    fill(inp, B * C, 2.0f);
    fill(dout, B * OC, 0.01f);
    fill(gradients, OC * C, 1.0f / 3.0f);
    round_all(level, rounded_inp, inp, B * C);
    round_all(level, rounded_dout, dout, B * OC);
    matmul_backward(added, rounded_dout, rounded_inp, B, C, OC);
    for (int i = 0; i < OC * C; i++) expected[i] = gradients[i] + level_through(level, added[i]);
    raw_start(&raw, CONFIG(level, .emulate = AMP_ON));
    table.backward(gradients, dout, inp, B, C, OC);
    ck_assert_mem_eq(gradients, expected, sizeof expected);
}

TEST_TIMES(rows_leave_their_gaps_alone, N_CASTING_LEVELS) {
    const amp_level level = level_where(level_casts_ops, _i);
    float x[B * LD], expected[B * LD];
    fill(x, B * LD, 3.0f);
    memcpy(expected, x, sizeof x);
    for (int i = 0; i < B; i++)
        for (int j = 0; j < C; j++)
            expected[i * LD + j] = level_through(level, level_through(level, x[i * LD + j]) * 1.1f);
    raw_start(&raw, CONFIG(level, .emulate = AMP_ON));
    table.rows(x, B, C, LD);
    ck_assert_mem_eq(x, expected, sizeof x);
}

TEST(what_leaves_the_range_is_counted) {
    float inp[B * C] = { 1e6f, 1e-9f, 1e-6f }, out[B * OC];
    memset(weights, 0, sizeof weights);
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    table.forward(out, inp, weights, B, C, OC);
    const amp_op_stats stats = raw_stats(&raw, FORWARD);
    ck_assert_uint_eq(stats.overflowed, 1);
    ck_assert_uint_eq(stats.zeroed, 1);
    ck_assert_uint_eq(stats.subnormal, 1);
}

/* ---- weights ---- */

TEST(weights_are_packed_once_in_a_scope_and_again_after_a_step) {
    amp_scope scope;
    amp_step_info info = AMP_STEP_INFO_INIT;
    float inp[B * C], out[B * OC], fresh[B * OC];
    fill(inp, B * C, 1.0f);
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    ck_ok(amp_scope_enter(raw.context, &scope));
    for (int i = 0; i < 3; i++) table.forward(out, inp, weights, B, C, OC);
    ck_assert_uint_eq(raw_stats(&raw, FORWARD).casts, 1);
    ck_assert_uint_eq(raw_stats(&raw, FORWARD).cache_hits, 2);
    ck_ok(amp_step_begin(&raw.optimizer, &info));
    weights[0] = 100.0f;
    ck_ok(amp_step_end(&raw.optimizer));
    table.forward(out, inp, weights, B, C, OC);
    ck_assert_uint_eq(raw_stats(&raw, FORWARD).casts, 2);
    table.forward(fresh, inp, weights, B, C, OC);
    ck_assert_mem_eq(out, fresh, sizeof out);
    ck_assert_float_gt(fabsf(out[0]), 50.0f); /* the new weight is in it */
    ck_ok(amp_scope_leave(&scope));
}

/* The second parameter cannot be read: the first one, whose master the step was to see, is as it was. */
TEST(a_step_that_cannot_begin_leaves_weights_rounded) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    float before[OC * C];
    raw_start(&raw, CONFIG(AMP_O2, .emulate = AMP_ON));
    memcpy(before, weights, sizeof before);
    raw.buffers[1].data = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "second", amp_step_begin(&raw.optimizer, &info));
    ck_assert_mem_eq(weights, before, sizeof before);
    raw.buffers[1].data = weights + OC * C;
    ck_ok(amp_step_begin(&raw.optimizer, &info));
    ck_assert_mem_ne(weights, before, sizeof before); /* the masters */
    ck_ok(amp_step_end(&raw.optimizer));
    ck_assert_mem_eq(weights, before, sizeof before);
}

TEST(an_unknown_extent_is_the_rest_of_the_parameter) {
    float inp[B * C], out[B * OC], known[B * OC];
    fill(inp, B * C, 1.0f);
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    table.forward(known, inp, weights, B, C, OC);
    raw_stop(&raw);
    raw.ops[FORWARD].schema = "matmul(float(out a!) out[B,OC], float inp[B,C], float weight[?], int B, int C, int OC) "
                              "-> void";
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    table.forward(out, inp, weights, B, C, OC);
    ck_assert_mem_eq(out, known, sizeof out);
    table.forward(out, inp, inp, 1, 1, 1); /* no parameter: the error is kept, the op runs as it is */
    ck_refused(AMP_ERR_NOT_FOUND, "weight", amp_check(raw.context));
}

/* ---- replace ---- */

TEST(an_implementation_replaces_the_op) {
    float inp[B * C], out[B * OC], expected[B * OC];
    fill(inp, B * C, 2.0f);
    expect_product(AMP_O1, expected, inp, weights);
    raw.ops[FORWARD].fp16 = (amp_fn)matmul_forward_fp16;
    raw_start(&raw, CONFIG(AMP_O1));
    table.forward(out, inp, weights, B, C, OC);
    ck_assert_uint_eq(low_calls, 1);
    ck_assert_mem_eq(out, expected, sizeof out);
}

TEST(what_an_implementation_updates_stays_fp32) {
    float x[B * LD], expected[B * LD];
    fill(x, B * LD, 2.0f);
    memcpy(expected, x, sizeof x);
    scale_rows(expected, B, C, LD);
    raw.ops[ROWS].fp16 = (amp_fn)scale_rows_fp16;
    raw_start(&raw, CONFIG(AMP_O1));
    table.rows(x, B, C, LD);
    ck_assert_uint_eq(low_calls, 1);
    ck_assert_mem_eq(x, expected, sizeof x);
}

TEST(without_either_way_the_user_is_told) {
    float inp[B * C], out[B * OC], expected[B * OC];
    fill(inp, B * C, 2.0f);
    matmul_forward(expected, inp, weights, B, C, OC);
    raw_start(&raw, CONFIG(AMP_O1));
    table.forward(out, inp, weights, B, C, OC);
    ck_assert_mem_eq(out, expected, sizeof out);
    ck_explains(raw.context, NULL, "op matmul takes raw FP32 buffers");
}

/* x += 1 and y += 2, element by element: on one buffer it is += 3. */
static void add_twice(float *x, float *y, int n) {
    for (int i = 0; i < n; i++) {
        x[i] += 1.0f;
        y[i] += 2.0f;
    }
}

static void (*add_twice_slot)(float *, float *, int) = add_twice;

TEST(one_buffer_in_two_arguments_keeps_both_updates) {
    float x[4] = { 12.0f, 12.0f, 12.0f, 12.0f };
    raw.ops[ROWS] = OP("add_twice", "add_twice(float(a!) x[n], float(a!) y[n], int n) -> void", &add_twice_slot,
                       .op_class = AMP_LOWER);
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON));
    add_twice_slot(x, x, 4);
    for (int i = 0; i < 4; i++) ck_assert_float_eq(x[i], 15.0f);
    ck_ok(amp_check(raw.context));
    add_twice_slot(x, x + 1, 3); /* overlap in part: as without libamp, and told */
    ck_refused(AMP_ERR_CONFLICT, "op add_twice: y: its output overlaps", amp_check(raw.context));
    ck_assert(x[0] == 16.0f && x[1] == 18.0f && x[2] == 18.0f && x[3] == 17.0f);
}

TEST_TIMES(a_gradient_needs_memory_of_its_own, 3) {
    if (_i == 0) raw.grads[1].data = weights + OC * C + 1;
    if (_i == 1) raw.buffers[1].grad = &raw.buffers[1];
    if (_i == 2) raw.grads[1].data = gradients + 1;
    ck_fails(AMP_ERR_CONFLICT, raw_initialize(&raw, CONFIG(AMP_O1, .emulate = AMP_ON)));
    ck_says(_i < 2 ? "second: its gradient lies in its own elements" : "the gradients of first and second overlap");
    ck_assert(table.forward == matmul_forward);
}

/* An op that ends its own context, or closes a step that it did not open, is refused. */
static amp_status ended_with[2];

static void end_inside(float *out, const float *inp, const float *weight, int b, int c, int oc) {
    ended_with[0] = amp_shutdown(raw.context);
    ended_with[1] = amp_step_end(&raw.optimizer);
    matmul_forward(out, inp, weight, b, c, oc);
}

TEST_TIMES(a_context_does_not_end_inside_its_own_op, 2) {
    float inp[B * C], out[B * OC];
    fill(inp, B * C, 1.0f);
    table.forward = end_inside;
    raw_start(&raw, CONFIG(_i ? AMP_O2 : AMP_O1, .emulate = AMP_ON));
    table.forward(out, inp, weights, B, C, OC);
    ck_assert_int_eq(ended_with[0], AMP_ERR_WRONG_STATE);
    ck_assert_int_eq(ended_with[1], AMP_ERR_WRONG_STATE);
    raw_stop(&raw);
    ck_assert(table.forward == end_inside);
    table.forward = matmul_forward;
}

TEST(levels_that_re_type_say_what_they_need) {
    ck_refused(AMP_ERR_MISSING_HOOK, "swap_data", raw_initialize(&raw, CONFIG(AMP_O2)));
    ck_says("emulate");
    ck_assert(table.forward == matmul_forward);
    raw_start(&raw, CONFIG(AMP_O2, .emulate = AMP_ON));
}

/* ---- training: one layer fits a linear map, seeded with the scale ---- */

static float train(bool with_libamp, unsigned *skipped) {
    float target[OC * C], loss = 0.0f;
    fill(target, OC * C, 0.7f);
    for (int step = 0; step < 400; step++) {
        float inp[B * C], out[B * OC], wanted[B * OC], dout[B * OC];
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        for (int i = 0; i < B * C; i++) inp[i] = sinf((float)(step * B * C + i) * 0.37f);
        matmul_forward(wanted, inp, target, B, C, OC);
        if (with_libamp) ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
        const float seed = with_libamp ? amp_seed_factor(&scaled) : 1.0f;
        table.forward(out, inp, weights, B, C, OC);
        loss = 0.0f;
        for (int i = 0; i < B * OC; i++) {
            const float error = out[i] - wanted[i];
            loss += error * error / (B * OC);
            dout[i] = 2.0f * error / (B * OC) * seed;
        }
        table.backward(gradients, dout, inp, B, C, OC);
        if (with_libamp) ck_ok(amp_scale_loss_end(&scaled));
        *skipped += with_libamp && scaled.action == AMP_SKIP;
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (with_libamp) ck_ok(amp_step_begin(&raw.optimizer, &info));
        if (info.action == AMP_STEP)
            for (int i = 0; i < OC * C; i++) weights[i] -= 0.5f * gradients[i];
        memset(gradients, 0, sizeof gradients);
        if (with_libamp) ck_ok(amp_step_end(&raw.optimizer));
    }
    return loss;
}

TEST_TIMES(it_trains, N_CASTING_LEVELS) {
    const amp_level level = level_where(level_casts_ops, _i);
    unsigned skipped = 0;
    const float reference = train(false, &skipped);
    set_up();
    raw_start(&raw, CONFIG(level, .emulate = AMP_ON));
    const float loss = train(true, &skipped);
    ck_assert_float_lt(reference, 1e-4f);
    ck_assert_float_lt(loss, level_low(level) == AMP_FLOAT16 ? 1e-4f : 1e-3f); /* outputs near 1 carry 2^-11, or 2^-8 */
    ck_assert_uint_lt(skipped, 10);
}

TEST(an_overflow_leaves_the_fixed_buffers_clean) {
    unsigned skipped = 0;
    raw_start(&raw, CONFIG(AMP_O1, .emulate = AMP_ON, .init_scale = 0x1p30f, .max_scale = 0x1p30f));
    const float loss = train(true, &skipped);
    ck_assert_uint_gt(skipped, 3);
    ck_assert_float_lt(loss, 1e-4f);
    for (int i = 0; i < 2 * OC * C; i++) ck_assert(isfinite(weights[i]));
}
