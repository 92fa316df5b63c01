/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw buffers, no table: functions that take float * and sizes, and call each other by name. One linear layer learns
 * another one's weights. At O0, O1 and O4 its products are amp_matmul's, in 16 bits at the last two; O2 and O5 are
 * emulated: what the level would do to the model, in FP32 memory.
 *
 *     cc raw.c $(pkg-config --cflags --libs libamp)
 */
#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the trainer ---- */

enum { B = 64, IN = 32, OUT = 16, STEPS = 60 };

static struct { float weight[OUT * IN], gradient[OUT * IN]; } net; /* all that is learned, in one block */

/* y = x w^T */
static void forward_loops(float *y, const float *x, const float *w, int n, int in, int out) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < out; o++) {
            float sum = 0.0f;
            for (int k = 0; k < in; k++) sum += x[i * in + k] * w[o * in + k];
            y[i * out + o] = sum;
        }
}

/* dw += dy^T x */
static void backward_loops(float *dw, const float *dy, const float *x, int n, int in, int out) {
    for (int o = 0; o < out; o++)
        for (int k = 0; k < in; k++)
            for (int i = 0; i < n; i++) dw[o * in + k] += dy[i * out + o] * x[i * in + k];
}

/* The one edit: each function that computes gets another name, and a pointer the old one. No call changes. */
static void (*forward)(float *y, const float *x, const float *w, int n, int in, int out) = forward_loops;
static void (*backward)(float *dw, const float *dy, const float *x, int n, int in, int out) = backward_loops;

static void update(float rate) {
    for (int i = 0; i < OUT * IN; i++) net.weight[i] -= rate * net.gradient[i];
}

/* ---- the adapter: products in any of the three types, by libamp ---- */

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

/* y and x arrive in `type`, as do weights, which are packed once from step to step. */
static void forward_in(amp_dtype type, void *y, const void *x, const void *w, int n, int in, int out) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.m = n, args.n = out, args.k = in, args.transpose_b = 1;
    args.a = x, args.b = w, args.d = y;
    args.a_dtype = args.b_dtype = args.d_dtype = type;
    check(amp_matmul(&args));
}

/* What is added to, float(a!), stays the trainer's own FP32 buffer. */
static void backward_in(amp_dtype type, float *dw, const void *dy, const void *x, int n, int in, int out) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.m = out, args.n = in, args.k = n, args.transpose_a = 1, args.beta = 1.0f;
    args.a = dy, args.b = x, args.c = args.d = dw;
    args.a_dtype = args.b_dtype = type, args.c_dtype = args.d_dtype = AMP_FLOAT32;
    check(amp_matmul(&args));
}

#define IN_TYPE(name, type)                                                                                            \
    static void forward_##name(void *y, const void *x, const void *w, int n, int in, int out) {                        \
        forward_in(type, y, x, w, n, in, out);                                                                         \
    }                                                                                                                  \
    static void backward_##name(float *dw, const void *dy, const void *x, int n, int in, int out) {                    \
        backward_in(type, dw, dy, x, n, in, out);                                                                      \
    }
IN_TYPE(fp32, AMP_FLOAT32)
IN_TYPE(fp16, AMP_FLOAT16)
IN_TYPE(bf16, AMP_BFLOAT16)

static void describe(amp_op ops[2]) {
    ops[0] = ops[1] = (amp_op)AMP_OP_INIT;
    ops[0].name = "linear", ops[0].slot = (amp_fn *)(void *)&forward;
    ops[0].schema = "forward(float(out a!) y[n,out], float x[n,in], float w[out,in], int n, int in, int out) -> void";
    ops[1].name = "linear_backward", ops[1].slot = (amp_fn *)(void *)&backward, ops[1].backward_of = "linear";
    ops[1].schema = "backward(float(a!) dw[out,in], float dy[n,out], float x[n,in], int n, int in, int out) -> void";
}

