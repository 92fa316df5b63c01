/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts' common problem on a table of functions over raw FP32 buffers, emulated at every level: weights and losses
 * must be, bit for bit, those of the training whose casts are written out by hand (tests/hosts/common/reference.c).
 */
#include "../support/levels.h"
#include "problem.h"

#include <amp_all.h>
#include <amp_kernels.h>
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ck_ok(call)                                                                                                    \
    do {                                                                                                               \
        const amp_status status_ = (call);                                                                             \
        ck_assert_msg(status_ == AMP_OK, "%s: %s", amp_status_name(status_), amp_last_error());                        \
    } while (0)

static const amp_level levels[] = { EACH_LEVEL };

static struct {
    void (*linear)(float *, const float *, const float *, const float *, int, int, int);
    void (*linear_backward)(float *, float *, float *, const float *, const float *, const float *, int, int, int);
    void (*norm)(float *, float *, float *, const float *, const float *, const float *, int, int);
    void (*norm_backward)(float *, float *, float *, const float *, const float *, const float *, const float *,
                          const float *, int, int);
    void (*relu)(float *, const float *, int);
    void (*relu_backward)(float *, const float *, const float *, int);
} table;

static const struct {
    const char *name, *schema, *backward_of;
    amp_class op_class;
    size_t offset;
} described[] = {
    { "linear",
      "linear(float(out a!) y[n,outs], float x[n,ins], float w[outs,ins], float b[outs], int n, int ins, int outs) -> "
      "void",
      NULL, 0, 0 },
    { "linear_backward",
      "linear_backward(float(out a!)? dx[n,ins], float(a!) dw[outs,ins], float(a!) db[outs], float dy[n,outs], float "
      "x[n,ins], float w[outs,ins], int n, int ins, int outs) -> void",
      "linear", 0, 1 },
    { "batch_norm",
      "batch_norm(float(out a!) y[n,c], float(keep) mean[c], float(keep) rstd[c], float x[n,c], float gamma[c], float "
      "beta[c], int n, int c) -> void",
      NULL, AMP_FP32, 2 },
    { "batch_norm_backward",
      "batch_norm_backward(float(out a!) dx[n,c], float(a!) dgamma[c], float(a!) dbeta[c], float dy[n,c], float "
      "x[n,c], float(keep) mean[c], float(keep) rstd[c], float gamma[c], int n, int c) -> void",
      "batch_norm", 0, 3 },
    { "relu", "relu(float(out a!) y[n], float x[n], int n) -> void", NULL, AMP_LEAVE, 4 },
    { "relu_backward", "relu_backward(float(out a!) dx[n], float dy[n], float y[n], int n) -> void", NULL, AMP_LEAVE,
      5 },
};
enum { N_OPS = 6 };

