/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that the hook grad tells of after amp_initialize, moves from bracket to bracket, or takes back: the same
 * bits and the same findings as where they lie still from the start.
 */
#include "found.h"
#include "raw.h"

#include "levels.h"

#include <stdbool.h>
#include <stdlib.h>

enum { N = 6, PARAMS = 2, STEPS = 6 };

/* How gradients come: with amp_initialize, in the first backward, or anew in each one. */
enum way { EARLY, LATE, MOVING, N_WAYS };

static struct raw raw;
static float w[PARAMS][N], y[N], x[N] = { 1, 1, 1, 1, 1, 1 };
static float *dw[PARAMS];
static float pool[3 * PARAMS][N]; /* where gradients lie: each bracket in another part, if they move */
static struct {
    void (*forward)(float *, const float *, const float *, int);
    void (*backward)(float *, const float *, const float *, float beta, int);
    void (*in_place)(float *, int);
} table;

static void forward(float *out, const float *in, const float *weights, int n) {
    for (int i = 0; i < n; i++) out[i] = in[i] * weights[i];
}

static bool multiplies; /* by a beta of 0, too */

/* beta 0: it writes over what is there. */
static void backward(float *sum, const float *in, const float *dy, float beta, int n) {
    for (int i = 0; i < n; i++) sum[i] = (multiplies || beta != 0.0f ? beta * sum[i] : 0.0f) + in[i] * dy[i];
}

static void third(float *values, int n) {
    for (int i = 0; i < n; i++) values[i] /= 3.0f;
}

static int asked;

static amp_status grad(void *self, void *tensor, void **out) {
    const size_t i = (size_t)((amp_buffer *)tensor - raw.buffers);
    asked++;
    (void)self;
    raw.grads[i].data = dw[i];
    *out = dw[i] ? &raw.grads[i] : NULL;
    return AMP_OK;
}

static amp_status set_grad(void *self, void *tensor, void *gradient) {
    (void)self;
    if (!gradient) dw[(amp_buffer *)tensor - raw.buffers] = NULL;
    return AMP_OK;
}

static void release(void *self, void *tensor) { (void)self, (void)tensor; }

static const char backward_schema[] = "b(float(a!) dw[n], float x[n], float dy[n], float beta, int32 n) -> void";

static void make(const char *schema, enum way way) {
    table.forward = forward, table.backward = backward, table.in_place = third;
    multiplies = false;
    memset(w, 0, sizeof w), memset(pool, 0, sizeof pool), memset(dw, 0, sizeof dw);
    raw_init(&raw);
    raw.host.grad = grad;
    raw_param(&raw, "first", w[0], pool[0], N);
    raw_param(&raw, "second", w[1], pool[1], N);
    for (int i = 0; i < PARAMS; i++) dw[i] = way == EARLY ? pool[i] : NULL;
    raw_op(&raw, OP("linear", "f(float(out a!) y[n], float x[n], float w[n], int32 n) -> void", &table.forward,
                    .op_class = AMP_LOWER));
    raw_op(&raw, OP("linear_back", schema, &table.backward, .op_class = AMP_LOWER, .backward_of = "linear"));
    raw_op(&raw, OP("third", "t(float(a!) v[n], int32 n) -> void", &table.in_place, .op_class = AMP_LOWER));
}

static amp_config emulated(amp_level level, amp_switch verify) {
    return CONFIG(level, .emulate = AMP_ON, .verify = verify, .loss_scale = 1024.0f, .log = AMP_LOG_OFF);
}