static void give_products(amp_op ops[2]) {
    ops[0].fp32 = (amp_fn)forward_fp32, ops[0].fp16 = (amp_fn)forward_fp16, ops[0].bf16 = (amp_fn)forward_bf16;
    ops[1].fp32 = (amp_fn)backward_fp32, ops[1].fp16 = (amp_fn)backward_fp16, ops[1].bf16 = (amp_fn)backward_bf16;
}

/* ---- the program ---- */

static float x[B * IN], target[B * OUT], y[B * OUT], dy[B * OUT];

/* Mean squared error; its gradient is seeded by hand, so the loss scale goes in here. */
static float loss(float seed) {
    float sum = 0.0f;
    for (int i = 0; i < B * OUT; i++) {
        const float error = y[i] - target[i];
        sum += error * error / (B * OUT);
        dy[i] = seed * error / B;
    }
    return sum;
}

/* Returns the loss before the step. */
static float iterate(amp_optimizer *optimizer, int *steps) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    memset(net.gradient, 0, sizeof net.gradient);
    forward(y, x, net.weight, B, IN, OUT);
    check(amp_scale_loss_begin(optimizer, NULL, &scaled));
    const float was = loss(amp_seed_factor(&scaled));
    backward(net.gradient, dy, x, B, IN, OUT);
    check(amp_scale_loss_end(&scaled));
    check(amp_step_begin(optimizer, &info));
    if (info.action == AMP_STEP) update(1.0f), (*steps)++; /* at O2 and O5 net.weight is the FP32 master here */
    check(amp_step_end(optimizer));
    return was;
}

static void train(amp_level level) {
    amp_buffer weight = AMP_BUFFER_INIT, gradient = AMP_BUFFER_INIT;
    weight.data = net.weight, gradient.data = net.gradient;
    weight.size = gradient.size = OUT * IN;
    weight.grad = &gradient;
    amp_param param = AMP_PARAM_INIT;
    param.tensor = &weight, param.name = "weight";
    void *trained[] = { &weight };
    amp_op ops[2];
    describe(ops);

    amp_model model = AMP_MODEL_INIT, *models[] = { &model };
    model.host = amp_buffer_host(); /* ready-made: no hook is written */
    model.ops = ops, model.n_ops = 2, model.params = &param, model.n_params = 1;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT, *optimizers[] = { &optimizer };
    optimizer.params = trained, optimizer.n_params = 1;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    if (level == AMP_O2 || level == AMP_O5) config.emulate = AMP_ON;
    else give_products(ops);
    check(amp_initialize_many(models, 1, optimizers, 1, &config, NULL));

    int steps = 0;
    float first = iterate(&optimizer, &steps), last = first;
    for (int i = 1; i < STEPS; i++) last = iterate(&optimizer, &steps);
    amp_op_stats stats[2] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    size_t count;
    check(amp_get_op_stats(model.amp, stats, 2, &count));
    printf("O%d: %d steps of %d, forward seen %2d times, loss %.2f -> %.4f\n", (int)level - 1, steps, STEPS,
           (int)stats[0].calls, (double)first, (double)last);
    check(amp_shutdown(model.amp));
    if (!(last < first / 100.0f)) exit(1);
}

/* Numbers from -1 to 1. */
static float random_number(void) { return 2.0f * (float)rand() / (float)RAND_MAX - 1.0f; }

int main(void) {
    const amp_level levels[] = { AMP_O0, AMP_O1, AMP_O2, AMP_O4, AMP_O5 };
    static float teacher[OUT * IN], start[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) teacher[i] = random_number(), start[i] = random_number();
    for (int i = 0; i < B * IN; i++) x[i] = random_number();
    forward(target, x, teacher, B, IN, OUT);
    for (int i = 0; i < 5; i++) {
        memcpy(net.weight, start, sizeof start);
        train(levels[i]);
    }
    return 0;
}
