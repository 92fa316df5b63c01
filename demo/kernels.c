/* SPDX-License-Identifier: Apache-2.0 */
#include <amp_gate.h>
#include "kernels.h"

#include <string.h>
#include <time.h>

/* ---- products ---- */

static amp_dtype type_of(mt_dtype dtype) {
    return dtype == MT_F16 ? AMP_FLOAT16 : dtype == MT_BF16 ? AMP_BFLOAT16 : AMP_FLOAT32;
}

static int multiply(const mt_product *p) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.m = p->m, g.n = p->n, g.k = p->k;
    g.transpose_a = p->transpose_a, g.transpose_b = p->transpose_b;
    g.a_dtype = g.b_dtype = g.c_dtype = g.d_dtype = type_of(p->dtype);
    g.a = p->a, g.b = p->b, g.d = p->d;
    if (p->add) g.c = p->d, g.beta = 1.0F;
    if (p->device == MT_CUDA) g.device.type = 2, g.stream = p->stream; /* kDLCUDA, the first one */
    return amp_matmul(&g) == AMP_OK ? 0 : -1;
}

static mt_tensor *conv2d(mt_tensor *input, mt_tensor *weight, mt_tensor *bias, int stride, int padding) {
    return mt_conv2d_by(multiply, input, weight, bias, stride, padding);
}

static mt_tensor *linear(mt_tensor *input, mt_tensor *weight, mt_tensor *bias) {
    return mt_linear_by(multiply, input, weight, bias);
}

void kernels_add(struct adapter *adapter, int fp32) {
    for (int i = 0; i < ADAPTER_OPS; i++) {
        amp_op *op = &adapter->ops[i];
        if (strcmp(op->name, "conv2d") == 0) op->fp16 = op->bf16 = (amp_fn)conv2d;
        if (strcmp(op->name, "linear") == 0) op->fp16 = op->bf16 = (amp_fn)linear;
        if (fp32) op->fp32 = op->fp16;
    }
}

/* ---- the optimizer ---- */

void kernels_fuse(struct adapter *adapter, amp_fused *fused, amp_optim *rule) {
    const mt_optimizer *host = adapter->optimizer.self;
    const int adam = host->beta1 != 0.0F;
    *rule = (amp_optim)AMP_OPTIM_INIT;
    rule->kind = adam ? AMP_OPTIM_ADAM : AMP_OPTIM_SGD;
    rule->flags = adam ? AMP_OPTIM_BIAS_CORRECTION : 0;
    rule->lr = (double)host->lr;
    rule->weight_decay = (double)host->weight_decay;
    rule->momentum = (double)host->momentum;
    rule->beta1 = (double)host->beta1;
    rule->beta2 = (double)host->beta2;
    rule->eps = (double)host->eps;
    *fused = (amp_fused)AMP_FUSED_INIT;
    fused->groups = rule;
    fused->n_groups = 1;
    adapter->optimizer.fused = fused;
    adapter->optimizer.steps = NULL;
    adapter->optimizer.n_steps = 0;
}

amp_status kernels_step(struct adapter *adapter, const mt_optimizer *optimizer) {
    amp_optim rule = AMP_OPTIM_INIT;
    amp_status status = amp_fused_get(&adapter->optimizer, 0, &rule);
    rule.lr = (double)optimizer->lr;
    if (status == AMP_OK) status = amp_fused_set(&adapter->optimizer, 0, &rule);
    return status == AMP_OK ? amp_fused_step(&adapter->optimizer, NULL) : status;
}

/* ---- the gate: from which size on do 16 bits pay? ---- */

enum { SIZES = 3, ROUNDS = 9, FILTERS = 16, TYPES = MT_BF16 + 1 };

/* The network's convolutions, the largest first. */
static const struct {
    int channels, side, times; /* times: that it has such a one */
} sizes[SIZES] = { { FILTERS, 8, 2 }, { FILTERS, 4, 2 }, { 1, 8, 1 } };

static struct {
    int batch; /* it was measured with; 0: not yet */
    uint64_t least;
} measured[TYPES];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One convolution of the network and what lives on its result's type. */
struct block {
    const mt_ops *ops;
    int fp32; /* FP32 by libamp's products, too */
    mt_tensor *input, *weight, *gain, *shift, *mean, *var;
};

static mt_tensor *filled(int ndim, const int *shape, double value, int trained) {
    mt_tensor *tensor = mt_tensor_new(MT_F32, ndim, shape, MT_MEM_OTHER);
    if (!tensor) return NULL;
    for (size_t i = 0; i < mt_numel(tensor); i++) mt_set(tensor, i, value * (double)(i % 7 + 1));
    tensor->requires_grad = trained;
    return tensor;
}

