/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp for minitape: everything a program needs to train its network under an opt level. This is the part to copy and
 * change for another framework; docs/reference/hooks.md explains each hook.
 */
#ifndef ADAPTER_H
#define ADAPTER_H

#include "net.h"

#include <amp.h>

#define ADAPTER_OPS 15

struct adapter {
    struct net *net;
    void (*event)(void *self, const struct amp_event *event);
    void *event_self;
    char health[32];
    amp_model model;
    amp_optimizer optimizer;
    amp_host host;
    amp_op ops[ADAPTER_OPS];
    amp_op forward, step, zero_grad;
    amp_param params[NET_TENSORS];
    mt_tensor *trained[NET_TENSORS];
};

/* Describes the network and its optimizer; libamp is not called yet. The adapter, the network and the optimizer stay
 * where they are until amp_shutdown. on_event may be NULL; event_self is passed to it. */
void adapter_init(struct adapter *adapter, struct net *net, mt_optimizer *optimizer,
                  void (*on_event)(void *self, const struct amp_event *event), void *event_self);

/* A step of the host's optimizer where its parameters are on a device. On the CPU the slot `step` is wired: it is
 * called. An error that is the host's has its words in mt_error(). */
amp_status adapter_step(struct adapter *adapter, mt_optimizer *optimizer);

/* After a few steps: "sound", or how many findings there are, which `on_event` was told of. "" without a level. */
const char *adapter_health(struct adapter *adapter);

#endif
