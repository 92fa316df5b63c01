/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains the example's network without mixed precision, to see what the
 * framework itself reaches:
 *
 *   train_plain DATA [EPOCHS [SEED [f32|f16|bf16]]]
 *
 * With a 16-bit type, parameters, activations and gradients are all of that
 * type, batch norm excepted; it measures the kernels, it is no recipe.
 */
#include "digits.h"
#include "net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 32
#define LR 0.05

static double seconds(void)
{
	struct timespec t;

	timespec_get(&t, TIME_UTC);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Converts the parameters outside batch norm. */
static int convert_net(struct net *net, mt_dtype dtype)
{
	for (int i = 0; i < net->n_list; i++) {
		mt_tensor *t = net->list[i].tensor;
		size_t n = mt_numel(t);
		mt_storage *s;

		if (net->list[i].is_norm || dtype == MT_F32)
			continue;
		s = mt_storage_new(n * mt_dtype_size(dtype),
		                   MT_MEM_PARAMETER);
		if (!s)
			return -1;
		mt_convert(dtype, s->data, MT_F32, t->storage->data, n);
		mt_storage_free(mt_tensor_swap_storage(t, s, dtype));
	}
	return 0;
}

static int train_batch(struct net *net, mt_optimizer *opt, mt_tensor *images,
                       mt_tensor *labels, mt_dtype dtype)
{
	mt_tensor *scores = mt_then(images, net->ops->cast(images, dtype));
	mt_tensor *loss;
	int status;

	scores = mt_then(scores, net->forward(net, scores));
	loss = mt_then(scores, net_loss(net, scores, labels));
	mt_release(labels);
	opt->zero_grad(opt);
	status = mt_backward(loss);
	mt_release(loss);
	return status == 0 ? opt->step(opt) : -1;
}

static int train_epoch(struct net *net, mt_optimizer *opt,
                       const struct digits *data, uint64_t seed,
                       mt_dtype dtype)
{
	static struct digits_epoch epoch;
	mt_tensor *images, *labels;
	int status;

	digits_epoch_start(&epoch, data, BATCH, seed);
	while ((status = digits_epoch_next(&epoch, &images, &labels)) == 1)
		if (train_batch(net, opt, images, labels, dtype) < 0)
			return -1;
	return status;
}

static int test(struct net *net, const struct digits *data, mt_dtype dtype)
{
	int before = mt_set_grad_enabled(0);
	mt_tensor *images, *labels, *scores = NULL;
	int correct = -1;

	net->training = 0;
	if (digits_batch(data, data->test, DIGITS_TEST, &images, &labels) ==
	    0) {
		scores = mt_then(images, net->ops->cast(images, dtype));
		scores = mt_then(scores, net->forward(net, scores));
		if (scores)
			correct = net_count_correct(scores, labels);
		mt_release(scores);
		mt_release(labels);
	}
	net->training = 1;
	mt_set_grad_enabled(before);
	return correct;
}

static int train(struct net *net, const struct digits *data, int epochs,
                 uint64_t seed, mt_dtype dtype)
{
	mt_tensor *params[NET_TENSORS];
	size_t n = net_params(net, params);
	mt_optimizer *opt = mt_sgd_new(params, n, (float)LR, 0.9F, 1e-4F);
	double begin = seconds();
	int status = opt ? convert_net(net, dtype) : -1;

	mt_mem_reset_peak();
	for (int e = 0; e < epochs && status == 0; e++) {
		double phase = 3.14159265 * e / epochs;

		opt->lr = (float)(LR * 0.5 * (1.0 + cos(phase)));
		status = train_epoch(net, opt, data,
		                     seed * 1000 + (uint64_t)e, dtype);
	}
	if (status == 0) {
		double took = seconds() - begin;
		size_t peak = mt_mem_peak(MT_MEM_ACTIVATION);
		size_t scratch = mt_mem_peak(MT_MEM_OTHER);

		printf("%s seed %llu: %.2f%% in %.2f s, activations at most "
		       "%zu bytes, scratch %zu\n",
		       mt_dtype_name(dtype), (unsigned long long)seed,
		       100.0 * test(net, data, dtype) / DIGITS_TEST, took,
		       peak, scratch);
	}
	mt_optimizer_free(opt);
	return status;
}

static mt_dtype parse_dtype(const char *name)
{
	for (int d = MT_F32; d <= MT_BF16; d++)
		if (strcmp(mt_dtype_name((mt_dtype)d), name) == 0)
			return (mt_dtype)d;
	return MT_F32;
}

int main(int argc, char **argv)
{
	int epochs = argc > 2 ? atoi(argv[2]) : 15;
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
	mt_dtype dtype = argc > 4 ? parse_dtype(argv[4]) : MT_F32;
	char error[256] = "usage: train_plain DATA [EPOCHS [SEED [TYPE]]]";
	struct digits *data =
		argc > 1 ? digits_load(argv[1], error, sizeof(error)) : NULL;
	struct net net;
	int status = -1;

	if (!data) {
		fprintf(stderr, "%s\n", error);
		return 1;
	}
	if (net_init(&net, mt_ops_default(), seed) == 0) {
		status = train(&net, data, epochs, seed, dtype);
		net_done(&net);
	}
	if (status != 0)
		fprintf(stderr, "error: %s\n", mt_error());
	free(data);
	return status == 0 ? 0 : 1;
}
