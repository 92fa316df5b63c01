/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16-bit models on hosts with raw buffers, not emulated: the host's FP32 block is the master, and its ops get 16-bit
 * copies of it. The hosts' common problem, by implementations whose arithmetic is that of emulation, has the bits of
 * the training whose casts are written out by hand (docs/reference/buffers.md).
 */
#include "levels.h"
#include "problem_rig.h"

#include <amp_diagnostics.h>
#include <amp_observe.h>
#include <amp_train.h>
#include <math.h>
#include <stdio.h>

static amp_level level_of(int i) { return level_where(level_has_masters, i); }

static amp_dtype low;

/* ---- implementations: 16-bit operands, FP32 arithmetic, results rounded ---- */

enum { MOST = BATCH * HIDDEN };
static float operands[4][MOST];

static float *widen(int i, const uint16_t *x, int n) {
    for (int k = 0; k < n; k++)
        operands[i][k] = low == AMP_FLOAT16 ? amp_half_to_float(x[k]) : amp_bfloat16_to_float(x[k]);
    return operands[i];
}

static uint16_t narrow(float x) { return low == AMP_FLOAT16 ? amp_float_to_half(x) : amp_float_to_bfloat16(x); }

static float through(float x) {
    return low == AMP_FLOAT16 ? amp_half_to_float(narrow(x)) : amp_bfloat16_to_float(narrow(x));
}

static void store(uint16_t *y, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] = narrow(x[i]);
}

static const uint16_t *seen_weight; /* what an op got last */

static void linear(uint16_t *y, const uint16_t *x, const uint16_t *w, const uint16_t *b, int n, int ins, int outs) {
    float sums[MOST];
    seen_weight = w;
    math_linear(sums, widen(0, x, n * ins), widen(1, w, outs * ins), widen(2, b, outs), n, ins, outs);
    store(y, sums, n * outs);
}

/* A 16-bit gradient in an FP32 buffer. */
static void add_rounded(float *sum, const float *x, int n) {
    for (int i = 0; i < n; i++) sum[i] = through(sum[i] + through(x[i]));
}

static void linear_backward(uint16_t *dx, float *dw, float *db, const uint16_t *dy, const uint16_t *x,
                            const uint16_t *w, int n, int ins, int outs) {
    float dx_sums[MOST], dw_sums[HIDDEN * INPUTS] = { 0 }, db_sums[HIDDEN] = { 0 };
    math_linear_backward(dx ? dx_sums : NULL, dw_sums, db_sums, widen(0, dy, n * outs), widen(1, x, n * ins),
                         widen(2, w, outs * ins), n, ins, outs);
    if (dx) store(dx, dx_sums, n * ins);
    add_rounded(dw, dw_sums, outs * ins);
    add_rounded(db, db_sums, outs);
}

static void norm(uint16_t *y, float *mean, float *rstd, const uint16_t *x, const float *gamma, const float *beta, int n,
                 int channels) {
    float out[MOST];
    math_batch_norm(out, mean, rstd, widen(0, x, n * channels), gamma, beta, n, channels);
    store(y, out, n * channels);
}

static void norm_backward(uint16_t *dx, float *dgamma, float *dbeta, const uint16_t *dy, const uint16_t *x,
                          const float *mean, const float *rstd, const float *gamma, int n, int channels) {
    float out[MOST];
    math_batch_norm_backward(out, dgamma, dbeta, widen(0, dy, n * channels), widen(1, x, n * channels), mean, rstd,
                             gamma, n, channels);
    store(dx, out, n * channels);
}

static void relu(uint16_t *y, const uint16_t *x, int n) {
    math_relu(operands[1], widen(0, x, n), n);
    store(y, operands[1], n);
}

static void relu_backward(uint16_t *dx, const uint16_t *dy, const uint16_t *y, int n) {
    math_relu_backward(operands[2], widen(0, dy, n), widen(1, y, n), n);
    store(dx, operands[2], n);
}

static const amp_fn implementations[N_PLAIN_OPS] = { (amp_fn)linear, (amp_fn)linear_backward, (amp_fn)norm,
                                                     (amp_fn)norm_backward, (amp_fn)relu, (amp_fn)relu_backward };

/* ---- the host ---- */

static void describe(amp_level level) {
    low = level_low(level);
    describe_params();
    for (int i = 0; i < N_PLAIN_OPS; i++)
        raw_op(&raw, OP(plain_ops[i].name, plain_ops[i].schema, plain_slot(&plain, i), .fp16 = implementations[i],
                        .bf16 = implementations[i], .backward_of = plain_ops[i].backward_of));
    raw.ops[PLAIN_LOSS].op_class = raw.ops[PLAIN_LOSS_BACKWARD].op_class = AMP_LEAVE;
}

