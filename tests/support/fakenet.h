/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program on the fake host has: a table of ops, a model with a forward slot, an optimizer with step and
 * zero_grad slots, and their descriptors for libamp.
 *
 *     out = (x * weight + bias) * gamma,  loss = sum(out);  gradients are written down by hand in net_backward
 */
#ifndef TEST_FAKENET_H
#define TEST_FAKENET_H

#include "fakehost.h"

#include <setjmp.h>

/* X(name, schema) */
#define NET_OPS(X)                                                                                                     \
    X(linear, "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor")                                           \
    X(matmul, "matmul(Tensor a, Tensor b) -> Tensor")                                                                  \
    X(add, "add(Tensor a, Tensor b) -> Tensor")                                                                        \
    X(mul, "mul(Tensor a, Tensor b) -> Tensor")                                                                        \
    X(add_, "add_(Tensor(a!) self, Tensor other) -> void")                                                             \
    X(cat, "cat(Tensor[] tensors, int32 n, int32 dim) -> Tensor")                                                      \
    X(softmax, "softmax(Tensor input) -> Tensor")                                                                      \
    X(nll_loss, "nll_loss(Tensor input, Tensor target) -> float")                                                      \
    X(binary_cross_entropy, "binary_cross_entropy(Tensor input, Tensor target) -> int32")                              \
    X(exp_, "exp_(Tensor(a!) self) -> void")                                                                           \
    X(relu, "relu(Tensor input) -> Tensor")                                                                            \
    X(sum, "sum(Tensor input) -> Tensor")

enum net_op {
#define NET_OP_INDEX(name, schema) OP_##name,
    NET_OPS(NET_OP_INDEX)
#undef NET_OP_INDEX
    N_NET_OPS
};

enum { NET_SIZE = 4, NET_PARAMS = 6 };

struct net {
    struct fake *host;
    amp_fn table[N_NET_OPS]; /* the slots; original below */
    amp_fn original[N_NET_OPS];
    amp_fn forward, step, zero_grad;
    amp_fn original_forward, original_step, original_zero_grad;
    struct fake_tensor *weight, *bias, *gamma, *mean, *count, *wide; /* mean: BN statistics; count: int; wide: fp64 */
    float rate;
    int32_t steps;                  /* that ran */
    amp_dtype step_saw, step_grad;  /* types of weight and its gradient in the last step */
    void *step_handle;              /* the weight's gradient handle then */
    bool step_drops_grads;          /* the optimizer clears its gradients itself */
    jmp_buf *jump_from_forward, *jump_from_op, *jump_from_step;

    amp_op ops[N_NET_OPS], forward_op, step_op, zero_grad_op;
    amp_param params[NET_PARAMS];
    void *trained[3];
    amp_model model;
    amp_optimizer optimizer;
};

/* FP32 parameters: weight 0.5, bias 0.25, gamma 1 (batch norm), mean 0.1 (batch norm), an int and an fp64 tensor. */
void net_init(struct net *net, struct fake *host);
void net_destroy(struct net *net); /* releases its tensors */

/* Calls through the table, as the host's programs do. Results belong to the caller. */
struct fake_tensor *net_linear(struct net *net, struct fake_tensor *x, struct fake_tensor *w, struct fake_tensor *b);
struct fake_tensor *net_binary(struct net *net, enum net_op op, struct fake_tensor *a, struct fake_tensor *b);
struct fake_tensor *net_unary(struct net *net, enum net_op op, struct fake_tensor *a);
struct fake_tensor *net_cat(struct net *net, struct fake_tensor **tensors, int32_t n);
void net_add_(struct net *net, struct fake_tensor *self, struct fake_tensor *other);
void net_exp_(struct net *net, struct fake_tensor *self);
int32_t net_bce(struct net *net, struct fake_tensor *input, struct fake_tensor *target);
struct fake_tensor *net_forward(struct net *net, struct fake_tensor *x);
int32_t net_step(struct net *net);
void net_zero_grad(struct net *net);

/* Adds `factor` times the gradients at input value x to the parameters' gradients, in the gradients' own type. */
void net_backward(struct net *net, double x, double factor);
/* forward, bracket, backward, end, step, zero_grad: the bracket's status. Where an op was refused there is no loss and
 * no bracket; amp_check has the error then. */
amp_status net_train_step(struct net *net, double x);

/* Bit for bit: do all slots hold what the host put there? */
bool net_slots_restored(const struct net *net);

#endif