struct host {
    float params[PARAM_FLOATS], grads[PARAM_FLOATS], momentum[PARAM_FLOATS]; /* one allocation each */
    amp_buffer buffers[N_PARAMS], grad_buffers[N_PARAMS];
    void *trained[N_PARAMS];
    amp_param listed[N_PARAMS];
    amp_op ops[N_OPS];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
    float x[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
};

static void reset_table(void) {
    table.linear = math_linear;
    table.linear_backward = math_linear_backward;
    table.norm = math_batch_norm;
    table.norm_backward = math_batch_norm_backward;
    table.relu = math_relu;
    table.relu_backward = math_relu_backward;
}

static void describe_params(struct host *host) {
    for (int p = 0; p < N_PARAMS; p++) {
        const struct problem_param *param = &problem_params[p];
        host->buffers[p] = host->grad_buffers[p] = (amp_buffer)AMP_BUFFER_INIT;
        host->buffers[p].data = host->params + param->offset;
        host->grad_buffers[p].data = host->grads + param->offset;
        host->buffers[p].size = host->grad_buffers[p].size = (int64_t)param->size;
        host->buffers[p].grad = &host->grad_buffers[p];
        host->trained[p] = &host->buffers[p];
        host->listed[p] = (amp_param)AMP_PARAM_INIT;
        host->listed[p].tensor = &host->buffers[p];
        host->listed[p].name = param->name;
        host->listed[p].module_kind = param->batch_norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
    }
}

static struct host *new_host(void) {
    struct host *host = calloc(1, sizeof *host);
    ck_assert_ptr_nonnull(host);
    reset_table();
    problem_data(host->x, host->labels);
    problem_start(host->params);
    describe_params(host);
    return host;
}

/* Activations and elementwise gradients pass through ops that the model leaves at O1; at the 16-bit levels they are
 * rounded as everything is. */
static void describe_ops(struct host *host, bool model_is_low) {
    for (int i = 0; i < N_OPS; i++) {
        host->ops[i] = (amp_op)AMP_OP_INIT;
        host->ops[i].name = described[i].name;
        host->ops[i].schema = described[i].schema;
        host->ops[i].backward_of = described[i].backward_of;
        host->ops[i].op_class = model_is_low ? AMP_BY_LIST : described[i].op_class;
        host->ops[i].slot = (amp_fn *)(void *)&table + described[i].offset;
    }
}

static void start(struct host *host, amp_level level, bool dynamic) {
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    const bool model_is_low = level_retypes(level);
    describe_ops(host, model_is_low);
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = amp_buffer_host();
    host->model.ops = host->ops;
    host->model.n_ops = N_OPS;
    host->model.params = host->listed;
    host->model.n_params = N_PARAMS;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.params = host->trained;
    host->optimizer.n_params = N_PARAMS;
    config.level = level;
    config.emulate = AMP_ON;
    if (dynamic) config.init_scale = SCALE;
    else if (level_is_dynamic(level)) config.loss_scale = SCALE;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
}

#define PARAM(p) (host->params + problem_params[p].offset)
#define GRAD(p) (host->grads + problem_params[p].offset)

/* What the framework's forward and backward look like; the loss stands outside of the table. */
static struct {
    float y1[BATCH * HIDDEN], normed[BATCH * HIDDEN], active[BATCH * HIDDEN], mean[HIDDEN], rstd[HIDDEN];
    float logits[BATCH * CLASSES], p[BATCH * CLASSES], dlogits[BATCH * CLASSES];
    float dactive[BATCH * HIDDEN], dnormed[BATCH * HIDDEN], dy1[BATCH * HIDDEN];
} act;

static float forward(struct host *host, const float *x, const int32_t *labels) {
    table.linear(act.y1, x, PARAM(W1), PARAM(B1), BATCH, INPUTS, HIDDEN);
    table.norm(act.normed, act.mean, act.rstd, act.y1, PARAM(GAMMA), PARAM(BETA), BATCH, HIDDEN);
    table.relu(act.active, act.normed, BATCH * HIDDEN);
    table.linear(act.logits, act.active, PARAM(W2), PARAM(B2), BATCH, HIDDEN, CLASSES);
    return math_cross_entropy(act.p, act.logits, labels, BATCH, CLASSES);
}

static void backward(struct host *host, const float *x, const int32_t *labels, float seed) {
    math_cross_entropy_backward(act.dlogits, act.p, labels, seed, BATCH, CLASSES);
    table.linear_backward(act.dactive, GRAD(W2), GRAD(B2), act.dlogits, act.active, PARAM(W2), BATCH, HIDDEN, CLASSES);
    table.relu_backward(act.dnormed, act.dactive, act.active, BATCH * HIDDEN);
    table.norm_backward(act.dy1, GRAD(GAMMA), GRAD(BETA), act.dnormed, act.y1, act.mean, act.rstd, PARAM(GAMMA), BATCH,
                        HIDDEN);
    table.linear_backward(NULL, GRAD(W1), GRAD(B1), act.dy1, x, PARAM(W1), BATCH, INPUTS, HIDDEN);
}

static bool step(struct host *host, int number, float *loss) {
    const float *x = host->x + number % BATCHES * BATCH * INPUTS;
    const int32_t *labels = host->labels + number % BATCHES * BATCH;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    *loss = forward(host, x, labels);
    ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
    backward(host, x, labels, amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&host->optimizer, &info));
    if (info.action == AMP_STEP) math_sgd(host->params, host->momentum, host->grads, PARAM_FLOATS);
    memset(host->grads, 0, sizeof host->grads);
    ck_ok(amp_step_end(&host->optimizer));
    return info.action == AMP_STEP;
}

