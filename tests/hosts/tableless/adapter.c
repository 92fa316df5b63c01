/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapts trainer.c, which is not edited: its functions become slots (amp_symbol.h), its memory amp_buffers, and the
 * bracket opens and closes around its backward. docs/reference/symbols.md builds it in every way:
 *
 *     -DADAPT_NEXT    the adapter is preloaded, or is the executable before the program's shared object
 *     -DADAPT_WRAP    the linker's --wrap
 *     (neither)       objcopy gave the originals names of their own, original_...
 *
 * ADAPT_LEVEL=O1 in the environment switches it on; without it every call goes straight to the original.
 */
#include <amp.h>
#include <amp_diagnostics.h>
#include <amp_raw.h>
#include <amp_kernels.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the trainer's functions are called, and what of them the policy may know. */
#define OPS(X)                                                                                                         \
    X(linear_forward, "linear", NULL, "linear_forward(float(out a!) out[N,OC], float inp[N,C], float weight[OC,C], "   \
      "float bias[OC], int N, int C, int OC) -> void")                                                                 \
    X(linear_backward, NULL, "linear_forward", "linear_backward(float?(out a!) dinp[N,C], float(b!) dweight[OC,C], "   \
      "float(c!) dbias[OC], float dout[N,OC], float inp[N,C], float weight[OC,C], int N, int C, int OC) -> void")      \
    X(batchnorm_forward, "batch_norm", NULL, "batchnorm_forward(float(out a!) out[N,C], float(keep) mean[C], "         \
      "float(keep) rstd[C], float inp[N,C], float gamma[C], float beta[C], int N, int C) -> void")                     \
    X(batchnorm_backward, NULL, "batchnorm_forward", "batchnorm_backward(float(a!) dinp[N,C], float(b!) dgamma[C], "   \
      "float(c!) dbeta[C], float inp[N,C], float(keep) mean[C], float(keep) rstd[C], float gamma[C], int N, int C) "   \
      "-> void")                                                                                                      \
    X(relu_forward, "relu", NULL, "relu_forward(float(a!) x[N], int N) -> void")                                       \
    X(relu_backward, NULL, "relu_forward", "relu_backward(float(a!) dx[N], float out[N], int N) -> void")              \
    X(crossentropy_forward, "cross_entropy", NULL, "crossentropy_forward(float(out a!) losses[N], "                    \
      "float(out b!) probs[N,V], float logits[N,V], int32 targets[N], int N, int V) -> void")                          \
    X(crossentropy_backward, NULL, "crossentropy_forward", "crossentropy_backward(float(out a!) dlogits[N,V], "        \
      "float(seed) dlosses[N], float probs[N,V], int32 targets[N], int N, int V) -> void")

/* What frames the training. */
#define FRAME(X)                                                                                                       \
    X(network_build) X(network_forward) X(network_zero_grad) X(network_backward) X(network_update) X(network_free)

#if defined(ADAPT_TABLE) /* the same trainer with a table, to compare with */
#include "table.h"
#define SLOT(name) ((amp_fn *)(void *)&table.name)
#else
#include <amp_symbol.h>
#if defined(ADAPT_NEXT)
#define TRAMPOLINE(name) AMP_SYMBOL_NEXT(name##_slot, name);
#elif defined(ADAPT_WRAP)
#define TRAMPOLINE(name) AMP_SYMBOL_WRAP(name##_slot, name);
#else
#define TRAMPOLINE(name) AMP_SYMBOL(name##_slot, name, original_##name);
#endif
#define OP_TRAMPOLINE(name, alias, forward, schema) TRAMPOLINE(name)
OPS(OP_TRAMPOLINE)
FRAME(TRAMPOLINE)
#define SLOT(name) (&name##_slot)
#endif

/* The beginning of the trainer's own structure, and its sizes. */
struct network {
    float *params, *grads, *momentum;
};
enum { C = 16, H = 24, V = 4, N_SLICES = 6, N_PARAMS = H * C + 3 * H + V * H + V };

static const struct {
    const char *name;
    int size;
    int32_t kind;
} slices[N_SLICES] = {
    { "linear1.weight", H * C, AMP_MODULE_OTHER }, { "linear1.bias", H, AMP_MODULE_OTHER },
    { "norm.weight", H, AMP_MODULE_BATCH_NORM },   { "norm.bias", H, AMP_MODULE_BATCH_NORM },
    { "linear2.weight", V * H, AMP_MODULE_OTHER }, { "linear2.bias", V, AMP_MODULE_OTHER },
};

static amp_buffer buffers[N_SLICES], grads[N_SLICES];
static amp_param params[N_SLICES];
static void *trained[N_SLICES];
static amp_host host;
static amp_model model = AMP_MODEL_INIT;
static amp_optimizer optimizer = AMP_OPTIMIZER_INIT;
static amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
static FILE *report; /* ADAPT_REPORT: what libamp said and counted */

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "adapter: %s: %s\n", amp_status_name(status), amp_last_error());
    exit(1);
}

/* ---- linear in real 16 bits, for ADAPT_REPLACE=1 ---- */

static unsigned long low_calls;

static void linear_low(amp_dtype dtype, void *out, const void *inp, const void *weight, const void *bias, int n, int c,
                       int oc) {
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.a = inp, args.b = weight, args.d = out, args.bias = bias;
    args.transpose_b = 1;
    args.a_dtype = args.b_dtype = args.d_dtype = args.bias_dtype = dtype;
    args.m = n, args.n = oc, args.k = c;
    check(amp_matmul(&args));
    low_calls++;
}

static void linear_fp16(void *out, const void *inp, const void *weight, const void *bias, int n, int c, int oc) {
    linear_low(AMP_FLOAT16, out, inp, weight, bias, n, c, oc);
}

