/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inference at batch 1, which reads each weight once and is as fast as memory: linear layers of raw float buffers at
 * O0, and at O5 with the FP32 blocks released (amp_weights_release), beside loops that read the same bytes.
 */
#include "bench.h"

#include <amp.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 4096, LAYERS = 2, WEIGHTS = WIDTH * WIDTH, ALL = LAYERS * WEIGHTS };

static void product(amp_dtype type, void *y, const void *x, const void *w, int in, int out) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = g.d_dtype = type;
    g.a = x, g.b = w, g.d = y;
    g.transpose_b = 1, g.m = 1, g.n = out, g.k = in;
    bench_must(amp_matmul(&g), "amp_matmul");
}

static void linear(float *y, const float *x, const float *w, int in, int out) {
    product(AMP_FLOAT32, y, x, w, in, out);
}

static void linear_bf16(uint16_t *y, const uint16_t *x, const uint16_t *w, int in, int out) {
    product(AMP_BFLOAT16, y, x, w, in, out);
}

struct net {
    void (*linear)(float *, const float *, const float *, int, int);
    float *weights, *x, *y;
    amp_buffer buffers[LAYERS];
    amp_model model;
};

static void infer(void *data) {
    const struct net *net = data;
    for (int i = 0; i < LAYERS; i++) net->linear(net->y, net->x, net->weights + (size_t)i * WEIGHTS, WIDTH, WIDTH);
}

static void start(struct net *net, amp_level level) {
    amp_op op = AMP_OP_INIT;
    amp_param params[LAYERS];
    *net = (struct net){ .linear = linear, .weights = bench_memory(sizeof(float) * ALL),
                         .x = bench_memory(sizeof(float) * WIDTH), .y = bench_memory(sizeof(float) * WIDTH),
                         .model = AMP_MODEL_INIT };
    for (size_t i = 0; i < ALL; i++) net->weights[i] = (float)(i % 251) / 4096.0f;
    for (size_t i = 0; i < WIDTH; i++) net->x[i] = (float)(i % 13) / 13.0f;
    op.name = "linear", op.slot = (amp_fn *)(void *)&net->linear, op.bf16 = (amp_fn)linear_bf16;
    op.schema = "linear(float(out a!) y[N], float x[K], float w[N,K], int K, int N) -> void";
    for (int i = 0; i < LAYERS; i++) {
        net->buffers[i] = (amp_buffer)AMP_BUFFER_INIT;
        net->buffers[i].data = net->weights + (size_t)i * WEIGHTS, net->buffers[i].size = WEIGHTS;
        params[i] = (amp_param)AMP_PARAM_INIT;
        params[i].tensor = &net->buffers[i];
    }
    net->model.host = amp_buffer_host();
    net->model.ops = &op, net->model.n_ops = 1;
    net->model.params = params, net->model.n_params = LAYERS;
    bench_must(amp_initialize(&net->model, NULL, level), "amp_initialize");
}

static void stop(struct net *net) {
    bench_must(amp_shutdown(net->model.amp), "amp_shutdown");
    bench_release(net->weights, sizeof(float) * ALL);
    bench_release(net->x, sizeof(float) * WIDTH), bench_release(net->y, sizeof(float) * WIDTH);
}

/* Against loops that read as many bytes of other memory. */
static void beside_reading(const char *name, const char *size, struct net *net, size_t width) {
    struct bench_floats bytes = { bench_memory(width * ALL), width * ALL / sizeof(float), 1.0f };
    const size_t best = bench_best(bench_reads, bench_n_floats(), &bytes);
    bench_run(&(struct bench_case){ .group = "storage", .name = name, .size = size, .unit = "GB/s",
                                    .bytes = (double)(width * ALL), .calls = 1, .ours = infer, .ours_data = net,
                                    .reference = bench_reads[best], .reference_data = &bytes,
                                    .reference_name = "reading the same bytes" });
    bench_release(bytes.data, width * ALL);
}

void bench_storage(void) {
    static struct net low, full;
    uint64_t given;
    char size[32];
    start(&low, AMP_O5), start(&full, AMP_O0);
    bench_must(amp_weights_release(low.model.amp, &given), "amp_weights_release");
    bench_must(given != sizeof(float) * ALL, "all pages of the weights given back");
    snprintf(size, sizeof size, "%dx%d, batch 1", LAYERS, WIDTH);
    beside_reading("inference, O0", size, &full, sizeof(float));
    beside_reading("inference, O5, released", size, &low, sizeof(uint16_t));
    bench_run(&(struct bench_case){ .group = "storage", .name = "inference, O5, released", .size = size, .unit = "ms",
                                    .calls = 1, .ours = infer, .ours_data = &low, .reference = infer,
                                    .reference_data = &full, .reference_name = "the same at O0" });
    stop(&low), stop(&full);
}
