/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer without tensors: float pointers, extents as integers, all weights in one allocation, gradients that
 * backward adds into. It registers amp_buffers and writes no hook.
 */
#include <amp_all.h>

#include "test.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

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

struct host {
    float weights[2 * OC * C], gradients[2 * OC * C]; /* one allocation each; two layers */
    amp_buffer buffers[2], grads[2];
    void *trained[2];
    amp_param params[2];
    amp_op ops[3];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
};

static amp_op describe(const char *name, const char *schema, void *slot) {
    amp_op op = AMP_OP_INIT;
    op.name = name;
    op.schema = schema;
    op.slot = slot;
    return op;
}

static void set_up(struct host *host) {
    memset(host, 0, sizeof *host);
    table.forward = matmul_forward;
    table.backward = matmul_backward;
    table.rows = scale_rows;
    for (int i = 0; i < 2 * OC * C; i++) host->weights[i] = sinf((float)i) / 3.0f;
    for (int i = 0; i < 2; i++) {
        host->grads[i] = host->buffers[i] = (amp_buffer)AMP_BUFFER_INIT;
        host->buffers[i].data = host->weights + i * OC * C;
        host->grads[i].data = host->gradients + i * OC * C;
        host->buffers[i].size = host->grads[i].size = OC * C;
        host->buffers[i].grad = &host->grads[i];
        host->params[i] = (amp_param)AMP_PARAM_INIT;
        host->params[i].tensor = host->trained[i] = &host->buffers[i];
        host->params[i].name = i ? "second" : "first";
    }
    host->ops[0] = describe("matmul", "matmul(float(out a!) out[B,OC], float inp[B,C], float weight[OC,C], int B, int "
                            "C, int OC) -> void", &table.forward);
    host->ops[1] = describe("matmul_backward", "matmul_backward(float(a!) dweight[OC,C], float dout[B,OC], float "
                            "inp[B,C], int B, int C, int OC) -> void", &table.backward);
    host->ops[1].backward_of = "matmul";
    host->ops[2] = describe("rows", "rows(float(a!) x[R,N : ld], int R, int N, int ld) -> void", &table.rows);
    host->ops[2].op_class = AMP_LOWER;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = amp_buffer_host();
    host->model.ops = host->ops;
    host->model.n_ops = 3;
    host->model.params = host->params;
    host->model.n_params = 2;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.params = host->trained;
    host->optimizer.n_params = 2;
}

static amp_status start(struct host *host, amp_level level, amp_switch emulate) {
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    config.emulate = emulate;
    return amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context);
}

static void finish(struct host *host) {
    ck_ok(amp_shutdown(host->context));
    ck_assert(table.forward == matmul_forward && table.backward == matmul_backward && table.rows == scale_rows);
}

static amp_op_stats stats_of(const struct host *host, size_t op) {
    amp_op_stats stats[3] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    size_t n;
    ck_ok(amp_get_op_stats(host->context, stats, 3, &n));
    return stats[op];
}

static float through(amp_level level, float x) {
    return level == AMP_O1 ? amp_half_to_float(amp_float_to_half(x)) : amp_bfloat16_to_float(amp_float_to_bfloat16(x));
}

static void round_all(amp_level level, float *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = through(level, src[i]);
}

static void fill(float *x, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) x[i] = cosf((float)i * 1.7f) * factor;
}

static const amp_level levels[] = { AMP_O1, AMP_O4 };

/* ---- emulate ---- */

TEST_TIMES(an_emulated_op_is_round_compute_round, 2) {
    struct host host;
    const amp_level level = levels[_i];
    float inp[B * C], out[B * OC], rounded_inp[B * C], rounded_weight[OC * C], expected[B * OC];
    set_up(&host);
    fill(inp, B * C, 2.0f);
    round_all(level, rounded_inp, inp, B * C);
    round_all(level, rounded_weight, host.weights + OC * C, OC * C);
    matmul_forward(expected, rounded_inp, rounded_weight, B, C, OC);
    round_all(level, expected, expected, B * OC);
    ck_ok(start(&host, level, AMP_ON));
    float kept[B * C];
    memcpy(kept, inp, sizeof inp);
    table.forward(out, inp, host.weights + OC * C, B, C, OC);
    ck_assert_mem_eq(out, expected, sizeof out);
    ck_assert_mem_eq(inp, kept, sizeof inp); /* the host's own inputs are only read */
    finish(&host);
}

