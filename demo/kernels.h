/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes minitape faster, and not only smaller, under libamp: 16-bit convolution and linear layer by amp_matmul,
 * libamp's own optimizer, and the sizes from which on 16 bits pay, by the clock. All of it is optional: adapter.c alone
 * is a complete adapter.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "adapter.h"

#include <amp_optim.h>

/* ---- before amp_initialize ---- */

/* Gives conv2d and linear their fp16 and bf16 implementations; fp32: for FP32 calls as well, at O0 too. */
void kernels_add(struct adapter *adapter, int fp32);

/* libamp's optimizer in the place of the host's step, with the host's rule and numbers. *fused and *rule are kept until
 * amp_initialize. */
void kernels_fuse(struct adapter *adapter, amp_fused *fused, amp_optim *rule);

/* ---- after it ---- */

/* One step: the host's rate, which its schedule changes, and then libamp's optimizer. */
amp_status kernels_step(struct adapter *adapter, const mt_optimizer *optimizer);

/* For a context with amp_config.gate: conv2d and linear at the network's sizes in FP32 and in `low`, measured once in
 * the life of the process, before anything is wired. fp32: as in kernels_add. 0, or -1 with mt_error(). */
int kernels_measure(const struct net *net, mt_dtype low, int batch, int fp32);
/* Hands what was measured to libamp. */
amp_status kernels_gate(amp_context *context, mt_dtype low, int batch);

#endif