static void train(struct host *host, int from, int to, struct curve *curve) {
    for (int i = from; i < to; i++) ck_assert(step(host, i, &curve->loss[i]));
}

TEST_TIMES(it_is_the_training_with_casts_by_hand, 6) {
    static struct curve wanted, got;
    const amp_level level = levels[_i];
    struct host *host = new_host();
    reference_train(_i, level_is_dynamic(level) ? SCALE : 1.0f, &wanted);
    start(host, level, false);
    train(host, 0, STEPS, &got);
    ck_ok(amp_shutdown(host->context)); /* the masters' values are the parameters again */
    memcpy(got.params, host->params, sizeof got.params);
    ck_assert_mem_eq(got.loss, wanted.loss, sizeof got.loss);
    ck_assert_mem_eq(got.params, wanted.params, sizeof got.params);
    ck_assert(table.linear == math_linear && table.relu_backward == math_relu_backward);
    ck_assert_float_lt(got.loss[STEPS - 1], 0.2f * got.loss[0]); /* and it learns */
    free(host);
}

/* Powers of two change nothing while nothing overflows; what overflows is skipped, and nothing stays behind. */
TEST_TIMES(a_dynamic_scale_gives_the_same_bits_and_a_skip_leaves_nothing, 2) {
    static struct curve wanted, got;
    const amp_level level = _i ? AMP_O2 : AMP_O1;
    struct host *host = new_host();
    float before[PARAM_FLOATS], momentum[PARAM_FLOATS], loss;
    reference_train(_i ? 2 : 1, SCALE, &wanted);
    start(host, level, true);
    train(host, 0, 10, &got);
    memcpy(before, host->params, sizeof before);
    memcpy(momentum, host->momentum, sizeof momentum);
    const float kept = host->x[10 * BATCH * INPUTS % (SAMPLES * INPUTS)];
    host->x[10 % BATCHES * BATCH * INPUTS] = 1e30f; /* infinite in fp16 */
    ck_assert(!step(host, 10, &loss));
    host->x[10 % BATCHES * BATCH * INPUTS] = kept;
    ck_assert_mem_eq(host->params, before, sizeof before);
    ck_assert_mem_eq(host->momentum, momentum, sizeof momentum);
    train(host, 10, STEPS, &got);
    ck_ok(amp_shutdown(host->context));
    ck_assert_mem_eq(got.loss, wanted.loss, sizeof got.loss);
    ck_assert_mem_eq(host->params, wanted.params, sizeof wanted.params);
    free(host);
}

/* ---- the parameters' block ---- */

static float through(amp_level level, float x) {
    return level == AMP_O5 ? amp_bfloat16_to_float(amp_float_to_bfloat16(x)) : amp_half_to_float(amp_float_to_half(x));
}

static const amp_level low_levels[] = { AMP_O2, AMP_O3, AMP_O5 };

