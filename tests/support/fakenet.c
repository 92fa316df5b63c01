/* SPDX-License-Identifier: Apache-2.0 */
#include "fakenet.h"

#include <math.h>
#include <string.h>

static struct net *current; /* ops have no argument for it; one net runs at a time */

/* ---- ops ---- */

static void note(const char *op, struct fake_tensor *const *args, unsigned n) {
    struct fake *host = args[0]->host;
    struct fake_call *call = &host->log[host->n_log++ % FAKE_LOG];
    *call = (struct fake_call){ .op = op };
    for (unsigned i = 0; i < n; i++) {
        if (!args[i]) continue;
        call->dtypes[call->n] = args[i]->storage.dtype;
        call->args[call->n++] = args[i];
        fake_record(args[i]);
    }
    if (current && current->jump_from_op) longjmp(*current->jump_from_op, 1);
}

static struct fake_tensor *like(const struct fake_tensor *tensor, int64_t n) {
    return fake_new(tensor->host, tensor->storage.dtype, n, 0.0);
}

static struct fake_tensor *op_linear(struct fake_tensor *x, struct fake_tensor *w, struct fake_tensor *b) {
    struct fake_tensor *args[] = { x, w, b }, *out = like(x, x->shape[0]);
    for (int64_t i = 0; i < x->shape[0]; i++)
        fake_set(out, i, fake_get(x, i) * fake_get(w, i) + (b ? fake_get(b, i) : 0.0));
    note("linear", args, 3);
    return out;
}

static struct fake_tensor *binary(const char *op, struct fake_tensor *a, struct fake_tensor *b, bool product) {
    struct fake_tensor *args[] = { a, b };
    note(op, args, 2);
    struct fake_tensor *out = like(a, a->shape[0]);
    for (int64_t i = 0; i < a->shape[0]; i++)
        fake_set(out, i, product ? fake_get(a, i) * fake_get(b, i) : fake_get(a, i) + fake_get(b, i));
    return out;
}

static struct fake_tensor *op_matmul(struct fake_tensor *a, struct fake_tensor *b) {
    return binary("matmul", a, b, true);
}
static struct fake_tensor *op_mul(struct fake_tensor *a, struct fake_tensor *b) { return binary("mul", a, b, true); }
static struct fake_tensor *op_add(struct fake_tensor *a, struct fake_tensor *b) { return binary("add", a, b, false); }

static void op_add_(struct fake_tensor *self, struct fake_tensor *other) {
    struct fake_tensor *args[] = { self, other };
    note("add_", args, 2);
    for (int64_t i = 0; i < self->shape[0]; i++) fake_set(self, i, fake_get(self, i) + fake_get(other, i));
}

static struct fake_tensor *op_cat(struct fake_tensor **tensors, int32_t n, int32_t dim) {
    (void)dim;
    note("cat", tensors, (unsigned)n);
    return like(tensors[0], tensors[0]->shape[0] * n);
}

static struct fake_tensor *unary(const char *op, struct fake_tensor *a) {
    struct fake_tensor *args[] = { a };
    note(op, args, 1);
    return like(a, a->shape[0]);
}

static struct fake_tensor *op_softmax(struct fake_tensor *a) { return unary("softmax", a); }
static struct fake_tensor *op_relu(struct fake_tensor *a) { /* made of another op of the table, as hosts do */
    struct fake_tensor *args[] = { a }, *zero = fake_new(a->host, AMP_FLOAT32, a->shape[0], 0.0);
    struct fake_tensor *out = current ? net_binary(current, OP_add, a, zero) : like(a, a->shape[0]);
    fake_release(zero);
    note("relu", args, 1);
    return out;
}

static struct fake_tensor *op_sum(struct fake_tensor *a) {
    double total = 0.0;
    for (int64_t i = 0; i < a->shape[0]; i++) total += fake_get(a, i);
    struct fake_tensor *out = unary("sum", a);
    fake_set(out, 0, total);
    return out;
}

static float op_nll_loss(struct fake_tensor *input, struct fake_tensor *target) {
    struct fake_tensor *args[] = { input, target };
    note("nll_loss", args, 2);
    return 1.0f;
}

static int32_t op_binary_cross_entropy(struct fake_tensor *input, struct fake_tensor *target) {
    struct fake_tensor *args[] = { input, target };
    note("binary_cross_entropy", args, 2);
    return 7;
}

static void op_exp_(struct fake_tensor *self) {
    struct fake_tensor *args[] = { self };
    note("exp_", args, 1);
    for (int64_t i = 0; i < self->shape[0]; i++) fake_set(self, i, exp(fake_get(self, i)));
}

/* ---- the model and its optimizer ---- */

static struct fake_tensor *host_forward(struct net *net, struct fake_tensor *x) {
    if (net->jump_from_forward) longjmp(*net->jump_from_forward, 1);
    struct fake_tensor *hidden = net_linear(net, x, net->weight, net->bias);
    if (!hidden) return NULL;
    struct fake_tensor *out = net_binary(net, OP_mul, hidden, net->gamma);
    fake_release(hidden);
    return out;
}

