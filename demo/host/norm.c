/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch normalisation.  For its gradient it keeps the input, which the
 * convolution before it made anyway, and two floats per channel.
 */
#include "device.h"

#include <math.h>

double mti_sum(const float *values, size_t n)
{
	float lanes[8] = {0};
	double sum = 0.0;
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (size_t j = 0; j < 8; j++)
			lanes[j] += values[i + j];
	for (; i < n; i++)
		lanes[i % 8] += values[i];
	for (size_t j = 0; j < 8; j++)
		sum += (double)lanes[j];
	return sum;
}

/* Where the elements of one channel lie: `images` runs of `plane`. */
struct channels {
	size_t images;
	size_t count;
	size_t plane;
};

static struct channels channels_of(const mt_tensor *t)
{
	struct channels ch = {(size_t)t->shape[0], (size_t)t->shape[1], 1};

	for (int i = 2; i < t->ndim; i++)
		ch.plane *= (size_t)t->shape[i];
	return ch;
}

/*
 * Calls body(user, at, n) for all pieces of a channel, at most a tile each.
 * One loop serves the four passes over the data below.
 */
static void each_piece(const struct channels *ch, size_t channel,
                       void (*body)(void *user, size_t at, size_t n),
                       void *user)
{
	for (size_t i = 0; i < ch->images; i++) {
		size_t base = (i * ch->count + channel) * ch->plane;

		for (size_t p = 0; p < ch->plane; p += MTI_TILE)
			body(user, base + p, mti_min(ch->plane - p, MTI_TILE));
	}
}

/* The state of the passes over one channel. */
struct pass {
	const mt_tensor *x; /* the input, */
	const mt_tensor *g; /* the gradient of the output, */
	mt_tensor *out;     /* what is written */
	float mean;
	float a, b, c; /* out = a * x (or g) + b * (x - mean) + c */
	double sum;
	double dot;
};

static void sum_piece(void *user, size_t at, size_t n)
{
	struct pass *p = user;
	float buffer[MTI_TILE];

	p->sum += mti_sum(mti_read(p->x, at, n, buffer), n);
}

static void square_piece(void *user, size_t at, size_t n)
{
	struct pass *p = user;
	float buffer[MTI_TILE], squares[MTI_TILE];
	const float *x = mti_read(p->x, at, n, buffer);

	for (size_t i = 0; i < n; i++)
		squares[i] = (x[i] - p->mean) * (x[i] - p->mean);
	p->sum += mti_sum(squares, n);
}

static void normalise_piece(void *user, size_t at, size_t n)
{
	struct pass *p = user;
	float bx[MTI_TILE], bo[MTI_TILE];
	const float *x = mti_read(p->x, at, n, bx);
	float *o = mti_begin(p->out, at, bo);

	for (size_t i = 0; i < n; i++)
		o[i] = (x[i] - p->mean) * p->b + p->c;
	mti_end(p->out, at, n, o);
}

static void grad_sums_piece(void *user, size_t at, size_t n)
{
	struct pass *p = user;
	float bx[MTI_TILE], bg[MTI_TILE], products[MTI_TILE];
	const float *x = mti_read(p->x, at, n, bx);
	const float *g = mti_read(p->g, at, n, bg);

	for (size_t i = 0; i < n; i++)
		products[i] = g[i] * (x[i] - p->mean);
	p->sum += mti_sum(g, n);
	p->dot += mti_sum(products, n);
}

static void grad_input_piece(void *user, size_t at, size_t n)
{
	struct pass *p = user;
	float bx[MTI_TILE], bg[MTI_TILE], bo[MTI_TILE];
	const float *x = mti_read(p->x, at, n, bx);
	const float *g = mti_read(p->g, at, n, bg);
	float *o = mti_begin(p->out, at, bo);

	for (size_t i = 0; i < n; i++)
		o[i] = g[i] * p->a + (x[i] - p->mean) * p->b + p->c;
	mti_end(p->out, at, n, o);
}