TEST_TIMES(the_hosts_block_holds_what_16_bits_hold, 3) {
    static struct curve curve;
    const amp_level level = low_levels[_i];
    struct host *host = new_host();
    float start_values[PARAM_FLOATS];
    amp_master masters[N_PARAMS] = { AMP_MASTER_INIT };
    size_t n;
    for (int p = 0; p < N_PARAMS; p++) masters[p] = (amp_master)AMP_MASTER_INIT;
    memcpy(start_values, host->params, sizeof start_values);
    start(host, level, false);
    train(host, 0, 5, &curve);
    ck_ok(amp_master_params(&host->optimizer, masters, N_PARAMS, &n));
    ck_assert_uint_eq(n, N_PARAMS);
    for (int p = 0; p < N_PARAMS; p++) {
        const bool low = level == AMP_O3 || !problem_params[p].batch_norm;
        ck_assert_int_eq(masters[p].is_master, low && level != AMP_O3);
        ck_assert_int_eq(masters[p].dtype, AMP_FLOAT32);
        for (size_t i = 0; i < problem_params[p].size; i++) {
            const float exact = ((const float *)masters[p].data)[i], shown = PARAM(p)[i];
            ck_assert_float_eq(shown, low ? through(level, exact) : exact);
        }
    }
    ck_ok(amp_shutdown(host->context));
    ck_assert_mem_ne(host->params, start_values, sizeof start_values);
    free(host);
}

/* An initialize that fails at its very end, and a shutdown without a step, give back the exact values. */
TEST_TIMES(what_never_trained_comes_back_bit_for_bit, 3) {
    struct host *host = new_host();
    float start_values[PARAM_FLOATS];
    memcpy(start_values, host->params, sizeof start_values);
    start(host, low_levels[_i], false);
    ck_assert_mem_ne(host->params, start_values, sizeof start_values);
    ck_ok(amp_shutdown(host->context));
    if (low_levels[_i] != AMP_O3) ck_assert_mem_eq(host->params, start_values, sizeof start_values);
    else
        for (int i = 0; i < PARAM_FLOATS; i++) ck_assert_float_eq(host->params[i], through(AMP_O3, start_values[i]));
    free(host);
}

/* The host loads its FP32 checkpoint in mid-run: nobody tells libamp, and no bit is lost. */
TEST(what_the_host_loads_becomes_the_master) {
    static struct curve curve;
    struct host *host = new_host();
    float loaded[PARAM_FLOATS];
    start(host, AMP_O2, false);
    train(host, 0, 3, &curve);
    for (int i = 0; i < PARAM_FLOATS; i++) loaded[i] = sinf((float)i) / 3.0f;
    memcpy(host->params, loaded, sizeof loaded);
    ck_ok(amp_masters_reconcile(host->context));
    for (size_t i = 0; i < problem_params[W1].size; i++) ck_assert_float_eq(PARAM(W1)[i], through(AMP_O2, loaded[i]));
    ck_ok(amp_shutdown(host->context));
    ck_assert_mem_eq(host->params, loaded, sizeof loaded);
    free(host);
}

TEST_TIMES(resume_is_bit_exact, N_EACH_LEVEL) {
    static struct curve whole, resumed;
    static char state[1 << 20];
    const amp_level level = levels[_i];
    struct host *host = new_host(), *other = new_host();
    float params[PARAM_FLOATS];
    size_t size;
    start(host, level, false);
    train(host, 0, 25, &whole);
    const amp_status saved = amp_state_save_memory(host->context, AMP_STATE_SAFETENSORS, state, sizeof state, &size);
    if (saved == AMP_ERR_UNSUPPORTED) return; /* built without JSON */
    ck_ok(saved);
    memcpy(other->params, host->params, sizeof params); /* the host's own checkpoint */
    memcpy(other->momentum, host->momentum, sizeof params);
    train(host, 25, STEPS, &whole);
    ck_ok(amp_shutdown(host->context));
    reset_table();
    start(other, level, false);
    ck_ok(amp_state_load_memory(other->context, state, size));
    train(other, 25, STEPS, &resumed);
    ck_ok(amp_shutdown(other->context));
    ck_assert_mem_eq(other->params, host->params, sizeof params);
    ck_assert_mem_eq(resumed.loss + 25, whole.loss + 25, (STEPS - 25) * sizeof(float));
    free(host);
    free(other);
}

/* ---- what is rounded, and what is not ---- */