TEST_TIMES(gradient_accumulators_stay_fp32_sums, 2) {
    struct host host;
    const amp_level level = levels[_i];
    float inp[B * C], dout[B * OC], rounded_inp[B * C], rounded_dout[B * OC], added[OC * C] = { 0 }, expected[OC * C];
    set_up(&host);
    fill(inp, B * C, 2.0f);
    fill(dout, B * OC, 0.01f);
    fill(host.gradients, OC * C, 1.0f / 3.0f);
    round_all(level, rounded_inp, inp, B * C);
    round_all(level, rounded_dout, dout, B * OC);
    matmul_backward(added, rounded_dout, rounded_inp, B, C, OC);
    for (int i = 0; i < OC * C; i++) expected[i] = host.gradients[i] + through(level, added[i]);
    ck_ok(start(&host, level, AMP_ON));
    table.backward(host.gradients, dout, inp, B, C, OC);
    ck_assert_mem_eq(host.gradients, expected, sizeof expected);
    finish(&host);
}

TEST_TIMES(rows_leave_their_gaps_alone, 2) {
    struct host host;
    const amp_level level = levels[_i];
    float x[B * LD], expected[B * LD];
    set_up(&host);
    fill(x, B * LD, 3.0f);
    memcpy(expected, x, sizeof x);
    for (int i = 0; i < B; i++)
        for (int j = 0; j < C; j++) expected[i * LD + j] = through(level, through(level, x[i * LD + j]) * 1.1f);
    ck_ok(start(&host, level, AMP_ON));
    table.rows(x, B, C, LD);
    ck_assert_mem_eq(x, expected, sizeof x);
    finish(&host);
}

TEST(what_leaves_the_range_is_counted) {
    struct host host;
    float inp[B * C] = { 1e6f, 1e-9f, 1e-6f }, out[B * OC];
    set_up(&host);
    memset(host.weights, 0, sizeof host.weights);
    ck_ok(start(&host, AMP_O1, AMP_ON));
    table.forward(out, inp, host.weights, B, C, OC);
    const amp_op_stats stats = stats_of(&host, 0);
    ck_assert_uint_eq(stats.overflowed, 1);
    ck_assert_uint_eq(stats.zeroed, 1);
    ck_assert_uint_eq(stats.subnormal, 1);
    finish(&host);
}

/* ---- weights ---- */

TEST(weights_are_packed_once_in_a_scope_and_again_after_a_step) {
    struct host host;
    amp_scope scope;
    amp_step_info info = AMP_STEP_INFO_INIT;
    float inp[B * C], out[B * OC];
    set_up(&host);
    fill(inp, B * C, 1.0f);
    ck_ok(start(&host, AMP_O1, AMP_ON));
    ck_ok(amp_scope_enter(host.context, &scope));
    for (int i = 0; i < 3; i++) table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_uint_eq(stats_of(&host, 0).casts, 1);
    ck_assert_uint_eq(stats_of(&host, 0).cache_hits, 2);
    ck_ok(amp_step_begin(&host.optimizer, &info));
    host.weights[0] = 100.0f;
    ck_ok(amp_step_end(&host.optimizer));
    table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_uint_eq(stats_of(&host, 0).casts, 2);
    float fresh[B * OC];
    table.forward(fresh, inp, host.weights, B, C, OC);
    ck_assert_mem_eq(out, fresh, sizeof out);
    ck_assert_float_gt(fabsf(out[0]), 50.0f); /* the new weight is in it */
    ck_ok(amp_scope_leave(&scope));
    finish(&host);
}

TEST(an_unknown_extent_is_the_rest_of_the_parameter) {
    struct host host;
    float inp[B * C], out[B * OC], known[B * OC];
    set_up(&host);
    fill(inp, B * C, 1.0f);
    ck_ok(start(&host, AMP_O1, AMP_ON));
    table.forward(known, inp, host.weights, B, C, OC);
    ck_ok(amp_shutdown(host.context));
    host.ops[0].schema = "matmul(float(out a!) out[B,OC], float inp[B,C], float weight[?], int B, int C, int OC) -> "
                         "void";
    ck_ok(start(&host, AMP_O1, AMP_ON));
    table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_mem_eq(out, known, sizeof out);
    table.forward(out, inp, inp, 1, 1, 1); /* no parameter: the error is kept, the op runs as it is */
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "weight"));
    finish(&host);
}

