/* SPDX-License-Identifier: Apache-2.0 */
/* Raw buffers: a table of functions on float *, which schemas with extents describe. */
#include "kit.h"
#include "mistakes.h"

#include <amp_call.h>

#include "plain.h"
#include "raw.h"

#include <stdbool.h>
#include <stdio.h>

static struct host {
    struct plain plain;
    void (*step)(struct host *self);
    void (*zero_grad)(struct host *self);
    float unused[PARAM_FLOATS];
    struct raw raw;
    bool has_gradients; /* comes_late: backward has run */
    amp_op step_op, zero_grad_op;
    amp_scaled_loss scaled;
} h;

static void sgd_step(struct host *self) {
    if (!mistake(RAW_OTHER_SELF_STANDS)) plain_update(&self->plain);
}
static void sgd_zero_grad(struct host *self) { memset(self->plain.grads, 0, sizeof self->plain.grads); }

/* Right as long as nothing else is wrong: the hook tells of gradients once there are any. */
static bool comes_late(void) {
    return mistake(RAW_LATE_GRADIENT_IS_READ) || mistake(RAW_LATE_GRADIENT_IS_OUTPUT) ||
           mistake(RAW_LATE_GRADIENT_TOO_LARGE) || mistake(RAW_LATE_GRADIENTS_OVERLAP);
}

static amp_status late_grad(void *self, void *tensor, void **grad) {
    (void)self;
    *grad = h.has_gradients ? ((amp_buffer *)tensor)->grad : NULL;
    return AMP_OK;
}

/* An op that many layers share, with cblas's beta of 0 for one of them. */
static void assigning_backward(float *dx, float *dw, float *db, const float *dy, const float *x, const float *w, int n,
                               int in, int out) {
    if (in == INPUTS) memset(dw, 0, (size_t)(in * out) * sizeof *dw);
    plain_functions.linear_backward(dx, dw, db, dy, x, w, n, in, out);
}

/* Mistakes that are one word of a schema. */
static const struct {
    enum mistake_id id;
    int op;
    const char *schema;
} misdescribed[] = {
    { RAW_SCHEMA_SYNTAX, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float x[N,I] float w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_UNKNOWN_EXTENT, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float x[N,K], float w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_ONLY_POINTERS, PLAIN_LINEAR,
      "f(pointer y, pointer x, pointer w, pointer b, int32 N, int32 I, int32 O) -> void" },
    { RAW_OUTPUT_IS_READ, PLAIN_LINEAR,
      "f(float y[N,O], float x[N,I], float w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_INPUT_IS_WRITTEN, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float(out c!) x[N,I], float w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_WEIGHT_IS_KEPT, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float x[N,I], float(keep) w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_WEIGHT_IS_WRITTEN, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float x[N,I], float(c!) w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
    { RAW_PARAMETER_TOO_LARGE, PLAIN_LINEAR,
      "f(float(out a!) y[N,O], float x[N,I], float w[O,I], float b[O,I], int32 N, int32 I, int32 O) -> void" },
    { RAW_GRADIENT_IS_READ, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float dw[O,I], float(c!) db[O], float dy[N,O], float x[N,I], float w[O,I], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_LATE_GRADIENT_IS_READ, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float dw[O,I], float(c!) db[O], float dy[N,O], float x[N,I], float w[O,I], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_GRADIENT_IS_OUTPUT, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float(out b!) dw[O,I], float(c!) db[O], float dy[N,O], float x[N,I], float w[O,I], "
      "int32 N, int32 I, int32 O) -> void" },
    { RAW_LATE_GRADIENT_IS_OUTPUT, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float(out b!) dw[O,I], float(c!) db[O], float dy[N,O], float x[N,I], float w[O,I], "
      "int32 N, int32 I, int32 O) -> void" },
    { RAW_GRADIENT_TOO_LARGE, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float(b!) dw[O,I], float(c!) db[O,I], float dy[N,O], float x[N,I], float w[O,I], "
      "int32 N, int32 I, int32 O) -> void" },
    { RAW_LATE_GRADIENT_TOO_LARGE, PLAIN_LINEAR_BACKWARD,
      "f(float?(out a!) dx[N,I], float(b!) dw[O,I], float(c!) db[O,I], float dy[N,O], float x[N,I], float w[O,I], "
      "int32 N, int32 I, int32 O) -> void" },
    { RAW_OUTPUT_TOO_SMALL, PLAIN_LINEAR,
      "f(float(out a!) y[N - 1,O], float x[N,I], float w[O,I], float b[O], int32 N, int32 I, int32 O) -> void" },
};

/* The 16-bit implementation of linear, with a slip. */
static void low_linear(amp_dtype type, float *y, const float *x, const float *w, const float *b, int n, int i, int o) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    if (mistake(RAW_LOW_SWAPPED)) type = type == AMP_FLOAT16 ? AMP_BFLOAT16 : AMP_FLOAT16;
    g.m = n, g.n = o, g.k = i, g.a = x, g.b = w, g.bias = b, g.d = y;
    g.a_dtype = g.b_dtype = g.bias_dtype = g.d_dtype = type;
    g.transpose_b = !mistake(RAW_LOW_TRANSPOSED);
    if (mistake(RAW_LOW_WRITES_FP32)) g.d_dtype = AMP_FLOAT32;
    if (mistake(RAW_LOW_LEADING)) g.k--; /* and so much lie rows apart */
    (void)hear(amp_matmul(&g));
}

