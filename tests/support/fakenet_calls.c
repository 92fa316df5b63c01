/* SPDX-License-Identifier: Apache-2.0 */
/* The program's side: calls through the slots, and a training step. */
#include "fakenet.h"

typedef struct fake_tensor *(*unary_fn)(struct fake_tensor *);
typedef struct fake_tensor *(*binary_fn)(struct fake_tensor *, struct fake_tensor *);
typedef struct fake_tensor *(*ternary_fn)(struct fake_tensor *, struct fake_tensor *, struct fake_tensor *);
typedef struct fake_tensor *(*cat_fn)(struct fake_tensor **, int32_t, int32_t);
typedef struct fake_tensor *(*forward_fn)(struct net *, struct fake_tensor *);

struct fake_tensor *net_linear(struct net *net, struct fake_tensor *x, struct fake_tensor *w, struct fake_tensor *b) {
    return ((ternary_fn)net->table[OP_linear])(x, w, b);
}

struct fake_tensor *net_binary(struct net *net, enum net_op op, struct fake_tensor *a, struct fake_tensor *b) {
    return ((binary_fn)net->table[op])(a, b);
}

struct fake_tensor *net_unary(struct net *net, enum net_op op, struct fake_tensor *a) {
    return ((unary_fn)net->table[op])(a);
}

struct fake_tensor *net_cat(struct net *net, struct fake_tensor **tensors, int32_t n) {
    return ((cat_fn)net->table[OP_cat])(tensors, n, 0);
}

void net_add_(struct net *net, struct fake_tensor *self, struct fake_tensor *other) {
    ((void (*)(struct fake_tensor *, struct fake_tensor *))net->table[OP_add_])(self, other);
}

void net_exp_(struct net *net, struct fake_tensor *self) {
    ((void (*)(struct fake_tensor *))net->table[OP_exp_])(self);
}

int32_t net_bce(struct net *net, struct fake_tensor *input, struct fake_tensor *target) {
    return ((int32_t(*)(struct fake_tensor *, struct fake_tensor *))net->table[OP_binary_cross_entropy])(input, target);
}

struct fake_tensor *net_forward(struct net *net, struct fake_tensor *x) { return ((forward_fn)net->forward)(net, x); }
int32_t net_step(struct net *net) { return ((int32_t (*)(struct net *))net->step)(net); }
void net_zero_grad(struct net *net) { ((void (*)(struct net *))net->zero_grad)(net); }

/* ---- training ---- */

static void accumulate(struct fake_tensor *param, int64_t i, double value) {
    struct fake *host = param->host;
    if (!param->grad) {
        const amp_dtype dtype = host->options & FAKE_FP32_GRADS ? AMP_FLOAT32 : fake_dtype(param);
        fake_put_grad(param, fake_new(host, dtype, param->shape[0], 0.0));
    }
    fake_set(param->grad, i, fake_get(param->grad, i) + value);
}

void net_backward(struct net *net, double x, double factor) {
    for (int64_t i = 0; i < NET_SIZE; i++) {
        const double weight = fake_get(net->weight, i), bias = fake_get(net->bias, i), gamma = fake_get(net->gamma, i);
        accumulate(net->weight, i, x * gamma * factor);
        accumulate(net->bias, i, gamma * factor);
        accumulate(net->gamma, i, (x * weight + bias) * factor);
    }
}

amp_status net_train_step(struct net *net, double x) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct fake_tensor *input = fake_new(net->host, AMP_FLOAT32, NET_SIZE, x), *out = net_forward(net, input),
                       *loss = NULL;
    amp_status status = AMP_OK;
    if (out) loss = net_unary(net, OP_sum, out);
    if (loss) status = amp_scale_loss_begin(&net->optimizer, loss, &scaled);
    if (loss && status == AMP_OK) {
        net_backward(net, x, fake_seed(&scaled));
        status = amp_scale_loss_end(&scaled);
    }
    fake_tape_clear(net->host);
    (void)net_step(net);
    net_zero_grad(net);
    if (loss) fake_release(loss);
    if (out) fake_release(out);
    fake_release(input);
    return status;
}

bool net_slots_restored(const struct net *net) {
    for (size_t i = 0; i < N_NET_OPS; i++)
        if (net->table[i] != net->original[i]) return false;
    return net->forward == net->original_forward && net->step == net->original_step &&
           net->zero_grad == net->original_zero_grad;
}