/* ---- replace ---- */

TEST(an_implementation_replaces_the_op) {
    struct host host;
    float inp[B * C], out[B * OC], rounded_inp[B * C], rounded_weight[OC * C], expected[B * OC];
    set_up(&host);
    fill(inp, B * C, 2.0f);
    round_all(AMP_O1, rounded_inp, inp, B * C);
    round_all(AMP_O1, rounded_weight, host.weights, OC * C);
    matmul_forward(expected, rounded_inp, rounded_weight, B, C, OC); /* few enough terms for one order of sums */
    round_all(AMP_O1, expected, expected, B * OC);
    host.ops[0].fp16 = (amp_fn)matmul_forward_fp16;
    low_calls = 0;
    ck_ok(start(&host, AMP_O1, AMP_DEFAULT));
    table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_uint_eq(low_calls, 1);
    ck_assert_mem_eq(out, expected, sizeof out);
    float before[OC * C];
    memcpy(before, host.gradients, sizeof before);
    finish(&host);
}

TEST(what_an_implementation_updates_stays_fp32) {
    struct host host;
    float x[B * LD], expected[B * LD];
    set_up(&host);
    fill(x, B * LD, 2.0f);
    memcpy(expected, x, sizeof x);
    scale_rows(expected, B, C, LD);
    host.ops[2].fp16 = (amp_fn)scale_rows_fp16;
    low_calls = 0;
    ck_ok(start(&host, AMP_O1, AMP_DEFAULT));
    table.rows(x, B, C, LD);
    ck_assert_uint_eq(low_calls, 1);
    ck_assert_mem_eq(x, expected, sizeof x);
    finish(&host);
}

TEST(without_either_way_the_user_is_told) {
    struct host host;
    float inp[B * C], out[B * OC], expected[B * OC];
    char text[4096];
    set_up(&host);
    fill(inp, B * C, 2.0f);
    matmul_forward(expected, inp, host.weights, B, C, OC);
    ck_ok(start(&host, AMP_O1, AMP_DEFAULT));
    table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_mem_eq(out, expected, sizeof out);
    ck_ok(amp_explain(host.context, NULL, text, sizeof text, NULL));
    ck_assert_ptr_nonnull(strstr(text, "op matmul takes raw FP32 buffers"));
    finish(&host);
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
    struct host host;
    float x[4] = { 12.0f, 12.0f, 12.0f, 12.0f };
    set_up(&host);
    host.ops[2] = describe("add_twice", "add_twice(float(a!) x[n], float(a!) y[n], int n) -> void", &add_twice_slot);
    host.ops[2].op_class = AMP_LOWER;
    ck_ok(start(&host, AMP_O1, AMP_ON));
    add_twice_slot(x, x, 4);
    for (int i = 0; i < 4; i++) ck_assert_float_eq(x[i], 15.0f);
    ck_ok(amp_check(host.context));
    add_twice_slot(x, x + 1, 3); /* overlap in part: as without libamp, and told */
    ck_assert_int_eq(amp_check(host.context), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "op add_twice: y: what it writes overlaps"));
    ck_assert(x[0] == 16.0f && x[1] == 18.0f && x[2] == 18.0f && x[3] == 17.0f);
    ck_ok(amp_shutdown(host.context));
}

TEST_TIMES(a_gradient_needs_memory_of_its_own, 3) {
    struct host host;
    set_up(&host);
    if (_i == 0) host.grads[1].data = host.weights + OC * C + 1;
    if (_i == 1) host.buffers[1].grad = &host.buffers[1];
    if (_i == 2) host.grads[1].data = (float *)host.grads[0].data + 1;
    ck_assert_int_eq(start(&host, AMP_O1, AMP_ON), AMP_ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), _i < 2 ? "second: its gradient lies in its own elements"
                                                          : "the gradients of first and second overlap"));
    ck_assert(table.forward == matmul_forward);
}

/* An op that ends its own context, or closes a step that it did not open, is refused. */
static struct host *ended;
static amp_status ended_with[2];