static void fp16_linear(float *y, const float *x, const float *w, const float *b, int n, int i, int o) {
    low_linear(AMP_FLOAT16, y, x, w, b, n, i, o);
}

static void bf16_linear(float *y, const float *x, const float *w, const float *b, int n, int i, int o) {
    low_linear(AMP_BFLOAT16, y, x, w, b, n, i, o);
}

static void describe_ops(void) {
    static char own[N_PLAIN_OPS][32];
    amp_op *ops = h.raw.ops;
    for (int i = 0; i < N_PLAIN_OPS; i++) {
        const struct plain_op *described = &plain_ops[i];
        amp_op *op = raw_op(&h.raw, OP(described->name, described->schema, plain_slot(&h.plain, i),
                                       .backward_of = described->backward_of));
        for (size_t k = 0; k < sizeof misdescribed / sizeof *misdescribed; k++)
            if (mistake(misdescribed[k].id) && misdescribed[k].op == i) op->schema = misdescribed[k].schema;
        if (!mistake(RAW_OWN_NAMES)) continue;
        snprintf(own[i], sizeof own[i], "my_%d", i);
        op->name = own[i], op->backward_of = NULL;
    }
    if (!mistake(RAW_LOSS_NOT_LEFT)) ops[PLAIN_LOSS].op_class = ops[PLAIN_LOSS_BACKWARD].op_class = AMP_LEAVE;
    if (mistake(RAW_ONLY_POINTERS)) ops[PLAIN_LINEAR].op_class = AMP_LOWER;
    if (mistake(RAW_NO_INIT)) ops[PLAIN_LINEAR].struct_size = 0;
    if (mistake(RAW_WRONG_FORWARD)) ops[PLAIN_LINEAR_BACKWARD].backward_of = "dense";
    if (mistake(RAW_SAME_SLOT)) ops[PLAIN_RELU].slot = ops[PLAIN_LINEAR].slot;
    if (mistake(RAW_NO_SLOT)) ops[PLAIN_LINEAR].slot = NULL;
    if (made < RAW_LOW_SWAPPED || made > RAW_LOW_WRITES_FP32) return;
    ops[PLAIN_LINEAR].fp16 = (amp_fn)fp16_linear, ops[PLAIN_LINEAR].bf16 = (amp_fn)bf16_linear;
}

static void describe_params(void) {
    for (int i = 0; i < N_PARAMS; i++) {
        const struct problem_param *p = &problem_params[i];
        amp_param *param = raw_param(&h.raw, p->name, plain_param(&h.plain, i), plain_grad(&h.plain, i), p->size);
        if (mistake(RAW_NAMED_TWICE) && i == B2) param->name = problem_params[W2].name;
        if (p->batch_norm && !mistake(RAW_NORM_NOT_SAID)) param->module_kind = AMP_MODULE_BATCH_NORM;
        if (mistake(RAW_PARAMETERS_OVERLAP) && i == W1) h.raw.buffers[i].size++, h.raw.grads[i].size++;
    }
    if (mistake(RAW_LATE_GRADIENTS_OVERLAP)) h.raw.grads[B1].data = (float *)h.raw.grads[W1].data + 1;
    if (mistake(RAW_OTHER_GRADIENT)) h.raw.grads[W2].data = h.unused;
    if (mistake(RAW_NO_GRADIENT)) h.raw.buffers[W2].grad = NULL;
    if (mistake(RAW_GRADIENT_SIZE)) h.raw.grads[W2].size = 1;
    if (mistake(RAW_LISTED_TWICE)) h.raw.trained[B2] = h.raw.trained[W2];
}