static amp_context *start(const amp_config *config) {
    describe(config->level);
    raw_start(&raw, *config);
    return raw.context;
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(NULL, tear_down)

TEST_TIMES(it_is_the_training_with_casts_by_hand, N_MASTER_LEVELS) {
    struct curve wanted, got;
    kit_train(&host, kit_config(level_of(_i)), &got);
    kit_reference(level_of(_i), &wanted);
    ck_assert_mem_eq(&got, &wanted, sizeof got);
}

TEST_TIMES(resume_is_bit_exact, N_MASTER_LEVELS) { kit_resume(&host, level_of(_i)); }

TEST(steps_are_skipped_and_nothing_moves) { kit_overflow(&host, AMP_O2); }

TEST_TIMES(it_is_sound, N_MASTER_LEVELS) { kit_sound(&host, level_of(_i)); }

/* ---- whose memory is what ---- */

TEST_TIMES(the_hosts_block_is_the_master, N_MASTER_LEVELS) {
    amp_master masters[N_PARAMS] = { AMP_MASTER_INIT };
    size_t n, exact = 0;
    start_at(level_of(_i));
    for (int i = 0; i < 5; i++) ck_assert(iterate(i, NULL));
    ck_ok(amp_master_params(&raw.optimizer, masters, N_PARAMS, &n));
    for (int p = 0; p < N_PARAMS; p++) ck_assert_ptr_eq(masters[p].data, plain_param(&plain, p));
    for (size_t i = 0; i < problem_params[W2].size; i++) {
        const float x = plain_param(&plain, W2)[i];
        exact += x < through(x) || x > through(x);
    }
    ck_assert_uint_gt(exact, problem_params[W2].size / 2); /* it holds what 16 bits do not */
    ck_explains(raw.context, NULL, "masters the host's own fp32");
    ck_assert_str_eq(explanation(raw.context, "linear"),
                     "linear: lower (a 16-bit model: by its implementation), wrapped\n");
}

/* Two bytes a weight more than FP32, where emulation has four for its master, and copies besides. */
TEST_TIMES(a_copy_is_all_it_takes, N_MASTER_LEVELS) {
    amp_memory memory = AMP_MEMORY_INIT, predicted = AMP_MEMORY_INIT;
    const size_t norms = problem_params[GAMMA].size + problem_params[BETA].size;
    amp_config config = kit_config(level_of(_i));
    config.observe = AMP_ON;
    (void)start(&config);
    ck_ok(amp_observe(raw.context, &SIZED(amp_observe_options, .every = 1)));
    for (int i = 0; i < 3; i++) ck_assert(iterate(i, NULL));
    (void)plain_forward(&plain, 3);
    ck_ok(amp_get_memory(raw.context, &memory));
    ck_assert_uint_eq(memory.weights, 4 * PARAM_FLOATS);
    ck_assert_uint_eq(memory.masters + memory.master_gradients, 0);
    ck_assert_uint_eq(memory.casts, 2 * (PARAM_FLOATS - norms));
    ck_ok(amp_predict_memory(raw.context, level_of(_i), &predicted));
    ck_assert_uint_eq(predicted.weights, memory.weights);
    ck_assert_uint_eq(predicted.masters + predicted.master_gradients, 0);
    ck_assert_uint_eq(predicted.casts, 2 * PARAM_FLOATS);
}

/* At a scale that is always 1 there is nothing to undo, and a gradient needs no copy, as at O4; else there is. */
TEST_TIMES(gradients_are_set_aside_for_a_scale_alone, N_MASTER_LEVELS) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start_at(level_of(_i));
    plain.grads[0] = 3.0f;
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    plain.grads[0] = 7.0f;
    ck_ok(amp_scale_loss_cancel(&scaled));
    ck_assert_float_eq(plain.grads[0], level_is_dynamic(level_of(_i)) ? 3.0f : 7.0f);
}

/* A file that is loaded, an average swapped in: nobody tells libamp. */
TEST_TIMES(what_the_host_writes_is_seen_at_once, N_MASTER_LEVELS) {
    float loaded[PARAM_FLOATS];
    start_at(level_of(_i));
    for (int i = 0; i < 3; i++) ck_assert(iterate(i, NULL));
    (void)plain_forward(&plain, 3);
    for (int i = 0; i < PARAM_FLOATS; i++) loaded[i] = sinf((float)i) / 3.0f;
    memcpy(plain.params, loaded, sizeof loaded);
    (void)plain_forward(&plain, 3);
    for (size_t i = 0; i < problem_params[W2].size; i++)
        ck_assert_uint_eq(seen_weight[i], narrow(loaded[problem_params[W2].offset + i]));
    finish(NULL);
    ck_assert_mem_eq(plain.params, loaded, sizeof loaded);
}

