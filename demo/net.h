/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small residual network for 8x8 images:
 *
 *   conv 1->16, bn, relu
 *   block at 8x8, max pool, block at 4x4
 *     (block: conv, bn, relu, conv, bn, + input, relu)
 *   average pool, dropout, linear 16->10
 *
 * It is written against minitape alone and calls operators through the
 * table only.
 */
#ifndef NET_H
#define NET_H

#include "minitape.h"

#define NET_CONVS 5
#define NET_TENSORS (NET_CONVS * 5 + 2)

struct net_tensor {
	char name[32]; /* "conv1.weight", "bn1.running_mean", ... */
	mt_tensor *tensor;
	int is_norm;   /* belongs to a batch norm */
	int is_buffer; /* not trained */
};

/* Tensors owned by the list. */
struct net_conv {
	mt_tensor *weight;
	mt_tensor *gain, *shift, *mean, *var; /* of its batch norm */
};

struct net {
	/* [N, 10] scores for images [N, 1, 8, 8] of any floating type that
	 * the table's operators accept; NULL on an error. */
	mt_tensor *(*forward)(struct net *self, mt_tensor *images);
	mt_ops *ops;
	int training;
	float dropout;         /* probability; 0: none */
	uint64_t dropout_seed; /* moves on with every use */
	struct net_conv conv[NET_CONVS];
	mt_tensor *head_weight, *head_bias;
	struct net_tensor list[NET_TENSORS];
	int n_list;
};

/* In training mode, without dropout.  0, or -1 with mt_error(). */
int net_init(struct net *net, mt_ops *ops, uint64_t seed);
void net_done(struct net *net);

/* Fills params (room for NET_TENSORS) with what is trained; how many. */
size_t net_params(const struct net *net, mt_tensor **params);

/* The mean loss of scores from forward, or NULL. */
mt_tensor *net_loss(struct net *net, mt_tensor *scores, mt_tensor *labels);

/* How many of the scores' rows are largest at their label. */
int net_count_correct(const mt_tensor *scores, const mt_tensor *labels);

#endif