/* ---- backward ---------------------------------------------------------- */

/* The three gradients of one channel; those not wanted are NULL. */
static void channel_backward(const mt_node *node, mt_tensor *grad,
                             size_t channel, mt_tensor **grads)
{
	const struct channels ch = channels_of(grad);
	const float *stats = node->rec.aux->data;
	float invstd = stats[2 * channel + 1];
	float gain = (float)mt_get(node->rec.saved[1], channel) * invstd;
	double n = (double)(ch.images * ch.plane);
	struct pass p = {.x = node->rec.saved[0],
	                 .g = grad,
	                 .out = grads[0],
	                 .mean = stats[2 * channel]};

	each_piece(&ch, channel, grad_sums_piece, &p);
	if (grads[1])
		mt_set(grads[1], channel, p.dot * (double)invstd);
	if (grads[2])
		mt_set(grads[2], channel, p.sum);
	if (!grads[0])
		return;
	p.a = gain;
	if (node->rec.arg[0]) { /* mean and variance depend on the input */
		double variance_share = p.dot * (double)(invstd * invstd) / n;

		p.b = (float)(-(double)gain * variance_share);
		p.c = (float)(-(double)gain * p.sum / n);
	}
	each_piece(&ch, channel, grad_input_piece, &p);
}

static struct mtk_bn there(const mt_tensor *x, const mt_tensor *weight,
                           float *stats, int training)
{
	const struct channels ch = channels_of(x);
	struct mtk_bn bn = {.x = mti_ref(x),
	                    .weight = mti_ref(weight),
	                    .stats = stats,
	                    .images = ch.images,
	                    .channels = ch.count,
	                    .plane = ch.plane,
	                    .training = training};

	return bn;
}

/* The gradients of all channels on a device. */
static int backward_there(const mt_node *node, mt_tensor *grad,
                          mt_tensor **grads)
{
	struct mtk_bn bn = there(node->rec.saved[0], node->rec.saved[1],
	                         node->rec.aux->data, node->rec.arg[0]);
	mt_storage *shares = mt_storage_new_on(
		MT_CUDA, 3 * bn.channels * sizeof(float), MT_MEM_OTHER);

	if (!shares)
		return -1;
	bn.shares = shares->data;
	bn.grad = mti_ref(grad);
	bn.out = mti_ref(grads[0]);
	bn.weight_grad = mti_ref(grads[1]);
	bn.bias_grad = mti_ref(grads[2]);
	mti_run(MTK_bn_sums, &bn, bn.channels);
	if (grads[0])
		mti_run(MTK_bn_input_grad, &bn, mt_numel(grad));
	mt_storage_free(shares);
	return 0;
}

static int batch_norm_backward(const mt_node *node, mt_tensor *grad,
                               mt_tensor **grads)
{
	for (int i = 0; i < 3; i++) {
		if (!mti_wants(node, i))
			continue;
		grads[i] = mti_grad_for(node, i);
		if (!grads[i])
			return -1;
	}
	if (mti_there(grad))
		return backward_there(node, grad, grads);
	for (size_t c = 0; c < (size_t)grad->shape[1]; c++)
		channel_backward(node, grad, c, grads);
	return 0;
}

/* ---- forward ----------------------------------------------------------- */

static void move_towards(mt_tensor *running, size_t channel, double value,
                         float momentum)
{
	double old = mt_get(running, channel);

	mt_set(running, channel, old + (double)momentum * (value - old));
}

/* Statistics of the batch for one channel; updates the running ones. */
static void measure(struct pass *p, const struct channels *ch, size_t channel,
                    mt_tensor *running_mean, mt_tensor *running_var,
                    float momentum, double *variance)
{
	double n = (double)(ch->images * ch->plane);
	double mean;

	p->sum = 0.0;
	each_piece(ch, channel, sum_piece, p);
	mean = p->sum / n;
	p->mean = (float)mean;
	p->sum = 0.0;
	each_piece(ch, channel, square_piece, p);
	*variance = p->sum / n;
	move_towards(running_mean, channel, mean, momentum);
	/* The running variance is the unbiased estimate. */
	move_towards(running_var, channel, n > 1 ? p->sum / (n - 1) : 0.0,
	             momentum);
}