/* Masters are masters: saved by emulation, resumed here, and the other way round. */
TEST_TIMES(emulations_checkpoints_are_its_own, N_MASTER_LEVELS) {
    static char saved[1 << 16];
    struct kit_state state;
    float wanted[PARAM_FLOATS], got[PARAM_FLOATS];
    size_t size;
    for (int turn = 0; turn < 2; turn++) {
        amp_config config = kit_config(level_of(_i));
        config.emulate = turn ? AMP_ON : AMP_DEFAULT;
        amp_context *context = start(&config);
        for (int i = 0; i < 20; i++) ck_assert(iterate(i, NULL));
        read_state(&state);
        ck_ok(amp_state_save_memory(context, AMP_STATE_SAFETENSORS, saved, sizeof saved, &size));
        for (int i = 20; i < 30; i++) ck_assert(iterate(i, NULL));
        finish(wanted);
        config.emulate = turn ? AMP_DEFAULT : AMP_ON;
        context = start(&config);
        write_state(&state);
        ck_ok(amp_state_load_memory(context, saved, size));
        for (int i = 20; i < 30; i++) ck_assert(iterate(i, NULL));
        finish(got);
        ck_assert_mem_eq(got, wanted, sizeof got);
    }
}

/* Nothing of the block is changed, so others may read it. */
TEST(another_context_reads_the_same_block) {
    float before[PARAM_FLOATS];
    amp_context *other;
    amp_config config = AMP_CONFIG_INIT;
    start_at(AMP_O5);
    struct raw second = raw;
    amp_model *model = &second.model;
    second.model.amp = NULL, second.model.n_ops = 0;
    memcpy(before, plain.params, sizeof before);
    config.level = AMP_O4;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &other));
    ck_ok(amp_shutdown(other));
    ck_assert_mem_eq(plain.params, before, sizeof before);
}

/* ---- what stands in the way ---- */

static size_t codes(const char *code, char *message, size_t capacity) {
    amp_finding found[16] = { AMP_FINDING_INIT };
    size_t n, matches = 0;
    ck_ok(amp_get_findings(raw.context, found, 16, &n));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(found[i].code, code)) {
            matches++;
            snprintf(message, capacity, "%s", found[i].message);
        }
    return matches;
}

static void handles(void *x) { (void)x; }
static void (*handles_slot)(void *) = handles;

/* It reads the master, and is named. */
TEST(an_op_without_an_implementation_is_named) {
    char message[512];
    float loss, first;
    describe(AMP_O5);
    raw.ops[PLAIN_LINEAR_BACKWARD].bf16 = NULL;
    raw.ops[PLAIN_RELU].bf16 = raw.ops[PLAIN_RELU].fp16 = NULL; /* it has nothing to do with parameters */
    raw_start(&raw, kit_config(AMP_O5));
    ck_assert_uint_eq(codes("AMP-M21", message, sizeof message), 1);
    ck_assert(strstr(message, "op linear_backward takes raw FP32 buffers and has no bf16 implementation"));
    ck_assert_str_eq(explanation(raw.context, "relu"), "relu: leave (this level casts no ops)\n");
    ck_assert(iterate(0, &first));
    for (int i = 1; i < STEPS; i++) ck_assert(iterate(i, &loss));
    ck_assert_float_lt(loss, 0.5f * first);
}

TEST(so_is_one_that_the_lists_call_low) {
    char message[512];
    describe(AMP_O5);
    raw.ops[PLAIN_LINEAR].bf16 = NULL;
    raw_start(&raw, kit_config(AMP_O5));
    ck_assert_uint_eq(codes("AMP-M21", message, sizeof message), 1);
    ck_assert(strstr(message, "op linear takes raw FP32 buffers and has no bf16 implementation"));
}

/* Verify sees a batch norm read 16-bit weights, which are batch norm's own where the host says so. */
TEST_TIMES(norms_that_are_not_said_are_told, 2) {
    char message[512];
    amp_config config = kit_config(AMP_O5);
    config.verify = AMP_ON;
    describe(AMP_O5);
    if (_i) raw.params[GAMMA].module_kind = AMP_MODULE_OTHER;
    raw.ops[PLAIN_NORM].bf16 = NULL;
    raw_start(&raw, config);
    (void)plain_forward(&plain, 0);
    ck_assert_uint_eq(codes("AMP-M64", message, sizeof message), (unsigned)_i);
    if (_i) ck_assert(strstr(message, "op batch_norm reads norm.weight"));
}

