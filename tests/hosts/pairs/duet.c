/* SPDX-License-Identifier: Apache-2.0 */
/* duet: making networks and running them. */
#include "duet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *floats(network *net, int n) {
    float *buffer = calloc((size_t)n, sizeof *buffer);
    if (!buffer) abort(); /* as its kind does */
    net->buffers[net->n_buffers++] = buffer;
    return buffer;
}

network *duet_new(int batch, int max_params, int max_outputs) {
    network *net = calloc(1, sizeof *net);
    layer *layers = calloc(DUET_LAYERS, sizeof *layers);
    if (!net || !layers) {
        free(net);
        free(layers);
        return NULL;
    }
    net->batch = batch;
    net->train = 1;
    net->layers = layers;
    net->blas = &duet_default_blas;
    net->params = floats(net, max_params);
    net->updates = floats(net, max_params);
    net->workspace_floats = batch * max_outputs;
    net->workspace = floats(net, net->workspace_floats);
    for (int i = 0; i < 2; i++) net->deltas[i] = floats(net, batch * max_outputs);
    return net;
}

void duet_free(network *net) {
    for (int i = 0; i < net->n_buffers; i++) free(net->buffers[i]);
    free(net->layers);
    free(net);
}

static layer *add(network *net, duet_kind kind, const char *name, int inputs, int outputs) {
    layer *l = &net->layers[net->n];
    l->kind = kind;
    l->batch = net->batch;
    l->inputs = inputs;
    l->outputs = outputs;
    l->delta = net->deltas[net->n % 2];
    snprintf(l->name, sizeof l->name, "%s%d", name, net->n++);
    return l;
}

static void take_weights(network *net, layer *l, int n_weights, int n_biases) {
    l->n_weights = n_weights;
    l->n_biases = n_biases;
    l->weights = net->params + net->n_params;
    l->weight_updates = net->updates + net->n_params;
    l->biases = l->weights + n_weights;
    l->bias_updates = l->weight_updates + n_weights;
    l->update = duet_sgd;
    net->n_params += n_weights + n_biases;
}

void duet_add_linear(network *net, int inputs, int outputs) {
    layer *l = add(net, DUET_LINEAR, "linear", inputs, outputs);
    l->forward = duet_linear_forward;
    l->backward = duet_linear_backward;
    l->output = floats(net, net->batch * outputs);
    take_weights(net, l, inputs * outputs, outputs);
}

void duet_add_norm(network *net) {
    const int width = net->layers[net->n - 1].outputs;
    layer *l = add(net, DUET_NORM, "norm", width, width);
    l->forward = duet_norm_forward;
    l->backward = duet_norm_backward;
    l->output = floats(net, net->batch * width);
    l->mean = floats(net, width);
    l->rstd = floats(net, width);
    take_weights(net, l, width, width);
}

void duet_add_relu(network *net) {
    const layer *before = &net->layers[net->n - 1];
    layer *l = add(net, DUET_RELU, "relu", before->outputs, before->outputs);
    l->forward = duet_relu_forward;
    l->backward = duet_relu_backward;
    l->output = before->output;
}

void duet_add_cost(network *net) {
    const int width = net->layers[net->n - 1].outputs;
    layer *l = add(net, DUET_COST, "cost", width, width);
    l->forward = duet_cost_forward;
    l->backward = duet_cost_backward;
    l->output = floats(net, net->batch * width);
    l->delta = floats(net, net->batch * width); /* made in forward: no other layer may have it */
    l->cost = floats(net, 1);
    l->scale = 1.0f;
}

void duet_forward(network *netp) {
    network net = *netp;
    for (int i = 0; i < net.n; i++) {
        net.index = i;
        layer l = net.layers[i];
        l.forward(l, net);
        net.input = l.output;
    }
}

void duet_backward(network *netp) {
    network net = *netp;
    for (int i = net.n - 1; i >= 0; i--) {
        net.index = i;
        layer l = net.layers[i];
        net.input = i ? net.layers[i - 1].output : netp->input;
        net.delta = i ? net.layers[i - 1].delta : NULL;
        l.backward(l, net);
    }
}

void duet_update(network *net, duet_args a) {
    for (int i = 0; i < net->n; i++) {
        layer l = net->layers[i];
        if (l.update) l.update(l, a);
    }
}

float duet_cost(const network *net) { return *net->layers[net->n - 1].cost; }
