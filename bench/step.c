/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training step of a network that is nothing but matmuls, under O4 against O0: what a trainer of raw float buffers
 * gains whose linear ops carry bf16 implementations. Both nets stand in this process and take turns, a step each.
 */
#include "bench.h"

#include <amp.h>
#include <amp_call.h>
#include <amp_raw.h>
#include <amp_kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1024, WIDTH = 1024, LAYERS = 4, WEIGHTS = WIDTH * WIDTH, ACTIVATIONS = BATCH * WIDTH };

/* ---- the host's ops: y = x w^T; dx = dy w, dw += dy^T x ---- */

static void product(amp_matmul_args g) { bench_must(amp_matmul(&g), "amp_matmul"); }

static amp_matmul_args product_args(amp_dtype in, amp_dtype out, const void *a, const void *b, void *d) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = in, g.c_dtype = g.d_dtype = out;
    g.a = a, g.b = b, g.d = d;
    return g;
}

static void forward_in(amp_dtype type, void *y, const void *x, const void *w, int batch, int in, int out) {
    amp_matmul_args g = product_args(type, type, x, w, y);
    g.transpose_b = 1, g.m = batch, g.n = out, g.k = in;
    product(g);
}

/* The gradient of the weights is a sum in FP32 whatever the type. */
static void backward_in(amp_dtype type, void *dx, float *dw, const void *dy, const void *x, const void *w, int batch,
                        int in, int out) {
    amp_matmul_args g = product_args(type, type, dy, w, dx);
    g.m = batch, g.n = in, g.k = out;
    product(g);
    g = product_args(type, AMP_FLOAT32, dy, x, dw);
    g.transpose_a = 1, g.m = out, g.n = in, g.k = batch;
    g.c = dw, g.beta = 1.0f;
    product(g);
}

static void forward(float *y, const float *x, const float *w, int batch, int in, int out) {
    forward_in(AMP_FLOAT32, y, x, w, batch, in, out);
}

static void backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int batch, int in,
                     int out) {
    backward_in(AMP_FLOAT32, dx, dw, dy, x, w, batch, in, out);
}

/* The same with bf16 operands; counted, so that it is known that they were called. */
static unsigned low_calls;

static void forward_bf16(uint16_t *y, const uint16_t *x, const uint16_t *w, int batch, int in, int out) {
    low_calls++;
    forward_in(AMP_BFLOAT16, y, x, w, batch, in, out);
}

static void backward_bf16(uint16_t *dx, float *dw, const uint16_t *dy, const uint16_t *x, const uint16_t *w, int batch,
                          int in, int out) {
    low_calls++;
    backward_in(AMP_BFLOAT16, dx, dw, dy, x, w, batch, in, out);
}

/* ---- the host's network ---- */

struct net {
    struct {
        void (*forward)(float *, const float *, const float *, int, int, int);
        void (*backward)(float *, float *, const float *, const float *, const float *, int, int, int);
    } ops;
    float *weights, *gradients; /* of all layers */
    float *activations;         /* the input, then what each layer gives */
    float *target, *slope[2];   /* slope: of what a layer gives, and of what it got */
    double loss;
    amp_buffer buffers[LAYERS], grads[LAYERS];
    void *trained[LAYERS];
    amp_optimizer optimizer;
};