static int32_t host_step(struct net *net) {
    net->step_saw = net->weight->storage.dtype;
    net->step_handle = net->weight->grad;
    net->step_grad = net->weight->grad ? net->weight->grad->storage.dtype : AMP_DTYPE_DEFAULT;
    if (net->jump_from_step) longjmp(*net->jump_from_step, 1);
    for (size_t k = 0; k < 3; k++) {
        struct fake_tensor *param = net->trained[k];
        for (int64_t i = 0; param->grad && i < NET_SIZE; i++) /* product and difference rounded to float, as SGD in C */
            fake_set(param, i, (double)((float)fake_get(param, i) - net->rate * (float)fake_get(param->grad, i)));
        if (net->step_drops_grads) fake_put_grad(param, NULL);
    }
    net->steps++;
    return 1;
}

static void host_zero_grad(struct net *net) {
    for (size_t k = 0; k < 3; k++) {
        struct fake_tensor *param = net->trained[k];
        if (!param->grad) continue;
        if (net->host->options & FAKE_NO_SET_GRAD) fake_fill(param->grad, 0.0);
        else fake_put_grad(param, NULL);
    }
}

static amp_op describe(const char *name, const char *schema, amp_fn *slot) {
    return (amp_op){ .struct_size = sizeof(amp_op), .name = name, .schema = schema, .slot = slot };
}

static amp_param param_of(struct fake_tensor *tensor, const char *name, int32_t kind) {
    return (amp_param){ sizeof(amp_param), kind, tensor, name };
}

static void describe_net(struct net *net) {
#define NET_OP_ENTRY(op, op_schema)                                                                                    \
    net->table[OP_##op] = net->original[OP_##op] = (amp_fn)op_##op;                                                    \
    net->ops[OP_##op] = describe(#op, op_schema, &net->table[OP_##op]);
    NET_OPS(NET_OP_ENTRY)
#undef NET_OP_ENTRY
    net->forward = net->original_forward = (amp_fn)host_forward;
    net->step = net->original_step = (amp_fn)host_step;
    net->zero_grad = net->original_zero_grad = (amp_fn)host_zero_grad;
    net->forward_op = describe("forward", "forward(pointer self, Tensor x) -> Tensor", &net->forward);
    net->step_op = describe("step", "step(pointer self) -> int32", &net->step);
    net->zero_grad_op = describe("zero_grad", "zero_grad(pointer self) -> void", &net->zero_grad);
    const amp_param params[NET_PARAMS] = {
        param_of(net->weight, "weight", AMP_MODULE_OTHER), param_of(net->bias, "bias", AMP_MODULE_OTHER),
        param_of(net->gamma, "gamma", AMP_MODULE_BATCH_NORM), param_of(net->mean, "mean", AMP_MODULE_BATCH_NORM),
        param_of(net->count, "count", AMP_MODULE_OTHER), param_of(net->wide, "wide", AMP_MODULE_OTHER)
    };
    memcpy(net->params, params, sizeof params);
    net->model = (amp_model){ .struct_size = sizeof(amp_model), .flags = AMP_MODEL_WHOLE_TABLE,
                              .host = &net->host->hooks, .self = net, .ops = net->ops, .n_ops = N_NET_OPS,
                              .params = net->params, .n_params = NET_PARAMS, .forward = &net->forward_op };
    net->optimizer = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .host = &net->host->hooks, .self = net,
                                      .params = net->trained, .n_params = 3, .steps = &net->step_op, .n_steps = 1,
                                      .zero_grads = &net->zero_grad_op, .n_zero_grads = 1 };
}

void net_init(struct net *net, struct fake *host) {
    memset(net, 0, sizeof *net);
    net->host = host;
    net->rate = 0.125f;
    net->weight = fake_new(host, AMP_FLOAT32, NET_SIZE, 0.5);
    net->bias = fake_new(host, AMP_FLOAT32, NET_SIZE, 0.25);
    net->gamma = fake_new(host, AMP_FLOAT32, NET_SIZE, 1.0);
    net->mean = fake_new(host, AMP_FLOAT32, NET_SIZE, 0.1);
    net->count = fake_new(host, AMP_DTYPE_OTHER, 1, 3.0);
    net->wide = fake_new(host, AMP_FLOAT64, NET_SIZE, 0.1);
    net->weight->requires_grad = net->bias->requires_grad = net->gamma->requires_grad = true;
    net->trained[0] = net->weight;
    net->trained[1] = net->bias;
    net->trained[2] = net->gamma;
    if (host->options & FAKE_NO_SET_GRAD)
        for (size_t k = 0; k < 3; k++)
            fake_put_grad(net->trained[k], fake_new(host, AMP_FLOAT32, NET_SIZE, 0.0));
    describe_net(net);
    current = net;
}

void net_destroy(struct net *net) {
    struct fake_tensor *all[] = { net->weight, net->bias, net->gamma, net->mean, net->count, net->wide };
    for (size_t i = 0; i < NET_PARAMS; i++) fake_release(all[i]);
    current = NULL;
}