static void start(enum way way, amp_level level, amp_switch verify) {
    make(backward_schema, way);
    raw_start(&raw, emulated(level, verify));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(NULL, tear_down)

/* ---- a training ---- */

/* The first write of a bracket finds memory for the gradient of parameter i. */
static void need(int step, int i, enum way way) {
    if (!dw[i]) dw[i] = way == MOVING ? pool[(step % 3) * PARAMS + i] : pool[i];
}

static void train_step(int step, enum way way) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    for (int i = 0; i < PARAMS; i++) {
        if (dw[i]) memset(dw[i], 0, sizeof *pool);
        if (way == MOVING) dw[i] = NULL;
    }
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    const float seed = amp_seed_factor(&scaled);
    for (int i = 0; i < PARAMS; i++)
        for (int use = 0; use < 2; use++) { /* a weight that is used twice */
            float dy[N];
            table.forward(y, x, w[i], N);
            for (int k = 0; k < N; k++) dy[k] = seed * (y[k] - 3.1f * (float)(k + use + 1)) / 1024.0f;
            need(step, i, way);
            table.backward(dw[i], x, dy, 1.0f, N);
        }
    asked = 0;
    table.in_place(y, N); /* no gradient */
    if (step >= 2 && way == EARLY) ck_assert_int_eq(asked, 0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&raw.optimizer, &info));
    for (int i = 0; i < PARAMS && info.action == AMP_STEP; i++)
        for (int k = 0; k < N; k++) w[i][k] -= 0.3f * dw[i][k] * 1024.0f;
    ck_ok(amp_step_end(&raw.optimizer));
}

TEST_TIMES(a_training_has_the_same_bits, 2 * N_EACH_LEVEL) {
    float early[PARAMS][N];
    for (enum way way = EARLY; way < N_WAYS; way++) {
        start(way, each_level[_i / 2], _i % 2 ? AMP_ON : AMP_OFF);
        for (int step = 0; step < STEPS; step++) train_step(step, way);
        ck_assert_msg(!n_findings(raw.context), "way %d: %zu findings", way, n_findings(raw.context));
        raw_stop(&raw);
        if (way == EARLY) memcpy(early, w, sizeof w);
        ck_assert_mem_eq(early, w, sizeof w);
        ck_assert_float_gt(w[1][0], 1.0f);
    }
}

/* A sum in FP32: 4096 times a thousandth. Rounded at each add it stops growing at 2 or 4. */
TEST_TIMES(a_sum_is_not_rounded, 2 * N_EACH_LEVEL) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const amp_level level = each_level[_i / 2];
    float dy[N];
    if (!level_low(level) || level_retypes(level)) return; /* there sums are 16-bit ones */
    make(backward_schema, LATE);
    if (_i % 2) raw.host.set_grad = set_grad, raw.host.release = release;
    raw_start(&raw, emulated(level, AMP_OFF));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    for (int k = 0; k < N; k++) dy[k] = amp_seed_factor(&scaled) * 0x1p-10f;
    need(0, 0, LATE);
    for (int i = 0; i < 4096; i++) table.backward(dw[0], x, dy, 1.0f, N);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert(dw[0][0] == 4.0f && dw[0][N - 1] == 4.0f);
}

/* What was a gradient's memory is another buffer's: it is rounded in place, and nothing is added to what was there. */
TEST_TIMES(memory_that_was_a_gradient_is_none, 2) {
    start(LATE, AMP_O1, AMP_OFF);
    for (int step = 0; step < 3; step++) train_step(step, LATE);
    float *before = dw[0];
    dw[0] = _i ? pool[2 * PARAMS] : NULL;
    for (int k = 0; k < N; k++) before[k] = 1.0f;
    table.in_place(before, N);
    for (int k = 0; k < N; k++) ck_assert(before[k] == 0x1.554p-2f);
    dw[0] = NULL;
    train_step(3, LATE);
}

/* ---- what is found ---- */

static void backward_once(int i, float beta) {
    float dy[N];
    for (int k = 0; k < N; k++) dy[k] = 0.5f;
    table.backward(dw[i], x, dy, beta, N);
}

/* A shared op adds to the gradient of one parameter and writes over another's. */
TEST_TIMES(each_gradient_is_probed, 2 * N_FP32_LEVELS) {
    start(_i % 2 ? LATE : EARLY, level_where(level_has_fp32, _i / 2), AMP_ON);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    (void)amp_seed_factor(&scaled);
    for (int i = 0; i < PARAMS; i++) need(0, i, LATE), backward_once(i, 1.0f - (float)i);
    ck_assert(found_of(raw.context, "AMP-M28", "linear_back"));
    ck_assert_uint_eq(n_findings(raw.context), 1);
    ck_ok(amp_scale_loss_end(&scaled));
}

