/* SPDX-License-Identifier: Apache-2.0 */
/* A small classifier over torch_shim.h, in a session: for the tests of amp_torch.h in C. */
#ifndef DIGITS_NET_H
#define DIGITS_NET_H

#include "torch_shim.h"

enum { FIRST_WEIGHT, FIRST_BIAS, NORM, SECOND_WEIGHT = NORM + 4, SECOND_BIAS, N_TENSORS, N_PARAMS = 6 };
enum { PIXELS = 64, HIDDEN = 32, CLASSES = 10 };

struct net {
    amp_torch_tensor tensors[N_TENSORS], params[N_PARAMS];
    amp_torch_session *session;
};

/* Random parameters of a seed; open puts them into a session. */
struct net net_new(uint64_t seed);
amp_status net_open(struct net *net, amp_level level, const amp_config *config);
/* Closes the session, if there is one. */
void net_free(struct net *net);

/* New tensors: the logits of x, in FP32; and the loss. */
amp_torch_tensor net_forward(const struct net *net, amp_torch_tensor x, int32_t training);
amp_torch_tensor net_loss(const struct net *net, amp_torch_tensor x, amp_torch_tensor labels);
/* Gradients of a loss, in a bracket of its own: what was decided. */
amp_action net_backward(const struct net *net, amp_torch_tensor x, amp_torch_tensor labels);

#endif