/* A model of handles whose parameters nobody listed: its ops go by their arguments' types, as ever. */
TEST(ops_on_handles_are_not_lowered) {
    describe(AMP_O5);
    raw.model.n_params = raw.optimizer.n_params = 0;
    raw.ops[PLAIN_RELU] = OP("relu", "f(Tensor x) -> void", &handles_slot, .bf16 = (amp_fn)handles);
    raw_start(&raw, kit_config(AMP_O5));
    ck_assert_str_eq(explanation(raw.context, "relu"), "relu: leave (this level casts no ops), wrapped\n");
}

TEST(a_registered_class_keeps_an_op_out) {
    describe(AMP_O5);
    ck_ok(amp_register(&raw.model, "relu", AMP_LEAVE));
    raw_start(&raw, kit_config(AMP_O5));
    ck_assert_str_eq(explanation(raw.context, "relu"), "relu: leave (registered), wrapped\n");
}

static const struct {
    const char *what, *says;
    amp_level level;
    amp_switch masters;
} refused[] = {
    { "without masters", "without masters its updates are 16-bit", AMP_O3, AMP_DEFAULT },
    { "masters switched off", "without masters its updates are 16-bit", AMP_O2, AMP_OFF },
    { "handles", "Without it use O1 or O4", AMP_O5, AMP_DEFAULT },
    { "no ops", "Without it use O1 or O4", AMP_O5, AMP_DEFAULT },
    { "nothing in 16 bits", "no op takes raw parameters in 16 bits, and there is no hook swap_data: give linear a bf16 "
      "implementation", AMP_O5, AMP_DEFAULT },
};

TEST_TIMES(what_cannot_be_is_refused, (int)(sizeof refused / sizeof *refused)) {
    amp_config config = CONFIG(refused[_i].level, .master_weights = refused[_i].masters);
    describe(refused[_i].level);
    if (!strcmp(refused[_i].what, "handles")) raw.ops[PLAIN_RELU] = OP("relu", "f(Tensor x) -> void", &handles_slot);
    if (!strcmp(refused[_i].what, "no ops")) raw.model.n_ops = 0;
    for (int i = 0; !strcmp(refused[_i].what, "nothing in 16 bits") && i < N_PLAIN_OPS; i++) raw.ops[i].bf16 = NULL;
    ck_refused(AMP_ERR_MISSING_HOOK, refused[_i].says, raw_initialize(&raw, config));
    ck_assert_mem_eq(&plain.ops, &plain_functions, sizeof plain.ops);
}

TEST(masters_may_be_asked_for) {
    const amp_config config = CONFIG(AMP_O3, .master_weights = AMP_ON, .keep_batchnorm_fp32 = AMP_ON);
    describe(AMP_O3);
    raw_start(&raw, config);
    ck_assert(iterate(0, NULL));
    ck_explains(raw.context, NULL, "masters the host's own fp32");
}

TEST(weights_that_do_not_fit_are_told_of) {
    char message[512];
    describe(AMP_O2);
    plain_param(&plain, W1)[HIDDEN * INPUTS - 1] = 1e6f;
    plain_param(&plain, W2)[0] = plain_param(&plain, W2)[1] = -1e5f;
    plain_param(&plain, GAMMA)[0] = 1e6f; /* batch norm's stay FP32 */
    raw_start(&raw, kit_config(AMP_O2));
    ck_assert_uint_eq(codes("AMP-M19", message, sizeof message), 1);
    ck_assert_msg(strstr(message, "3 weights too large"), "%s", message);
    ck_assert_msg(strstr(message, "in linear1.weight (1), linear2.weight (2)"), "%s", message);
}

/* Frozen at first, trained from then on. */
TEST(parameters_may_come_late) {
    describe(AMP_O5);
    raw.optimizer.n_params--; /* the last bias */
    raw_start(&raw, kit_config(AMP_O5));
    ck_ok(amp_add_params(&raw.optimizer, &raw.params[B2], 1));
    ck_assert(iterate(0, NULL));
    ck_assert_float_eq(plain.grads[0], 0.0f);
}

static amp_status pass(void *self, double *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    (void)self;
    *loss = (double)plain_forward(&plain, 0);
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    plain_backward(&plain, 0, amp_seed_factor(&scaled));
    return amp_scale_loss_end(&scaled);
}

TEST_TIMES(it_agrees_with_fp32_as_far_as_rounding_goes, N_MASTER_LEVELS) {
    float before[PARAM_FLOATS];
    start_at(level_of(_i));
    memcpy(before, plain.params, sizeof before);
    ck_ok(amp_verify_step(raw.context, pass, NULL));
    ck_assert_mem_eq(plain.params, before, sizeof before);
}