static int block_init(struct block *b, const mt_ops *ops, int fp32, int batch, int channels, int side) {
    const int input[] = { batch, channels, side, side }, weight[] = { FILTERS, channels, 3, 3 }, each[] = { FILTERS };
    *b = (struct block){ .ops = ops,
                         .fp32 = fp32,
                         .input = filled(4, input, 0.1, channels > 1),
                         .weight = filled(4, weight, 0.01, 1),
                         .gain = filled(1, each, 1.0, 1),
                         .shift = filled(1, each, 0.1, 1),
                         .mean = filled(1, each, 0.0, 0),
                         .var = filled(1, each, 1.0, 0) };
    return b->input && b->weight && b->gain && b->shift && b->mean && b->var ? 0 : -1;
}

static void block_done(struct block *b) {
    mt_tensor *all[] = { b->input, b->weight, b->gain, b->shift, b->mean, b->var };
    for (int i = 0; i < 6; i++) mt_release(all[i]);
}

/* Forward and backward, casts included. The seconds, or -1. */
static double time_block(struct block *b, mt_dtype dtype) {
    mt_tensor *trained[] = { b->input, b->weight, b->gain, b->shift };
    const double begin = now();
    mt_tensor *x = b->ops->cast(b->input, dtype), *w = b->ops->cast(b->weight, dtype);
    mt_tensor *y = dtype == MT_F32 && !b->fp32 ? b->ops->conv2d(x, w, NULL, 1, 1) : conv2d(x, w, NULL, 1, 1);
    y = mt_then(y, b->ops->batch_norm(y, b->gain, b->shift, b->mean, b->var, 1, 0.1F, 1e-5F));
    y = mt_then(y, b->ops->relu(y));
    const int status = y ? mt_backward(y) : -1;
    mt_release(x), mt_release(w), mt_release(y);
    const double seconds = now() - begin;
    for (int i = 0; i < 4; i++) mt_set_grad(trained[i], NULL);
    return status == 0 ? seconds : -1.0;
}

/* times[0]: FP32, [1]: 16 bits; the least of some tries, in turns. 0, or -1 with mt_error(). */
static int time_size(const struct net *net, mt_dtype low, int batch, int fp32, int size, double times[2]) {
    struct block block;
    int status = block_init(&block, net->ops, fp32, batch, sizes[size].channels, sizes[size].side);
    times[0] = times[1] = 1e9;
    for (int i = 0; i < 2 * ROUNDS && status == 0; i++) {
        const double seconds = time_block(&block, i % 2 ? low : MT_F32);
        if (seconds < 0.0) status = -1;
        else if (seconds < times[i % 2]) times[i % 2] = seconds;
    }
    block_done(&block);
    return status;
}

static int is_faster(const double times[2]) { return times[0] >= 1.05 * times[1]; }

/* A result's type is the next one's: if all convolutions together gain from 16 bits, all of them get these. Else those
 * from a size on that gain by themselves. */
int kernels_measure(const struct net *net, mt_dtype low, int batch, int fp32) {
    double times[2], sums[2] = { 0.0, 0.0 };
    uint64_t least = AMP_GATE_NEVER;
    if ((low != MT_F16 && low != MT_BF16) || measured[low].batch == batch) return 0;
    for (int i = 0, wins = 1; i < SIZES; i++) {
        const int elements = batch * sizes[i].channels * sizes[i].side * sizes[i].side +
            FILTERS * sizes[i].channels * 9;
        if (time_size(net, low, batch, fp32, i, times) != 0) return -1;
        for (int type = 0; type < 2; type++) sums[type] += sizes[i].times * times[type];
        wins = wins && is_faster(times);
        if (wins) least = (uint64_t)elements * 3 / 4; /* an epoch's last batch is a little smaller */
    }
    measured[low].batch = batch;
    measured[low].least = is_faster(sums) ? AMP_GATE_ALWAYS : least;
    return 0;
}

/* The last layer is too small to gain anything by itself. */
amp_status kernels_gate(amp_context *context, mt_dtype low, int batch) {
    if ((low != MT_F16 && low != MT_BF16) || measured[low].batch != batch) return AMP_OK;
    const amp_status status = amp_gate_set(context, "conv2d", measured[low].least);
    return status == AMP_OK ? amp_gate_set(context, "linear", AMP_GATE_NEVER) : status;
}
