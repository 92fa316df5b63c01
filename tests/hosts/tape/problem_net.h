/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts' common problem as a network of minitape, in the form that the demo's adapter describes. */
#ifndef PROBLEM_NET_H
#define PROBLEM_NET_H

#include "kit.h"
#include "net.h"

#define ck_tensor(tensor) ck_assert_msg((tensor) != NULL, "%s; %s", mt_error(), amp_last_error())

/* net->list has the parameters in the problem's order, and then batch norm's statistics. */
void problem_net_init(struct net *net);
/* The step's images, and in *y its labels. */
mt_tensor *problem_net_batch(const float *x, const int32_t *labels, int step, mt_tensor **y);

#endif