static void relu_once(struct host *host, bool rounded) {
    const float exact[2] = { 1.0f + 0x1p-20f, 2.0f };
    float y[2];
    table.relu(y, exact, 2);
    ck_assert_float_eq(y[0], rounded ? 1.0f : exact[0]);
    (void)host;
}

static float (*model_forward)(void *self);
static struct host *forward_of;
static float run_model(void *self) {
    relu_once(self, true);
    return 1.0f;
}

TEST(with_a_forward_what_runs_outside_is_not_the_model) {
    struct host *host = new_host();
    amp_op described_forward = AMP_OP_INIT;
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_scope scope;
    start(host, AMP_O2, false); /* fills the descriptors */
    relu_once(host, true);      /* no forward is described: every op is the model's */
    ck_ok(amp_shutdown(host->context));
    model_forward = run_model;
    forward_of = host;
    described_forward.name = "forward";
    described_forward.schema = "forward(pointer self) -> float";
    described_forward.slot = (amp_fn *)(void *)&model_forward;
    host->model.forward = &described_forward;
    host->model.self = host;
    config.level = AMP_O2;
    config.emulate = AMP_ON;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
    relu_once(host, false);
    ck_assert_float_eq(model_forward(host), 1.0f);
    ck_ok(amp_scope_enter(host->context, &scope));
    relu_once(host, true);
    ck_ok(amp_scope_leave(&scope));
    ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
    relu_once(host, true);
    ck_ok(amp_scale_loss_cancel(&scaled));
    relu_once(host, false);
    ck_ok(amp_check(host->context));
    ck_ok(amp_shutdown(host->context));
    free(host);
}

TEST(an_op_that_is_left_is_not_the_model) {
    struct host *host = new_host();
    char text[256];
    describe_ops(host, true);
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.ops = host->ops;
    host->model.n_ops = N_OPS;
    host->model.host = amp_buffer_host();
    ck_ok(amp_register(&host->model, "relu", AMP_LEAVE));
    host->ops[5].backward_of = "relu";
    amp_model *model = &host->model;
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O5;
    config.emulate = AMP_ON;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host->context));
    ck_assert(table.relu == math_relu && table.relu_backward == math_relu_backward);
    ck_assert(table.linear != math_linear);
    relu_once(host, false);
    ck_ok(amp_explain(host->context, "relu", text, sizeof text, NULL));
    ck_assert_str_eq(text, "relu: leave (registered)\n");
    ck_ok(amp_explain(host->context, "linear", text, sizeof text, NULL));
    ck_assert_str_eq(text, "linear: lower (emulated: every op of the model is rounded), wrapped\n");
    ck_ok(amp_shutdown(host->context));
    free(host);
}

/* At O3 there is no master to take an exact gradient: unscaling rounds it, and what the type cannot hold overflows. */
TEST(without_masters_unscaled_gradients_are_rounded) {
    struct host *host = new_host();
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(host, AMP_O3, false);
    ck_ok(amp_shutdown(host->context));
    config.level = AMP_O3;
    config.emulate = AMP_ON;
    config.loss_scale = 0.5f;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &host->context));
    ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 0.5f);
    GRAD(W1)[0] = 1.0f + 0x1p-10f + 0x1p-12f;
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_STEP);
    ck_assert_float_eq(GRAD(W1)[0], 2.0f * (1.0f + 0x1p-10f));
    ck_ok(amp_scale_loss_begin(&host->optimizer, NULL, &scaled));
    ck_assert_float_eq(amp_seed_factor(&scaled), 0.5f);
    GRAD(W2)[3] = 40000.0f; /* 80000 is infinite in fp16 */
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(scaled.action, AMP_SKIP);
    amp_record record = AMP_RECORD_INIT;
    ck_ok(amp_get_record(host->context, 0, &record));
    ck_assert_str_eq(record.first_nonfinite, "linear2.weight");
    ck_ok(amp_shutdown(host->context));
    free(host);
}