static void forward_there(struct mtk_bn *bn, mt_tensor *out, mt_tensor *mean,
                          mt_tensor *var)
{
	bn->out = mti_ref(out);
	bn->mean = mti_ref(mean);
	bn->var = mti_ref(var);
	if (bn->training) {
		mti_run(MTK_bn_mean, bn, bn->channels);
		mti_run(MTK_bn_variance, bn, bn->channels);
		mean->version++;
		var->version++;
	} else {
		mti_run(MTK_bn_running, bn, bn->channels);
	}
	mti_run(MTK_bn_output, bn, mt_numel(out));
}

static int check(mt_tensor *const in[5])
{
	int channels;

	if (!mti_check("batch_norm", 1, in) ||
	    !mti_check("batch_norm parameters", 4, in + 1) ||
	    !mti_check_device("batch_norm", 1, in[1], in[0]))
		return 0;
	if (in[1]->dtype != in[0]->dtype && in[1]->dtype != MT_F32) {
		mti_fail("batch_norm: the input is %s but the parameters "
		         "are %s",
		         mt_dtype_name(in[0]->dtype),
		         mt_dtype_name(in[1]->dtype));
		return 0;
	}
	if (in[0]->ndim < 2) {
		mti_fail("batch_norm: the input has no channels");
		return 0;
	}
	channels = in[0]->shape[1];
	return mti_check_vector("batch_norm", "weight", in[1], channels) &&
	       mti_check_vector("batch_norm", "bias", in[2], channels) &&
	       mti_check_vector("batch_norm", "running_mean", in[3],
	                        channels) &&
	       mti_check_vector("batch_norm", "running_var", in[4], channels);
}

mt_tensor *mti_batch_norm(mt_tensor *input, mt_tensor *weight,
                          mt_tensor *bias, mt_tensor *running_mean,
                          mt_tensor *running_var, int training,
                          float momentum, float eps)
{
	mt_tensor *in[] = {input, weight, bias, running_mean, running_var};
	struct mti_record rec = {.name = "batch_norm",
	                         .backward = batch_norm_backward,
	                         .saved = {input, weight},
	                         .arg = {training}};
	struct channels ch;
	struct pass p = {.x = input};
	float *stats;

	if (!check(in))
		return NULL;
	ch = channels_of(input);
	rec.aux = mti_beside(input, 2 * ch.count * sizeof(float));
	p.out = rec.aux ? mti_like(input) : NULL;
	if (!p.out)
		return mti_finish(NULL, &rec, 3, in);
	stats = rec.aux->data;
	if (mti_there(input)) {
		struct mtk_bn bn = there(input, weight, stats, training);

		bn.bias = mti_ref(bias);
		bn.momentum = momentum;
		bn.eps = eps;
		forward_there(&bn, p.out, running_mean, running_var);
		return mti_finish(p.out, &rec, 3, in);
	}
	for (size_t c = 0; c < ch.count; c++) {
		double variance = mt_get(running_var, c);

		p.mean = (float)mt_get(running_mean, c);
		if (training)
			measure(&p, &ch, c, running_mean, running_var,
			        momentum, &variance);
		stats[2 * c] = p.mean;
		stats[2 * c + 1] = (float)(1.0 / sqrt(variance + (double)eps));
		p.b = (float)mt_get(weight, c) * stats[2 * c + 1];
		p.c = (float)mt_get(bias, c);
		each_piece(&ch, c, normalise_piece, &p);
	}
	return mti_finish(p.out, &rec, 3, in);
}
