/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 16
#define CLASSES 10
#define BN_MOMENTUM 0.1F
#define BN_EPS 1e-5F

/* ---- construction ------------------------------------------------------- */

enum kind { KIND_PARAM, KIND_NORM_PARAM, KIND_NORM_BUFFER };

/* A tensor of a layer, all `value`; numbered layers count from 1. */
static mt_tensor *add(struct net *net, enum kind kind, const char *layer,
                      int number, const char *field, int ndim,
                      const int *shape, double value)
{
	struct net_tensor *entry = &net->list[net->n_list];
	mt_tensor *t = mt_tensor_new(MT_F32, ndim, shape, MT_MEM_PARAMETER);

	if (!t)
		return NULL;
	mt_fill(t, value);
	t->requires_grad = kind != KIND_NORM_BUFFER;
	if (number)
		snprintf(entry->name, sizeof(entry->name), "%s%d.%s", layer,
		         number, field);
	else
		snprintf(entry->name, sizeof(entry->name), "%s.%s", layer,
		         field);
	entry->tensor = t;
	entry->is_norm = kind != KIND_PARAM;
	entry->is_buffer = kind == KIND_NORM_BUFFER;
	net->n_list++;
	return t;
}

static void fill_normal(mt_tensor *t, double deviation, mt_rng *rng)
{
	for (size_t i = 0; t && i < mt_numel(t); i++)
		mt_set(t, i, deviation * (double)mt_rng_normal(rng));
}

/*
 * A 3x3 convolution, initialised after He, and its batch norm.  Where that
 * ends a block its gain starts at zero, so that a new block passes its input
 * on (Goyal et al., "Accurate, large minibatch SGD").
 */
static int add_conv(struct net *net, int number, int channels, mt_rng *rng)
{
	int ends_block = number == 3 || number == 5;
	struct net_conv *c = &net->conv[number - 1];
	int shape[] = {WIDTH, channels, 3, 3};

	c->weight = add(net, KIND_PARAM, "conv", number, "weight", 4, shape,
	                0.0);
	c->gain = add(net, KIND_NORM_PARAM, "bn", number, "weight", 1, shape,
	              ends_block ? 0.0 : 1.0);
	c->shift = add(net, KIND_NORM_PARAM, "bn", number, "bias", 1, shape,
	               0.0);
	c->mean = add(net, KIND_NORM_BUFFER, "bn", number, "running_mean", 1,
	              shape, 0.0);
	c->var = add(net, KIND_NORM_BUFFER, "bn", number, "running_var", 1,
	             shape, 1.0);
	fill_normal(c->weight, sqrt(2.0 / (channels * 9)), rng);
	return c->weight && c->gain && c->shift && c->mean && c->var ? 0 : -1;
}

static int add_head(struct net *net, mt_rng *rng)
{
	int shape[] = {CLASSES, WIDTH};

	net->head_weight = add(net, KIND_PARAM, "head", 0, "weight", 2, shape,
	                       0.0);
	net->head_bias = add(net, KIND_PARAM, "head", 0, "bias", 1, shape,
	                     0.0);
	fill_normal(net->head_weight, sqrt(1.0 / WIDTH), rng);
	return net->head_weight && net->head_bias ? 0 : -1;
}

/* ---- forward ------------------------------------------------------------ */

static mt_tensor *conv_bn(struct net *net, int number, mt_tensor *x)
{
	const mt_ops *ops = net->ops;
	const struct net_conv *c = &net->conv[number - 1];
	mt_tensor *y = ops->conv2d(x, c->weight, NULL, 1, 1);

	return mt_then(y, ops->batch_norm(y, c->gain, c->shift, c->mean,
	                                  c->var, net->training, BN_MOMENTUM,
	                                  BN_EPS));
}

/* Convolutions `first` and the next one, around which the input passes. */
static mt_tensor *block(struct net *net, int first, mt_tensor *x)
{
	const mt_ops *ops = net->ops;
	mt_tensor *y = conv_bn(net, first, x);

	y = mt_then(y, ops->relu(y));
	y = mt_then(y, conv_bn(net, first + 1, y));
	y = mt_then(y, ops->add(y, x));
	return mt_then(y, ops->relu(y));
}

static mt_tensor *forward(struct net *net, mt_tensor *images)
{
	const mt_ops *ops = net->ops;
	mt_tensor *x = conv_bn(net, 1, images);

	x = mt_then(x, ops->relu(x));
	x = mt_then(x, block(net, 2, x));
	x = mt_then(x, ops->max_pool2d(x, 2, 2));
	x = mt_then(x, block(net, 4, x));
	x = mt_then(x, ops->global_avg_pool(x));
	if (net->training && net->dropout > 0.0F)
		x = mt_then(x, ops->dropout(x, net->dropout, net->training,
		                            net->dropout_seed++));
	return mt_then(x, ops->linear(x, net->head_weight, net->head_bias));
}

/* ---- interface ---------------------------------------------------------- */

int net_init(struct net *net, mt_ops *ops, uint64_t seed)
{
	mt_rng rng = {seed};
	int status;

	memset(net, 0, sizeof(*net));
	net->forward = forward;
	net->ops = ops;
	net->training = 1;
	net->dropout_seed = mt_rng_next(&rng);
	status = add_conv(net, 1, 1, &rng);
	for (int i = 2; i <= NET_CONVS && status == 0; i++)
		status = add_conv(net, i, WIDTH, &rng);
	if (status == 0)
		status = add_head(net, &rng);
	if (status != 0)
		net_done(net);
	return status;
}

void net_done(struct net *net)
{
	for (int i = 0; i < net->n_list; i++)
		mt_release(net->list[i].tensor);
	net->n_list = 0;
}

size_t net_params(const struct net *net, mt_tensor **params)
{
	size_t n = 0;

	for (int i = 0; i < net->n_list; i++)
		if (!net->list[i].is_buffer)
			params[n++] = net->list[i].tensor;
	return n;
}

mt_tensor *net_loss(struct net *net, mt_tensor *scores, mt_tensor *labels)
{
	mt_tensor *logp = net->ops->log_softmax(scores);

	return mt_then(logp, net->ops->nll_loss(logp, labels));
}

int net_count_correct(const mt_tensor *scores, const mt_tensor *labels)
{
	int classes = scores->shape[1], correct = 0;

	for (int i = 0; i < scores->shape[0]; i++) {
		int best = 0;

		for (int c = 1; c < classes; c++)
			if (mt_get(scores, (size_t)(i * classes + c)) >
			    mt_get(scores, (size_t)(i * classes + best)))
				best = c;
		correct += best == (int)mt_get(labels, (size_t)i);
	}
	return correct;
}
