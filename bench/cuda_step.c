/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training step of a network whose time is its products', in the demo's framework on a GPU: at O1 and O2, wired as
 * the demo is (the adapter, libamp's products for 16 bits, its optimizer where there are masters), against the same
 * host in FP32 without libamp, whose products are not tf32's; and O2 against O1.
 */
#include <amp_diagnostics.h>
#include "bench.h"
#include "cuda.h"

#include "adapter.h"
#include "kernels.h"
#include "minitape_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, CLASSES = 64, LARGEST = 4096, SMALLEST = 8, WARM_UP = 4 };

/* The demo's adapter takes a network as a list of tensors and a forward; these are other ones. */
struct training {
    struct net net; /* the first member: forward gets it */
    mt_ops ops;     /* its own table: wiring it leaves the others alone */
    mt_optimizer *optimizer;
    struct adapter adapter;
    amp_fused fused;
    amp_optim rule;
    mt_tensor *losses; /* of the first step and of the last one, where they were made */
    int level, steps;  /* 0: without libamp */
};

/* What all of them are trained on. */
static struct {
    int width; /* and batch */
    mt_tensor *inputs, *labels;
} data;

static void must(const void *result) {
    if (!result) bench_must(1, mt_error());
}

/* ---- a step ---- */

static mt_tensor *forward(struct net *net, mt_tensor *inputs) {
    const struct training *t = (const void *)net;
    mt_tensor *x = mt_retain(inputs);
    for (int i = 0; i <= LAYERS; i++) {
        x = mt_then(x, net->ops->linear(x, net->list[i].tensor, NULL));
        if (i < LAYERS) x = mt_then(x, net->ops->relu(x));
    }
    bench_must(x && x->dtype != (t->level ? MT_F16 : MT_F32), "products in the level's type");
    return x;
}

static void backward(struct training *t, mt_tensor *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    if (!t->level) {
        bench_must(mt_backward(loss) != 0, mt_error());
        return;
    }
    bench_must(amp_scale_loss_begin(&t->adapter.optimizer, loss, &scaled), "amp_scale_loss_begin");
    bench_must(mt_backward(scaled.loss) != 0, mt_error());
    bench_must(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
}

static void update(struct training *t) {
    if (!t->level) bench_must(t->optimizer->step(t->optimizer) < 0, mt_error());
    else if (t->adapter.optimizer.fused) bench_must(kernels_step(&t->adapter, t->optimizer), "amp_fused_step");
    else bench_must(adapter_step(&t->adapter, t->optimizer), "amp_step_begin");
}

/* As demo/run.c has it; nothing in it waits. */
static void train_step(void *given) {
    struct training *t = given;
    mt_tensor *scores = t->net.forward(&t->net, data.inputs);
    mt_tensor *logp = mt_then(scores, t->ops.log_softmax(scores));
    mt_tensor *loss = mt_then(logp, t->ops.nll_loss(logp, data.labels));
    must(loss);
    bench_must(mt_note(t->losses, t->steps > 0, loss->dtype, loss->storage->data) != 0, mt_error());
    t->optimizer->zero_grad(t->optimizer);
    backward(t, loss);
    mt_release(loss);
    update(t);
    t->steps++;
}

/* ---- what it is made of ---- */

/* On the device, between -1 and 1. */
static mt_tensor *random_numbers(int rows, int cols, uint64_t seed) {
    mt_tensor *made = mt_tensor_new(MT_F32, 2, (const int[]){ rows, cols }, MT_MEM_OTHER);
    mt_rng rng = { seed };
    must(made);
    float *numbers = made->storage->data;
    for (size_t i = 0; i < mt_numel(made); i++) numbers[i] = 2.0f * mt_rng_uniform(&rng) - 1.0f;
    bench_must(mt_move(made, MT_CUDA) != 0, mt_error());
    return made;
}

static void make_data(int width) {
    data.width = width;
    data.inputs = random_numbers(width, width, 1);
    mt_tensor *labels = mt_tensor_new(MT_I32, 1, &width, MT_MEM_OTHER);
    must(labels);
    for (int i = 0; i < width; i++) ((int32_t *)labels->storage->data)[i] = i % CLASSES;
    bench_must(mt_move(labels, MT_CUDA) != 0, mt_error());
    data.labels = labels;
}

/* He: the deviation of activations stays. */
static void add_layer(struct net *net, int filters) {
    struct net_tensor *layer = &net->list[net->n_list++];
    mt_tensor *numbers = random_numbers(filters, data.width, (uint64_t)net->n_list + 1);
    snprintf(layer->name, sizeof layer->name, "layer%d.weight", net->n_list);
    layer->tensor = mt_then(numbers, mt_ops_default()->scale(numbers, sqrtf(6.0f / (float)data.width)));
    must(layer->tensor);
    mt_storage_retag(layer->tensor->storage, MT_MEM_PARAMETER);
    layer->tensor->requires_grad = 1;
}

static void start(struct training *t, int level) {
    mt_tensor *params[NET_TENSORS];
    memset(t, 0, sizeof *t);
    t->ops = *mt_ops_default(), t->level = level;
    t->net.ops = &t->ops, t->net.forward = forward, t->net.training = 1;
    for (int i = 0; i <= LAYERS; i++) add_layer(&t->net, i < LAYERS ? data.width : CLASSES);
    t->losses = mt_tensor_new(MT_F32, 1, (const int[]){ 2 }, MT_MEM_OTHER);
    must(t->losses);
    bench_must(mt_move(t->losses, MT_CUDA) != 0, mt_error());
    t->optimizer = mt_sgd_new(params, net_params(&t->net, params), 1e-3f, 0.9f, 0.0f);
    must(t->optimizer);
    if (level) {
        adapter_init(&t->adapter, &t->net, t->optimizer, NULL, NULL);
        kernels_add(&t->adapter, 0);
        if (level == AMP_O2) kernels_fuse(&t->adapter, &t->fused, &t->rule);
        bench_must(amp_initialize(&t->adapter.model, &t->adapter.optimizer, level), "amp_initialize");
    }
    for (int i = 0; i < WARM_UP; i++) train_step(t); /* chooses algorithms, makes what stays */
    bench_must(mt_device_wait(MT_CUDA) != 0, mt_error());
}

/* That steps trained: overflows skip few of them, and the loss fell. */
static void end(struct training *t) {
    float losses[2];
    amp_record record = AMP_RECORD_INIT;
    if (t->level) bench_must(amp_get_record(t->adapter.model.amp, 0, &record), "amp_get_record");
    bench_must(2 * record.skipped > (uint64_t)t->steps, "steps that are not skipped");
    mt_read(t->losses, losses);
    bench_must(mt_device_wait(MT_CUDA) != 0, mt_error());
    bench_must(!(losses[1] < losses[0]), "a loss that falls");
    bench_must(amp_shutdown(t->adapter.model.amp), "amp_shutdown");
    mt_optimizer_free(t->optimizer);
    for (int i = 0; i < t->net.n_list; i++) mt_release(t->net.list[i].tensor);
    mt_release(t->losses);
}

/* ---- the lines ---- */

static void compare(const char *name, struct training *ours, const char *reference_name, struct training *reference,
                    double goal) {
    char size[32];
    snprintf(size, sizeof size, "%d x %d, batch %d", LAYERS, data.width, data.width);
    bench_run(&(struct bench_case){ .group = "step", .name = name, .size = size, .unit = "ms", .calls = 1, .gpu = true,
                                    .ours = train_step, .ours_data = ours, .reference = train_step,
                                    .reference_data = reference, .reference_name = reference_name, .goal = goal });
}

static void measure(void) {
    static struct training fp32, o1, o2;
    start(&fp32, 0), start(&o1, AMP_O1), start(&o2, AMP_O2);
    compare("training step, O1 (fp16)", &o1, "the same host in FP32", &fp32, 2.0);
    compare("training step, O2 (fp16)", &o2, "the same host in FP32", &fp32, 2.0);
    compare("training step, O2 (fp16)", &o2, "the same at O1", &o1, 1.1);
    end(&fp32), end(&o1), end(&o2);
}

/* The weights with a gradient, a momentum and a master each. */
static int width_for(size_t bytes) {
    int width = LARGEST;
    while (width > SMALLEST && (size_t)width * (size_t)width * LAYERS * 16 > bytes) width /= 2;
    return width;
}

void bench_cuda_step(void) {
    void *const stream = bench_cuda_stream;
    if (mt_cuda_open() != 0) {
        bench_left_out("step", mt_error());
        return;
    }
    bench_cuda_wait();
    bench_cuda_stream = mt_device_stream(MT_CUDA); /* the clock is its events */
    make_data(width_for(bench_cuda_arena().bytes));
    measure();
    mt_release(data.inputs), mt_release(data.labels);
    bench_cuda_wait();
    bench_cuda_stream = stream;
}