/* In one of the first calls for a gradient, whichever; the fifth is not looked at. */
TEST_TIMES(each_of_the_first_calls_is_probed, 2 * 5) {
    const int last = _i / 2;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(EARLY, AMP_O1, AMP_ON);
    multiplies = _i % 2;
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    (void)amp_seed_factor(&scaled);
    for (int i = 0; i < last; i++) backward_once(1, 1.0f);
    ck_assert_uint_eq(n_findings(raw.context), 0);
    backward_once(1, 0.0f);
    ck_assert_int_eq(found_of(raw.context, "AMP-M28", "linear_back") != 0, last < 4);
    ck_assert(dw[1][0] == 0.5f * (float)(last + 1)); /* emulation adds, and what probes made is gone */
    ck_ok(amp_scale_loss_end(&scaled));
}

/* What malloc left in a gradient is told, by its parameter; what an op of the same bracket left is none of that. */
TEST_TIMES(a_new_gradient_that_is_not_zero_is_told, 2 * N_EACH_LEVEL) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const amp_level level = each_level[_i / 2];
    start(LATE, level, AMP_OFF);
    for (int bracket = 0; bracket < 2; bracket++) {
        ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
        (void)amp_seed_factor(&scaled);
        for (int i = 0; i < PARAMS; i++) need(0, i, LATE);
        if (!bracket) dw[1][N - 1] = _i % 2 ? 700.0f : 0.0f;
        for (int i = 0; i < 2 * PARAMS; i++) backward_once(i % PARAMS, 1.0f);
        ck_ok(amp_scale_loss_end(&scaled));
    }
    ck_assert_int_eq(found_of(raw.context, "AMP-M69", "second") != 0, _i % 2 && level_low(level));
    ck_assert(!found_of(raw.context, "AMP-M69", "first"));
}

static const struct {
    const char *schema, *code, *subject;
    amp_switch verify;
} slips[] = {
    { "b(float dw[n], float x[n], float dy[n], float beta, int32 n) -> void", "AMP-M09", "first", AMP_OFF },
    { "b(float(a!) dw[2 * n], float x[n], float dy[n], float beta, int32 n) -> void", "AMP-M27", "linear_back",
      AMP_ON },
    { "b(float(out a!) dw[n], float x[n], float dy[n], float beta, int32 n) -> void", "AMP-M24", "linear_back",
      AMP_ON },
};
enum { N_SLIPS = sizeof slips / sizeof *slips };

TEST_TIMES(a_slip_with_a_late_gradient_is_found, 2 * N_SLIPS) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    make(slips[_i / 2].schema, _i % 2 ? LATE : EARLY);
    raw_start(&raw, emulated(AMP_O1, slips[_i / 2].verify));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    (void)amp_seed_factor(&scaled);
    for (int i = 0; i < PARAMS; i++) need(0, i, LATE), backward_once(i, 1.0f);
    ck_assert_msg(found_of(raw.context, slips[_i / 2].code, slips[_i / 2].subject), "%zu findings",
                  n_findings(raw.context));
    const amp_status status = amp_scale_loss_end(&scaled);
    ck_assert_int_eq(status == AMP_OK, strcmp(slips[_i / 2].code, "AMP-M27") != 0);
}

/* Where backward overwrites, and says so, the gradient is an output like others. */
TEST_TIMES(a_gradient_that_is_overwritten_may_be_an_output, 2 * N_FP32_LEVELS) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    make("b(float(out a!) dw[n], float x[n], float dy[n], float beta, int32 n) -> void", _i % 2 ? LATE : EARLY);
    raw_start(&raw, emulated(level_where(level_has_fp32, _i / 2), AMP_ON));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    (void)amp_seed_factor(&scaled);
    for (int i = 0; i < 2 * PARAMS; i++) {
        need(0, i % PARAMS, LATE), backward_once(i % PARAMS, 0.0f);
        ck_assert(dw[i % PARAMS][N - 1] == 0.5f);
    }
    ck_assert_uint_eq(n_findings(raw.context), 0);
    backward_once(0, 1.0f);
    ck_assert(found_of(raw.context, "AMP-M24", "linear_back"));
    ck_ok(amp_scale_loss_end(&scaled));
}

