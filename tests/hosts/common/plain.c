/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include <string.h>

const struct plain_table plain_functions = {
    math_linear, math_linear_backward, math_batch_norm, math_batch_norm_backward, math_relu, math_relu_backward,
    math_cross_entropy, math_cross_entropy_backward,
};

const struct plain_op plain_ops[N_PLAIN_OPS] = {
    { "linear", NULL, "f(float(out a!) y[N,O], float x[N,I], float w[O,I], float b[O], int32 N, int32 I, int32 O) -> "
      "void" },
    { "linear_backward", "linear", "f(float?(out a!) dx[N,I], float(b!) dw[O,I], float(c!) db[O], float dy[N,O], "
      "float x[N,I], float w[O,I], int32 N, int32 I, int32 O) -> void" },
    { "batch_norm", NULL, "f(float(out a!) y[N,C], float(keep) mean[C], float(keep) rstd[C], float x[N,C], "
      "float gamma[C], float beta[C], int32 N, int32 C) -> void" },
    { "batch_norm_backward", "batch_norm", "f(float(out a!) dx[N,C], float(b!) dgamma[C], "
      "float(c!) dbeta[C], float dy[N,C], float x[N,C], float(keep) mean[C], float(keep) rstd[C], "
      "float gamma[C], int32 N, int32 C) -> void" },
    { "relu", NULL, "f(float(out a!) y[N], float x[N], int32 N) -> void" },
    { "relu_backward", "relu", "f(float(out a!) dx[N], float dy[N], float y[N], int32 N) -> void" },
    { "cross_entropy", NULL, "f(float(out a!) p[N,C], float logits[N,C], pointer labels, int32 N, int32 C) -> float" },
    { "cross_entropy_backward", "cross_entropy", "f(float(out a!) dlogits[N,C], float p[N,C], pointer labels, "
      "float seed, int32 N, int32 C) -> void" },
};

void *plain_slot(struct plain *host, int op) {
    struct plain_table *t = &host->ops;
    void *const slots[N_PLAIN_OPS] = { &t->linear, &t->linear_backward, &t->norm, &t->norm_backward, &t->relu,
                                       &t->relu_backward, &t->loss, &t->loss_backward };
    return slots[op];
}

void plain_init(struct plain *host) {
    memset(host, 0, sizeof *host);
    host->ops = plain_functions;
    problem_data(host->data, host->labels);
    problem_start(host->params);
}

#define PARAM(i) plain_param(h, i)
#define GRAD(i) plain_grad(h, i)

float plain_forward(struct plain *h, int step) {
    const int at = step % BATCHES * BATCH;
    void (*linear)(float *, const float *, const float *, const float *, int, int, int) = h->ops.linear;
    if (h->calls_past_slots) linear = math_linear;
    linear(h->y, h->data + at * INPUTS, PARAM(W1), PARAM(B1), BATCH, INPUTS, HIDDEN);
    h->ops.norm(h->normed, h->mean, h->rstd, h->y, PARAM(GAMMA), PARAM(BETA), BATCH, HIDDEN);
    h->ops.relu(h->hidden, h->normed, BATCH * HIDDEN);
    linear(h->logits, h->hidden, PARAM(W2), PARAM(B2), BATCH, HIDDEN, CLASSES);
    return h->ops.loss(h->probabilities, h->logits, h->labels + at, BATCH, CLASSES);
}

void plain_backward(struct plain *h, int step, float seed) {
    const int at = step % BATCHES * BATCH;
    h->ops.loss_backward(h->dlogits, h->probabilities, h->labels + at, seed, BATCH, CLASSES);
    h->ops.linear_backward(h->dhidden, GRAD(W2), GRAD(B2), h->dlogits, h->hidden, PARAM(W2), BATCH, HIDDEN, CLASSES);
    h->ops.relu_backward(h->dnormed, h->dhidden, h->hidden, BATCH * HIDDEN);
    h->ops.norm_backward(h->dy, GRAD(GAMMA), GRAD(BETA), h->dnormed, h->y, h->mean, h->rstd, PARAM(GAMMA), BATCH,
                         HIDDEN);
    h->ops.linear_backward(NULL, GRAD(W1), GRAD(B1), h->dy, h->data + at * INPUTS, PARAM(W1), BATCH, INPUTS, HIDDEN);
}

void plain_update(struct plain *h) { math_sgd(h->params, h->momentum, h->grads, PARAM_FLOATS); }
