/* SPDX-License-Identifier: Apache-2.0 */
/* Raw buffers: a table of functions on float *, which schemas with extents describe. */
#include "mistakes.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the host ---- */

enum { LINEAR, LINEAR_BACKWARD, NORM, NORM_BACKWARD, RELU, RELU_BACKWARD, LOSS, LOSS_BACKWARD, N_OPS };

struct table {
    void (*linear)(float *, const float *, const float *, const float *, int, int, int);
    void (*linear_backward)(float *, float *, float *, const float *, const float *, const float *, int, int, int);
    void (*norm)(float *, float *, float *, const float *, const float *, const float *, int, int);
    void (*norm_backward)(float *, float *, float *, const float *, const float *, const float *, const float *,
                          const float *, int, int);
    void (*relu)(float *, const float *, int);
    void (*relu_backward)(float *, const float *, const float *, int);
    float (*loss)(float *, const float *, const int32_t *, int, int);
    void (*loss_backward)(float *, const float *, const int32_t *, float, int, int);
};

struct host {
    struct table ops;
    void (*step)(struct host *self);
    void (*zero_grad)(struct host *self);
    float data[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
    float params[PARAM_FLOATS + 1], grads[PARAM_FLOATS + 1], momentum[PARAM_FLOATS], unused[PARAM_FLOATS];
    float y[BATCH * HIDDEN], normed[BATCH * HIDDEN], hidden[BATCH * HIDDEN], mean[HIDDEN], rstd[HIDDEN];
    float logits[BATCH * CLASSES], probabilities[BATCH * CLASSES], dlogits[BATCH * CLASSES];
    float dhidden[BATCH * HIDDEN], dnormed[BATCH * HIDDEN], dy[BATCH * HIDDEN];
};

static void sgd_step(struct host *self) { math_sgd(self->params, self->momentum, self->grads, PARAM_FLOATS); }
static void sgd_zero_grad(struct host *self) { memset(self->grads, 0, sizeof self->grads); }

static float *param(struct host *h, int i) { return h->params + problem_params[i].offset; }
static float *grad(struct host *h, int i) { return h->grads + problem_params[i].offset; }

static float forward(struct host *h, int step) {
    const int at = step % BATCHES * BATCH;
    const float *x = h->data + at * INPUTS;
    void (*linear)(float *, const float *, const float *, const float *, int, int, int) = h->ops.linear;
    if (mistake(RAW_CALLED_DIRECTLY)) linear = math_linear;
    linear(h->y, x, param(h, W1), param(h, B1), BATCH, INPUTS, HIDDEN);
    h->ops.norm(h->normed, h->mean, h->rstd, h->y, param(h, GAMMA), param(h, BETA), BATCH, HIDDEN);
    h->ops.relu(h->hidden, h->normed, BATCH * HIDDEN);
    linear(h->logits, h->hidden, param(h, W2), param(h, B2), BATCH, HIDDEN, CLASSES);
    return h->ops.loss(h->probabilities, h->logits, h->labels + at, BATCH, CLASSES);
}

static void backward(struct host *h, int step, float seed) {
    const int at = step % BATCHES * BATCH;
    h->ops.loss_backward(h->dlogits, h->probabilities, h->labels + at, seed, BATCH, CLASSES);
    h->ops.linear_backward(h->dhidden, grad(h, W2), grad(h, B2), h->dlogits, h->hidden, param(h, W2), BATCH, HIDDEN,
                           CLASSES);
    h->ops.relu_backward(h->dnormed, h->dhidden, h->hidden, BATCH * HIDDEN);
    h->ops.norm_backward(h->dy, grad(h, GAMMA), grad(h, BETA), h->dnormed, h->y, h->mean, h->rstd, param(h, GAMMA),
                         BATCH, HIDDEN);
    h->ops.linear_backward(NULL, grad(h, W1), grad(h, B1), h->dy, h->data + at * INPUTS, param(h, W1), BATCH, INPUTS,
                           HIDDEN);
}

/* ---- its adapter ---- */

static const struct {
    const char *name, *backward_of, *schema;
} described[N_OPS] = {
    [LINEAR] = { "linear", NULL, "f(float(out a!) y[N,O], float x[N,I], float w[O,I], float b[O], int32 N, int32 I, "
                 "int32 O) -> void" },
    [LINEAR_BACKWARD] = { "linear_backward", "linear", "f(float?(out a!) dx[N,I], float(b!) dw[O,I], float(c!) db[O], "
                          "float dy[N,O], float x[N,I], float w[O,I], int32 N, int32 I, int32 O) -> void" },
    [NORM] = { "batch_norm", NULL, "f(float(out a!) y[N,C], float(keep) mean[C], float(keep) rstd[C], float x[N,C], "
               "float gamma[C], float beta[C], int32 N, int32 C) -> void" },
    [NORM_BACKWARD] = { "batch_norm_backward", "batch_norm", "f(float(out a!) dx[N,C], float(b!) dgamma[C], "
                        "float(c!) dbeta[C], float dy[N,C], float x[N,C], float(keep) mean[C], float(keep) rstd[C], "
                        "float gamma[C], int32 N, int32 C) -> void" },
    [RELU] = { "relu", NULL, "f(float(out a!) y[N], float x[N], int32 N) -> void" },
    [RELU_BACKWARD] = { "relu_backward", "relu", "f(float(out a!) dx[N], float dy[N], float y[N], int32 N) -> void" },
    [LOSS] = { "cross_entropy", NULL, "f(float(out a!) p[N,C], float logits[N,C], pointer labels, int32 N, int32 C) "
               "-> float" },
    [LOSS_BACKWARD] = { "cross_entropy_backward", "cross_entropy", "f(float(out a!) dlogits[N,C], float p[N,C], "
                        "pointer labels, float seed, int32 N, int32 C) -> void" },
};

/* Mistakes that are one word of a schema. */
static const struct {
    enum mistake_id id;
    int op;
    const char *schema;
} misdescribed[] = {
    { RAW_SCHEMA_SYNTAX, LINEAR, "f(float(out a!) y[N,O], float x[N,I] float w[O,I], float b[O], int32 N, int32 I, "
      "int32 O) -> void" },
    { RAW_UNKNOWN_EXTENT, LINEAR, "f(float(out a!) y[N,O], float x[N,K], float w[O,I], float b[O], int32 N, int32 I, "
      "int32 O) -> void" },
    { RAW_ONLY_POINTERS, LINEAR, "f(pointer y, pointer x, pointer w, pointer b, int32 N, int32 I, int32 O) -> void" },
    { RAW_OUTPUT_IS_READ, LINEAR, "f(float y[N,O], float x[N,I], float w[O,I], float b[O], int32 N, int32 I, int32 O) "
      "-> void" },
    { RAW_INPUT_IS_WRITTEN, LINEAR, "f(float(out a!) y[N,O], float(out c!) x[N,I], float w[O,I], float b[O], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_WEIGHT_IS_KEPT, LINEAR, "f(float(out a!) y[N,O], float x[N,I], float(keep) w[O,I], float b[O], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_WEIGHT_IS_WRITTEN, LINEAR, "f(float(out a!) y[N,O], float x[N,I], float(c!) w[O,I], float b[O], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_PARAMETER_TOO_LARGE, LINEAR, "f(float(out a!) y[N,O], float x[N,I], float w[O,I], float b[O,I], int32 N, "
      "int32 I, int32 O) -> void" },
    { RAW_GRADIENT_IS_READ, LINEAR_BACKWARD, "f(float?(out a!) dx[N,I], float dw[O,I], float(c!) db[O], "
      "float dy[N,O], float x[N,I], float w[O,I], int32 N, int32 I, int32 O) -> void" },
    { RAW_GRADIENT_IS_OUTPUT, LINEAR_BACKWARD, "f(float?(out a!) dx[N,I], float(out b!) dw[O,I], float(c!) db[O], "
      "float dy[N,O], float x[N,I], float w[O,I], int32 N, int32 I, int32 O) -> void" },
    { RAW_GRADIENT_TOO_LARGE, LINEAR_BACKWARD, "f(float?(out a!) dx[N,I], float(b!) dw[O,I], float(c!) db[O,I], "
      "float dy[N,O], float x[N,I], float w[O,I], int32 N, int32 I, int32 O) -> void" },
};

static struct {
    struct host *host;
    void (*old_step)(struct host *self);
    amp_host hooks;
    amp_op ops[N_OPS], step, zero_grad;
    amp_buffer buffers[N_PARAMS], grads[N_PARAMS];
    amp_param params[N_PARAMS];
    void *trained[N_PARAMS];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
    amp_scaled_loss scaled;
} a;

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op made_op = AMP_OP_INIT;
    made_op.name = name, made_op.schema = schema, made_op.slot = slot;
    return made_op;
}

static void describe_ops(struct table *t) {
    void *const slots[N_OPS] = { &t->linear, &t->linear_backward, &t->norm, &t->norm_backward, &t->relu,
                                 &t->relu_backward, &t->loss, &t->loss_backward };
    static char own[N_OPS][32];
    for (int i = 0; i < N_OPS; i++) {
        a.ops[i] = op(described[i].name, described[i].schema, slots[i]);
        a.ops[i].backward_of = described[i].backward_of;
        for (size_t k = 0; k < sizeof misdescribed / sizeof *misdescribed; k++)
            if (mistake(misdescribed[k].id) && misdescribed[k].op == i) a.ops[i].schema = misdescribed[k].schema;
        if (!mistake(RAW_OWN_NAMES)) continue;
        snprintf(own[i], sizeof own[i], "my_%d", i);
        a.ops[i].name = own[i], a.ops[i].backward_of = NULL;
    }
    if (!mistake(RAW_LOSS_NOT_LEFT)) a.ops[LOSS].op_class = a.ops[LOSS_BACKWARD].op_class = AMP_LEAVE;
    if (mistake(RAW_ONLY_POINTERS)) a.ops[LINEAR].op_class = AMP_LOWER;
    if (mistake(RAW_NO_INIT)) a.ops[LINEAR].struct_size = 0;
    if (mistake(RAW_WRONG_FORWARD)) a.ops[LINEAR_BACKWARD].backward_of = "dense";
    if (mistake(RAW_SAME_SLOT)) a.ops[RELU].slot = a.ops[LINEAR].slot;
    if (mistake(RAW_NO_SLOT)) a.ops[LINEAR].slot = NULL;
}

static amp_buffer buffer(float *data, size_t size) {
    amp_buffer made_buffer = AMP_BUFFER_INIT;
    made_buffer.data = data, made_buffer.size = (int64_t)size;
    return made_buffer;
}

static void describe_params(struct host *h) {
    for (int i = 0; i < N_PARAMS; i++) {
        const struct problem_param *p = &problem_params[i];
        a.grads[i] = buffer(mistake(RAW_OTHER_GRADIENT) && i == W2 ? h->unused : grad(h, i), p->size);
        a.buffers[i] = buffer(param(h, i), p->size + (mistake(RAW_PARAMETERS_OVERLAP) && i == W1));
        a.buffers[i].grad = mistake(RAW_NO_GRADIENT) && i == W2 ? NULL : &a.grads[i];
        if (mistake(RAW_PARAMETERS_OVERLAP)) a.grads[i].size = a.buffers[i].size;
        if (mistake(RAW_GRADIENT_SIZE) && i == W2) a.grads[i].size = 1;
        a.params[i] = (amp_param)AMP_PARAM_INIT;
        a.params[i].tensor = a.trained[i] = &a.buffers[i];
        a.params[i].name = p->name;
        a.params[i].module_kind = p->batch_norm && !mistake(RAW_NORM_NOT_SAID) ? AMP_MODULE_BATCH_NORM
                                                                              : AMP_MODULE_OTHER;
    }
    if (mistake(RAW_LISTED_TWICE)) a.trained[B2] = a.trained[W2];
}

static amp_context *start(const amp_config *given) {
    struct host *h = a.host = calloc(1, sizeof *h);
    amp_config config = *given;
    h->ops = (struct table){ math_linear, math_linear_backward, math_batch_norm, math_batch_norm_backward, math_relu,
                             math_relu_backward, math_cross_entropy, math_cross_entropy_backward };
    h->step = a.old_step = sgd_step, h->zero_grad = sgd_zero_grad;
    problem_data(h->data, h->labels);
    problem_start(h->params);
    a.hooks = *amp_buffer_host();
    a.hooks.event = hear_event;
    describe_ops(&h->ops);
    describe_params(h);
    a.model = (amp_model)AMP_MODEL_INIT;
    a.model.host = &a.hooks;
    a.model.ops = a.ops, a.model.n_ops = N_OPS;
    a.model.params = a.params;
    a.model.n_params = mistake(RAW_UNKNOWN_PARAMETER) ? N_PARAMS - 1 : N_PARAMS;
    a.optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    a.optimizer.self = mistake(RAW_OTHER_SELF) ? (void *)&a : mistake(RAW_NO_SELF) ? NULL : h;
    a.optimizer.params = a.trained;
    a.optimizer.n_params = mistake(RAW_NOT_LISTED) || mistake(RAW_UNKNOWN_PARAMETER) ? N_PARAMS - 1 : N_PARAMS;
    a.step = op("step", "step(pointer self) -> void", &h->step);
    a.zero_grad = op("zero_grad", "zero_grad(pointer self) -> void", &h->zero_grad);
    a.optimizer.steps = &a.step, a.optimizer.n_steps = !mistake(RAW_NO_STEP);
    a.optimizer.zero_grads = &a.zero_grad, a.optimizer.n_zero_grads = 1;
    config.emulate = mistake(RAW_NO_EMULATE) ? AMP_DEFAULT : AMP_ON;
    if (mistake(RAW_NO_LEVEL)) config.level = 0;
    return a.context = hear_initialize(&a.model, &a.optimizer, &config);
}

static float seed_of(const amp_scaled_loss *scaled) {
    if (mistake(RAW_NO_SEED_FACTOR)) return 1.0f;
    const float factor = amp_seed_factor(scaled);
    return mistake(RAW_FACTOR_NOT_USED) ? 1.0f : mistake(RAW_FACTOR_TWICE) ? factor * factor : factor;
}

static float pass(int step) {
    struct host *h = a.host;
    const float loss = forward(h, step);
    if (!mistake(RAW_NEVER_CLEARED)) h->zero_grad(h);
    a.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    if (mistake(RAW_NO_BRACKET)) backward(h, step, 1.0f);
    else if (hear(amp_scale_loss_begin(&a.optimizer, NULL, &a.scaled)) == AMP_OK) {
        backward(h, step, seed_of(&a.scaled));
        if (mistake(RAW_CLEARED_INSIDE)) h->zero_grad(h);
        if (mistake(RAW_WIPED_INSIDE)) sgd_zero_grad(h);
        if (mistake(RAW_STEP_INSIDE)) h->step(h);
        if (!mistake(RAW_NO_END)) (void)hear(amp_scale_loss_end(&a.scaled));
    }
    return loss;
}

static void step(int number) {
    (void)number;
    if (mistake(RAW_STEP_OF_BEFORE)) a.old_step(a.host);
    else if (!mistake(RAW_STEP_INSIDE) && !mistake(RAW_NEVER_STEPS)) a.host->step(a.host);
    (void)hear(amp_check(a.context));
}

static void finish(float *params) {
    if (a.context) (void)hear(amp_shutdown(a.context));
    memcpy(params, a.host->params, PARAM_FLOATS * sizeof(float));
    free(a.host);
    memset(&a, 0, sizeof a);
}

const struct mistaken host_raw = { start, pass, step, finish };