/* ---- where gradients must not lie ---- */

enum { AT_BEGIN, INSIDE, AT_END, N_TIMES };

/* Heard when the hook first tells of it: at begin, by an op that adds to it, or at the bracket's end; and again, until
 * it is right. */
TEST_TIMES(gradients_that_overlap_are_refused, 2 * N_TIMES) {
    const int when = _i / 2;
    const bool own = _i % 2;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    const char *says = own ? "second: its gradient lies in its own elements"
                           : "the gradients of first and second overlap in memory";
    start(LATE, AMP_O1, AMP_OFF);
    for (int round = 0; round < 2; round++) {
        dw[0] = dw[1] = NULL;
        if (when == AT_BEGIN) dw[0] = pool[0], dw[1] = own ? w[1] : pool[0] + N - 1;
        const amp_status begun = amp_scale_loss_begin(&raw.optimizer, NULL, &scaled);
        ck_assert_int_eq(begun == AMP_OK, when != AT_BEGIN);
        if (begun != AMP_OK) {
            ck_says(says);
            continue;
        }
        (void)amp_seed_factor(&scaled);
        dw[0] = pool[0], dw[1] = own ? w[1] : pool[0] + N - 1;
        if (when == INSIDE) backward_once(0, 1.0f);
        ck_fails(AMP_ERR_CONFLICT, amp_scale_loss_end(&scaled));
        ck_says(says);
    }
    dw[0] = pool[0], dw[1] = pool[1];
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    ck_ok(amp_scale_loss_cancel(&scaled));
}

/* A parameter that joins the optimizer later brings its gradient. */
TEST(a_parameter_that_is_added_has_its_gradient_known) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    float dy[N];
    make(backward_schema, EARLY);
    raw.model.n_params = raw.optimizer.n_params = 1;
    raw_start(&raw, emulated(AMP_O1, AMP_OFF));
    ck_ok(amp_add_params(&raw.optimizer, &raw.params[1], 1));
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    for (int k = 0; k < N; k++) dy[k] = amp_seed_factor(&scaled) * 0x1p-10f;
    for (int i = 0; i < 4096; i++) table.backward(dw[1], x, dy, 1.0f, N);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert(dw[1][0] == 4.0f);
}

/* Frozen at first, and of the model: rounded without a master. The optimizer's updates are smaller than a last bit. */
TEST_TIMES(a_parameter_that_thaws_gets_a_master, 2) {
    amp_master masters[] = { AMP_MASTER_INIT, AMP_MASTER_INIT };
    amp_step_info info = AMP_STEP_INFO_INIT;
    size_t n;
    make(backward_schema, EARLY);
    w[1][0] = 0.30078125f; /* of both types */
    raw.optimizer.n_params = 1;
    raw_start(&raw, emulated(_i ? AMP_O5 : AMP_O2, AMP_OFF));
    ck_ok(amp_add_params(&raw.optimizer, &raw.params[1], 1));
    for (int i = 0; i < 3; i++) {
        ck_ok(amp_step_begin(&raw.optimizer, &info));
        w[1][0] -= 1e-5f;
        ck_ok(amp_step_end(&raw.optimizer));
        ck_assert_float_eq(w[1][0], 0.30078125f);
    }
    ck_ok(amp_master_params(&raw.optimizer, masters, 2, &n));
    ck_assert_int_eq(masters[1].is_master, 1);
    ck_assert_float_eq(*(float *)masters[1].data, ((0.30078125f - 1e-5f) - 1e-5f) - 1e-5f);
}