static amp_context *start(const amp_config *given) {
    amp_config config = *given;
    plain_init(&h.plain);
    h.plain.calls_past_slots = mistake(RAW_CALLED_DIRECTLY);
    h.step = sgd_step, h.zero_grad = sgd_zero_grad;
    raw_init(&h.raw);
    h.raw.host.event = hear_event;
    if (comes_late()) h.raw.host.grad = late_grad;
    if (mistake(RAW_SHARED_OP_ASSIGNS)) h.plain.ops.linear_backward = assigning_backward;
    describe_ops();
    describe_params();
    amp_optimizer *optimizer = &h.raw.optimizer;
    const bool other = mistake(RAW_OTHER_SELF) || mistake(RAW_OTHER_SELF_STANDS);
    optimizer->self = other ? (void *)&h.raw : mistake(RAW_NO_SELF) ? NULL : &h;
    if (mistake(RAW_NOT_LISTED) || mistake(RAW_UNKNOWN_PARAMETER)) optimizer->n_params--;
    if (mistake(RAW_UNKNOWN_PARAMETER)) h.raw.model.n_params--;
    h.step_op = OP("step", "step(pointer self) -> void", &h.step);
    h.zero_grad_op = OP("zero_grad", "zero_grad(pointer self) -> void", &h.zero_grad);
    optimizer->steps = &h.step_op, optimizer->n_steps = !mistake(RAW_NO_STEP);
    optimizer->zero_grads = &h.zero_grad_op, optimizer->n_zero_grads = 1;
    config.emulate = mistake(RAW_NO_EMULATE) ? AMP_DEFAULT : AMP_ON;
    if (mistake(RAW_NO_LEVEL)) config.level = 0;
    if (mistake(RAW_START_UNUSED)) config.init_scale = SCALE, config.loss_scale = 0.0f;
    return h.raw.context = hear_initialize(&h.raw.model, optimizer, &config);
}

static float seed_of(const amp_scaled_loss *scaled) {
    if (mistake(RAW_NO_SEED_FACTOR)) return 1.0f;
    const float factor = amp_seed_factor(scaled);
    return mistake(RAW_FACTOR_NOT_USED) ? 1.0f : mistake(RAW_FACTOR_TWICE) ? factor * factor : factor;
}

/* What a scope keeps is older than the weight that is read the second time. */
static float forward_twice(int step) {
    amp_scope scope;
    (void)hear(amp_scope_enter(h.raw.context, &scope));
    (void)plain_forward(&h.plain, step);
    plain_param(&h.plain, W1)[0] += 1.0f;
    const float loss = plain_forward(&h.plain, step);
    (void)hear(amp_scope_leave(&scope));
    return loss;
}

static float pass(int step) {
    const float loss = mistake(RAW_WRITTEN_IN_SCOPE) ? forward_twice(step) : plain_forward(&h.plain, step);
    if (!mistake(RAW_NEVER_CLEARED) && !mistake(RAW_BACKWARD_CLEARS)) h.zero_grad(&h);
    h.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    if (mistake(RAW_NO_BRACKET)) plain_backward(&h.plain, step, 1.0f);
    else if (hear(amp_scale_loss_begin(&h.raw.optimizer, NULL, &h.scaled)) == AMP_OK) {
        h.has_gradients = true;
        if (mistake(RAW_BACKWARD_CLEARS)) sgd_zero_grad(&h);
        plain_backward(&h.plain, step, seed_of(&h.scaled));
        if (mistake(RAW_CLEARED_INSIDE)) h.zero_grad(&h);
        if (mistake(RAW_WIPED_INSIDE)) sgd_zero_grad(&h);
        if (mistake(RAW_STEP_INSIDE)) h.step(&h);
        if (mistake(RAW_UNSEEN_INSIDE)) sgd_step(&h);
        if (!mistake(RAW_NO_END)) (void)hear(amp_scale_loss_end(&h.scaled));
    }
    return loss;
}

static void step(int number) {
    (void)number;
    if (mistake(RAW_STEP_OF_BEFORE)) sgd_step(&h);
    else if (!mistake(RAW_STEP_INSIDE) && !mistake(RAW_NEVER_STEPS) && !mistake(RAW_UNSEEN_INSIDE)) h.step(&h);
    (void)hear(amp_check(h.raw.context));
}

static void finish(float *params) {
    if (h.raw.context) (void)hear(amp_shutdown(h.raw.context));
    memcpy(params, h.plain.params, PARAM_FLOATS * sizeof(float));
    memset(&h, 0, sizeof h);
}

const struct mistaken host_raw = { start, pass, step, finish };