static void linear_bf16(void *out, const void *inp, const void *weight, const void *bias, int n, int c, int oc) {
    linear_low(AMP_BFLOAT16, out, inp, weight, bias, n, c, oc);
}

/* ---- the adapter's own functions in the trainer's slots: what stood there comes next ---- */

static amp_fn next_build, next_backward, next_free;

static void event(void *self, const amp_event *what) {
    (void)self;
    if (report) fprintf(report, "said %s\n", what->message);
}

static amp_op op(const char *name, const char *schema, amp_fn *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    return described;
}

static void describe_parameters(struct network *net) {
    int offset = 0;
    for (int i = 0; i < N_SLICES; offset += slices[i++].size) {
        grads[i] = buffers[i] = (amp_buffer)AMP_BUFFER_INIT;
        buffers[i].data = net->params + offset;
        grads[i].data = net->grads + offset;
        buffers[i].size = grads[i].size = slices[i].size;
        buffers[i].grad = &grads[i];
        params[i] = (amp_param)AMP_PARAM_INIT;
        params[i].tensor = trained[i] = &buffers[i];
        params[i].name = slices[i].name;
        params[i].module_kind = slices[i].kind;
    }
}

static void start(struct network *net) {
#define OP_DESCRIPTOR(name, alias, forward, schema) op(#name, schema, SLOT(name)),
    amp_op ops[] = { OPS(OP_DESCRIPTOR) };
#define OP_ALIAS(name, alias, forward, schema) { alias, forward },
    static const char *const kinship[][2] = { OPS(OP_ALIAS) };
    const size_t n_ops = sizeof ops / sizeof *ops;
    amp_op forward = op("forward", "f(pointer self, pointer x, pointer targets) -> float", SLOT(network_forward));
    amp_op step = op("update", "f(pointer self, float rate, float momentum) -> void", SLOT(network_update));
    amp_op zero = op("zero_grad", "f(pointer self) -> void", SLOT(network_zero_grad));
    amp_model *models[] = { &model };
    amp_optimizer *optimizers[] = { &optimizer };
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context;

    for (size_t i = 0; i < n_ops; i++) ops[i].aliases = kinship[i][0], ops[i].backward_of = kinship[i][1];
    ops[n_ops - 2].op_class = ops[n_ops - 1].op_class = AMP_LEAVE; /* the loss is no part of the model */
    if (getenv("ADAPT_REPLACE")) ops[0].fp16 = (amp_fn)linear_fp16, ops[0].bf16 = (amp_fn)linear_bf16;
    describe_parameters(net);
    host = *amp_buffer_host();
    host.event = event;
    model.host = optimizer.host = &host;
    model.self = optimizer.self = net;
    model.ops = ops, model.n_ops = n_ops;
    model.params = params, model.n_params = N_SLICES;
    model.forward = &forward;
    optimizer.params = trained, optimizer.n_params = N_SLICES;
    optimizer.steps = &step, optimizer.n_steps = 1;
    optimizer.zero_grads = &zero, optimizer.n_zero_grads = 1;
    check(amp_level_from_name(getenv("ADAPT_LEVEL"), &config.level));
    config.emulate = config.level == AMP_O0 ? AMP_OFF : AMP_ON;
    if (getenv("ADAPT_SCALE")) config.loss_scale = (float)atof(getenv("ADAPT_SCALE"));
    check(amp_initialize_many(models, 1, optimizers, 1, &config, &context));
}

static void build(struct network *net) {
    ((void (*)(struct network *))next_build)(net);
    start(net);
}

static void backward(struct network *net) {
    check(amp_scale_loss_begin(&optimizer, NULL, &scaled)); /* no loss tensor; dlosses is the seed */
    ((void (*)(struct network *))next_backward)(net);
    check(amp_scale_loss_end(&scaled));
}

static void tell(void) {
    amp_op_stats stats[16] = { AMP_OP_STATS_INIT };
    amp_record record = AMP_RECORD_INIT;
    char text[8192];
    size_t n;
    check(amp_health(model.amp, text, sizeof text, NULL));
    fprintf(report, "%s", text);
    check(amp_get_op_stats(model.amp, stats, 16, &n));
    check(amp_get_record(model.amp, 0, &record));
    for (size_t i = 0; i < n; i++)
        fprintf(report, "op %s wrapped %d calls %llu passed %llu casts %llu\n", stats[i].name, (int)stats[i].wrapped,
                (unsigned long long)stats[i].calls, (unsigned long long)stats[i].passed,
                (unsigned long long)stats[i].casts);
    fprintf(report, "brackets %llu skipped %llu low %lu\n", (unsigned long long)record.brackets,
            (unsigned long long)record.skipped, low_calls);
}

static void end(struct network *net) {
    if (report) tell();
    check(amp_shutdown(model.amp)); /* the parameters are FP32 again: the masters' values, where there were masters */
    for (int i = 0; report && i < N_PARAMS; i++) fprintf(report, "param %a\n", (double)net->params[i]);
    if (report) fclose(report);
    ((void (*)(struct network *))next_free)(net);
}

static void put(amp_fn *slot, amp_fn *next, amp_fn function) {
    *next = *slot;
    *slot = function;
}

__attribute__((constructor)) static void adapt(void) {
    if (!getenv("ADAPT_LEVEL")) return;
    if (getenv("ADAPT_REPORT")) report = fopen(getenv("ADAPT_REPORT"), "w");
    put(SLOT(network_build), &next_build, (amp_fn)build);
    put(SLOT(network_backward), &next_backward, (amp_fn)backward);
    put(SLOT(network_free), &next_free, (amp_fn)end);
}
