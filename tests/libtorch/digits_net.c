/* SPDX-License-Identifier: Apache-2.0 */
#include "digits_net.h"

#include "test.h"

static const char *const names[N_TENSORS] = { "first.weight",      "first.bias",       "norm.weight",   "norm.bias",
                                              "norm.running_mean", "norm.running_var", "second.weight", "second.bias" };
static const uint8_t is_norm[N_TENSORS] = { 0, 0, 1, 1, 1, 1, 0, 0 };

struct net net_new(uint64_t seed) {
    torch_seed(seed);
    struct net net = { .params = { NULL } };
    net.tensors[FIRST_WEIGHT] = torch_param(HIDDEN, PIXELS, 0.125);
    net.tensors[FIRST_BIAS] = torch_param(HIDDEN, 0, 0.125);
    for (int i = 0; i < 2; i++) net.tensors[NORM + i] = torch_param(HIDDEN, 0, 1.0);
    net.tensors[NORM + 2] = torch_full(HIDDEN, 0, 0.0);
    net.tensors[NORM + 3] = torch_full(HIDDEN, 0, 1.0);
    net.tensors[SECOND_WEIGHT] = torch_param(CLASSES, HIDDEN, 0.18);
    net.tensors[SECOND_BIAS] = torch_param(CLASSES, 0, 0.18);
    for (int i = 0, n = 0; i < N_TENSORS; i++)
        if (i != NORM + 2 && i != NORM + 3) net.params[n++] = net.tensors[i];
    return net;
}

amp_status net_open(struct net *net, amp_level level, const amp_config *config) {
    return amp_torch_open(level, config, net->tensors, names, is_norm, NULL, N_TENSORS, &net->session);
}

void net_free(struct net *net) {
    ck_assert_int_eq(amp_torch_close(net->session), AMP_OK);
    for (int i = 0; i < N_TENSORS; i++) torch_free(net->tensors[i]);
}

amp_torch_tensor net_forward(const struct net *net, amp_torch_tensor x, int32_t training) {
    const amp_torch_tensor *const t = net->tensors;
    amp_torch_tensor low = NULL, logits = NULL;
    ck_assert_int_eq(amp_torch_cast_inputs(net->session, &x, 1, &low), AMP_OK);
    const amp_torch_tensor first = torch_linear(low, t[FIRST_WEIGHT], t[FIRST_BIAS]);
    const amp_torch_tensor normed = torch_batch_norm(first, t + NORM, training), active = torch_relu(normed);
    const amp_torch_tensor second = torch_linear(active, t[SECOND_WEIGHT], t[SECOND_BIAS]);
    ck_assert_int_eq(amp_torch_cast_outputs(net->session, &second, 1, &logits), AMP_OK);
    const amp_torch_tensor all[] = { low, first, normed, active, second };
    for (int i = 0; i < 5; i++) amp_torch_tensor_free(all[i]);
    return logits;
}

amp_torch_tensor net_loss(const struct net *net, amp_torch_tensor x, amp_torch_tensor labels) {
    amp_torch_guard guard = 0;
    ck_assert_int_eq(amp_torch_enter(net->session, &guard), AMP_OK);
    const amp_torch_tensor logits = net_forward(net, x, 1), loss = torch_cross_entropy(logits, labels);
    ck_assert_int_eq(amp_torch_leave(guard), AMP_OK);
    torch_free(logits);
    return loss;
}

amp_action net_backward(const struct net *net, amp_torch_tensor x, amp_torch_tensor labels) {
    const amp_torch_tensor loss = net_loss(net, x, labels);
    amp_torch_tensor scaled = NULL;
    amp_action action = -1;
    for (int i = 0; i < N_PARAMS; i++) torch_clear_grad(net->params[i]);
    ck_assert_int_eq(amp_torch_begin(net->session, loss, 0, NULL, 0, 0, &scaled), AMP_OK);
    torch_backward(scaled);
    ck_assert_int_eq(amp_torch_end(net->session, 0, &action), AMP_OK);
    torch_free(scaled);
    torch_free(loss);
    return action;
}
