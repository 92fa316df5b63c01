/* SPDX-License-Identifier: Apache-2.0 */
/* duet's layers. The arithmetic that is not a matrix product is the problem's own, so that bits can be compared. */
#include "duet.h"
#include "problem.h"

#include <string.h>

void (*duet_interrupt)(const layer *l);

static void done(const layer *l) {
    if (duet_interrupt) duet_interrupt(l);
}

/* ---- linear: a 1x1 convolution, with its columns in the workspace ---- */

enum { PARTS = 2 };

struct job {
    const layer *l;
    const network *net;
};

static int first(int n, int part) { return n * part / PARTS; }

/* Rows of the batch: output = columns weights^T */
static void forward_part(void *arg, int part) {
    const struct job *job = arg;
    const layer *l = job->l;
    const int begin = first(l->batch, part), rows = first(l->batch, part + 1) - begin;
    job->net->blas->gemm(0, 1, rows, l->outputs, l->inputs, 1.0f, job->net->workspace + begin * l->inputs, l->inputs,
                         l->weights, l->inputs, 0.0f, l->output + begin * l->outputs, l->outputs);
}

void duet_linear_forward(layer l, network net) {
    struct job job = { &l, &net };
    memcpy(net.workspace, net.input, sizeof(float) * (size_t)(l.batch * l.inputs));
    net.blas->parallel(forward_part, &job, PARTS);
    for (int i = 0; i < l.batch; i++)
        for (int o = 0; o < l.outputs; o++) l.output[i * l.outputs + o] += l.biases[o];
    done(&l);
}

/* Outputs: weight_updates += delta^T columns */
static void backward_part(void *arg, int part) {
    const struct job *job = arg;
    const layer *l = job->l;
    const int begin = first(l->outputs, part), rows = first(l->outputs, part + 1) - begin;
    job->net->blas->gemm(1, 0, rows, l->inputs, l->batch, 1.0f, l->delta + begin, l->outputs, job->net->workspace,
                         l->inputs, 1.0f, l->weight_updates + begin * l->inputs, l->inputs);
}

void duet_linear_backward(layer l, network net) {
    struct job job = { &l, &net };
    for (int o = 0; o < l.outputs; o++) {
        float sum = 0.0f;
        for (int i = 0; i < l.batch; i++) sum += l.delta[i * l.outputs + o];
        l.bias_updates[o] += sum;
    }
    memcpy(net.workspace, net.input, sizeof(float) * (size_t)(l.batch * l.inputs));
    net.blas->parallel(backward_part, &job, PARTS);
    if (net.delta)
        net.blas->gemm(0, 0, l.batch, l.inputs, l.outputs, 1.0f, l.delta, l.outputs, l.weights, l.inputs, 0.0f,
                       net.delta, l.inputs);
}

/* ---- norm ---- */

void duet_norm_forward(layer l, network net) {
    math_batch_norm(l.output, l.mean, l.rstd, net.input, l.weights, l.biases, l.batch, l.outputs);
    done(&l);
}

void duet_norm_backward(layer l, network net) {
    math_batch_norm_backward(net.delta, l.weight_updates, l.bias_updates, l.delta, net.input, l.mean, l.rstd,
                             l.weights, l.batch, l.outputs);
}

/* ---- relu: its output is the buffer of the layer before ---- */

void duet_relu_forward(layer l, network net) {
    math_relu(l.output, net.input, l.batch * l.outputs);
    done(&l);
}

void duet_relu_backward(layer l, network net) {
    math_relu_backward(l.delta, l.delta, l.output, l.batch * l.outputs);
    memcpy(net.delta, l.delta, sizeof(float) * (size_t)(l.batch * l.outputs));
}

/* ---- cost: softmax and cross entropy. The loss gradient is made in forward, pointing downhill ---- */

void duet_cost_forward(layer l, network net) {
    int32_t labels[BATCH];
    for (int i = 0; i < l.batch; i++) labels[i] = (int32_t)net.truth[i];
    *l.cost = math_cross_entropy(l.output, net.input, labels, l.batch, l.outputs);
    math_cross_entropy_backward(l.delta, l.output, labels, -l.scale, l.batch, l.outputs);
    done(&l);
}

void duet_cost_backward(layer l, network net) {
    memcpy(net.delta, l.delta, sizeof(float) * (size_t)(l.batch * l.outputs));
}

/* ---- update: what was added up goes into the weights, and what is left of it is the momentum ---- */

static void sgd(float *weights, float *updates, int n, duet_args a) {
    for (int i = 0; i < n; i++) {
        weights[i] += a.rate * updates[i];
        updates[i] *= a.momentum;
    }
}

void duet_sgd(layer l, duet_args a) {
    sgd(l.weights, l.weight_updates, l.n_weights, a);
    sgd(l.biases, l.bias_updates, l.n_biases, a);
}

void duet_update_inlined(network *net, duet_args a) {
    for (int i = 0; i < net->n_params; i++) {
        net->params[i] += a.rate * net->updates[i];
        net->updates[i] *= a.momentum;
    }
}