static void relu(float *x) {
    for (size_t i = 0; i < ACTIVATIONS; i++) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

static void relu_backward(float *dy, const float *y) {
    for (size_t i = 0; i < ACTIVATIONS; i++) dy[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

/* Half the mean of the squares, and its slope times `seed`. */
static double squared_error(const float *y, const float *target, float *dy, float seed) {
    double sum = 0;
    for (size_t i = 0; i < ACTIVATIONS; i++) {
        const float difference = y[i] - target[i];
        dy[i] = difference * (seed / BATCH);
        sum += (double)(difference * difference);
    }
    return sum / (2.0 * BATCH);
}

static float *layer(float *first, int i, size_t size) { return first + (size_t)i * size; }

static void run_backward(struct net *net, float seed) {
    const float *y = layer(net->activations, LAYERS, ACTIVATIONS);
    float *dy = net->slope[0], *dx = net->slope[1];
    net->loss = squared_error(y, net->target, dy, seed);
    for (int i = LAYERS - 1; i >= 0; i--) {
        const float *x = layer(net->activations, i, ACTIVATIONS);
        net->ops.backward(dx, layer(net->gradients, i, WEIGHTS), dy, x, layer(net->weights, i, WEIGHTS), BATCH, WIDTH,
                          WIDTH);
        if (i) relu_backward(dx, x);
        float *const swap = dy;
        dy = dx, dx = swap;
    }
}

static void update(struct net *net) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    bench_must(amp_step_begin(&net->optimizer, &info), "amp_step_begin");
    for (size_t i = 0; info.action == AMP_STEP && i < (size_t)LAYERS * WEIGHTS; i++)
        net->weights[i] -= 1e-3f * net->gradients[i];
    bench_must(amp_step_end(&net->optimizer), "amp_step_end");
}

/* In a scope, so that each weight is packed once for forward and backward. */
static void train_step(void *data) {
    struct net *net = data;
    amp_scope scope;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    bench_must(amp_scope_enter(net->optimizer.amp, &scope), "amp_scope_enter");
    memset(net->gradients, 0, sizeof(float) * LAYERS * WEIGHTS);
    for (int i = 0; i < LAYERS; i++) {
        float *y = layer(net->activations, i + 1, ACTIVATIONS);
        net->ops.forward(y, layer(net->activations, i, ACTIVATIONS), layer(net->weights, i, WEIGHTS), BATCH, WIDTH,
                         WIDTH);
        if (i < LAYERS - 1) relu(y);
    }
    bench_must(amp_scale_loss_begin(&net->optimizer, NULL, &scaled), "amp_scale_loss_begin");
    run_backward(net, amp_seed_factor(&scaled));
    bench_must(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
    update(net);
    bench_must(amp_scope_leave(&scope), "amp_scope_leave");
}

/* ---- wiring ---- */

/* `deviation` times numbers between -1 and 1. */
static float *random_numbers(size_t n, float deviation) {
    float *numbers = bench_memory(n * sizeof *numbers);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = deviation * ((float)(state >> 8) * 0x1p-23f - 1.0f);
    }
    return numbers;
}

static void build(struct net *net) {
    *net = (struct net){ .ops = { forward, backward } };
    /* He: the deviation of activations stays */
    net->weights = random_numbers((size_t)LAYERS * WEIGHTS, sqrtf(6.0f / WIDTH));
    net->gradients = bench_memory(sizeof(float) * LAYERS * WEIGHTS);
    net->activations = random_numbers((size_t)(LAYERS + 1) * ACTIVATIONS, 1.0f);
    net->target = random_numbers(ACTIVATIONS, 0.5f);
    for (int i = 0; i < 2; i++) net->slope[i] = bench_memory(sizeof(float) * ACTIVATIONS);
}

static void destroy(struct net *net) {
    bench_must(amp_shutdown(net->optimizer.amp), "amp_shutdown");
    bench_release(net->weights, sizeof(float) * LAYERS * WEIGHTS);
    bench_release(net->gradients, sizeof(float) * LAYERS * WEIGHTS);
    bench_release(net->activations, sizeof(float) * (LAYERS + 1) * ACTIVATIONS);
    bench_release(net->target, sizeof(float) * ACTIVATIONS);
    for (int i = 0; i < 2; i++) bench_release(net->slope[i], sizeof(float) * ACTIVATIONS);
}

static amp_op describe(const char *name, const char *schema, void *slot, amp_fn bf16) {
    amp_op op = AMP_OP_INIT;
    op.name = name, op.schema = schema, op.slot = slot, op.bf16 = bf16;
    return op;
}

/* As docs/reference/buffers.md has it for raw buffers; the model itself is needed by amp_initialize alone. */
static void wire(struct net *net, amp_model *model, amp_level level) {
    amp_op ops[] = {
        describe("linear", "linear(float(out a!) y[B,N], float x[B,K], float w[N,K], int B, int K, int N) -> void",
                 &net->ops.forward, (amp_fn)forward_bf16),
        describe("linear_backward",
                 "linear_backward(float(out a!) dx[B,K], float(a!) dw[N,K], float dy[B,N], float x[B,K], "
                 "float w[N,K], int B, int K, int N) -> void", &net->ops.backward, (amp_fn)backward_bf16),
    };
    amp_param params[LAYERS];
    ops[1].backward_of = "linear";
    for (int i = 0; i < LAYERS; i++) {
        net->buffers[i] = net->grads[i] = (amp_buffer)AMP_BUFFER_INIT;
        net->buffers[i].data = layer(net->weights, i, WEIGHTS), net->grads[i].data = layer(net->gradients, i, WEIGHTS);
        net->buffers[i].size = net->grads[i].size = WEIGHTS;
        net->buffers[i].grad = &net->grads[i];
        params[i] = (amp_param)AMP_PARAM_INIT;
        params[i].tensor = net->trained[i] = &net->buffers[i];
    }
    *model = (amp_model)AMP_MODEL_INIT;
    model->host = amp_buffer_host();
    model->ops = ops, model->n_ops = 2;
    model->params = params, model->n_params = LAYERS;
    net->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    net->optimizer.params = net->trained, net->optimizer.n_params = LAYERS;
    bench_must(amp_initialize(model, &net->optimizer, level), "amp_initialize");
}

/* What the instructions are worth through oneDNN; without it, or without them, there is no goal. */
static double goal(void) {
    amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    size_t n = 0;
    bool onednn = false;
    bench_must(amp_get_backends(infos, 8, &n), "amp_get_backends");
    for (size_t i = 0; i < n && i < 8; i++)
        onednn = onednn || (!strcmp(infos[i].name, "onednn") && infos[i].state == AMP_BACKEND_READY);
    return !onednn ? 0 : bench_cpu_has("amx_bf16") ? 3.0 : bench_cpu_has("avx512_bf16") ? 1.6 : 0;
}

void bench_step(void) {
    static struct net low, full;
    amp_model models[2];
    char size[32];
    build(&low), build(&full);
    wire(&low, &models[0], AMP_O4), wire(&full, &models[1], AMP_O0);
    train_step(&low);
    bench_must(low_calls != 2 * LAYERS, "calls of the bf16 implementations at O4");
    train_step(&full);
    bench_must(low_calls != 2 * LAYERS, "O0 without them");
    const double low_loss = low.loss, full_loss = full.loss;
    snprintf(size, sizeof size, "%dx%d, batch %d", LAYERS, WIDTH, BATCH);
    bench_run(&(struct bench_case){ .group = "step", .name = "training step, O4 (bf16)", .size = size, .unit = "ms",
                                    .calls = 1, .ours = train_step, .ours_data = &low, .reference = train_step,
                                    .reference_data = &full, .reference_name = "the same at O0", .goal = goal() });
    bench_must(!(low.loss < low_loss && full.loss < full_loss), "a loss that falls");
    destroy(&low), destroy(&full);
}