static void end_inside(float *out, const float *inp, const float *weight, int b, int c, int oc) {
    ended_with[0] = amp_shutdown(ended->context);
    ended_with[1] = amp_step_end(&ended->optimizer);
    matmul_forward(out, inp, weight, b, c, oc);
}

TEST_TIMES(a_context_does_not_end_inside_its_own_op, 2) {
    struct host host;
    float inp[B * C], out[B * OC];
    set_up(&host);
    fill(inp, B * C, 1.0f);
    table.forward = end_inside;
    ended = &host;
    ck_ok(start(&host, _i ? AMP_O2 : AMP_O1, AMP_ON));
    table.forward(out, inp, host.weights, B, C, OC);
    ck_assert_int_eq(ended_with[0], AMP_ERR_WRONG_STATE);
    ck_assert_int_eq(ended_with[1], AMP_ERR_WRONG_STATE);
    ck_ok(amp_shutdown(host.context));
    ck_assert(table.forward == end_inside);
}

TEST(levels_that_re_type_say_what_they_need) {
    struct host host;
    set_up(&host);
    ck_assert_int_eq(start(&host, AMP_O2, AMP_DEFAULT), AMP_ERR_MISSING_HOOK);
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "swap_data"));
    ck_assert_ptr_nonnull(strstr(amp_last_error(), "emulate"));
    ck_assert(table.forward == matmul_forward);
    ck_ok(start(&host, AMP_O2, AMP_ON));
    finish(&host);
}

/* ---- training: one layer fits a linear map, seeded with the scale ---- */

static float train(struct host *host, bool with_libamp, unsigned *skipped) {
    float target[OC * C], loss = 0.0f;
    fill(target, OC * C, 0.7f);
    for (int step = 0; step < 400; step++) {
        float inp[B * C], out[B * OC], wanted[B * OC], dout[B * OC];
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        for (int i = 0; i < B * C; i++) inp[i] = sinf((float)(step * B * C + i) * 0.37f);
        matmul_forward(wanted, inp, target, B, C, OC);
        if (with_libamp) ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
        const float seed = with_libamp ? amp_seed_factor(&scaled) : 1.0f;
        table.forward(out, inp, host->weights, B, C, OC);
        loss = 0.0f;
        for (int i = 0; i < B * OC; i++) {
            const float error = out[i] - wanted[i];
            loss += error * error / (B * OC);
            dout[i] = 2.0f * error / (B * OC) * seed;
        }
        table.backward(host->gradients, dout, inp, B, C, OC);
        if (with_libamp) ck_ok(amp_scale_loss_end(&scaled));
        *skipped += with_libamp && scaled.action == AMP_SKIP;
        amp_step_info info = AMP_STEP_INFO_INIT;
        if (with_libamp) ck_ok(amp_step_begin(&host->optimizer, &info));
        if (info.action == AMP_STEP)
            for (int i = 0; i < OC * C; i++) host->weights[i] -= 0.5f * host->gradients[i];
        memset(host->gradients, 0, sizeof host->gradients);
        if (with_libamp) ck_ok(amp_step_end(&host->optimizer));
    }
    return loss;
}

TEST_TIMES(it_trains, 2) {
    struct host plain, wired;
    unsigned skipped = 0;
    set_up(&plain);
    const float reference = train(&plain, false, &skipped);
    set_up(&wired);
    ck_ok(start(&wired, levels[_i], AMP_ON));
    const float loss = train(&wired, true, &skipped);
    ck_assert_float_lt(reference, 1e-4f);
    ck_assert_float_lt(loss, levels[_i] == AMP_O1 ? 1e-4f : 1e-3f); /* outputs near 1 carry 2^-11, or 2^-8 */
    ck_assert_uint_lt(skipped, 10);
    finish(&wired);
}

TEST(an_overflow_leaves_the_fixed_buffers_clean) {
    struct host host;
    unsigned skipped = 0;
    set_up(&host);
    amp_model *model = &host.model;
    amp_optimizer *optimizer = &host.optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O1;
    config.emulate = AMP_ON;
    config.init_scale = config.max_scale = 0x1p30f;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host.context));
    const float loss = train(&host, true, &skipped);
    ck_assert_uint_gt(skipped, 3);
    ck_assert_float_lt(loss, 1e-4f);
    for (int i = 0; i < 2 * OC * C; i++) ck_assert(isfinite(host.weights[i]));
    finish(&host);
}
