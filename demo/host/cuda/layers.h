/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of layers do, for one element, or for one thread's share of
 * a row.  Plain C that is C++ too.
 */
#ifndef MINITAPE_CUDA_LAYERS_H
#define MINITAPE_CUDA_LAYERS_H

#include "elements.h"

#define MTK_THREADS 256 /* of a block */

/* ---- batch norm: rows are channels -------------------------------------- */

/* The i-th element of a channel. */
MTK_FN size_t mtk_bn_place(const struct mtk_bn *a, size_t channel, size_t i)
{
	return (i / a->plane * a->channels + channel) * a->plane +
	       i % a->plane;
}

MTK_FN void mtk_share_bn_mean(const struct mtk_bn *a, size_t channel,
                              size_t thread, double sums[2])
{
	for (size_t i = thread; i < a->images * a->plane; i += MTK_THREADS)
		sums[0] += (double)mtk_load(a->x, mtk_bn_place(a, channel, i));
}

MTK_FN void mtk_move_towards(struct mtk_ref running, size_t channel,
                             double value, float momentum)
{
	double old = (double)mtk_load(running, channel);

	mtk_store(running, channel,
	          (float)(old + (double)momentum * (value - old)));
}

MTK_FN void mtk_finish_bn_mean(const struct mtk_bn *a, size_t channel,
                               const double sums[2])
{
	double mean = sums[0] / (double)(a->images * a->plane);

	a->stats[2 * channel] = (float)mean;
	mtk_move_towards(a->mean, channel, mean, a->momentum);
}

MTK_FN void mtk_share_bn_variance(const struct mtk_bn *a, size_t channel,
                                  size_t thread, double sums[2])
{
	float mean = a->stats[2 * channel];

	for (size_t i = thread; i < a->images * a->plane; i += MTK_THREADS) {
		float x = mtk_load(a->x, mtk_bn_place(a, channel, i)) - mean;

		sums[0] += (double)(x * x);
	}
}

/* The running variance is the unbiased estimate. */
MTK_FN void mtk_finish_bn_variance(const struct mtk_bn *a, size_t channel,
                                   const double sums[2])
{
	double n = (double)(a->images * a->plane);

	a->stats[2 * channel + 1] =
		(float)(1.0 / sqrt(sums[0] / n + (double)a->eps));
	mtk_move_towards(a->var, channel, n > 1 ? sums[0] / (n - 1) : 0.0,
	                 a->momentum);
}

MTK_FN void mtk_each_bn_running(const struct mtk_bn *a, size_t channel)
{
	double variance = (double)mtk_load(a->var, channel);

	a->stats[2 * channel] = mtk_load(a->mean, channel);
	a->stats[2 * channel + 1] =
		(float)(1.0 / sqrt(variance + (double)a->eps));
}

MTK_FN void mtk_each_bn_output(const struct mtk_bn *a, size_t i)
{
	size_t channel = i / a->plane % a->channels;
	float gain = mtk_load(a->weight, channel) * a->stats[2 * channel + 1];
	float x = mtk_load(a->x, i) - a->stats[2 * channel];

	mtk_store(a->out, i, x * gain + mtk_load(a->bias, channel));
}

MTK_FN void mtk_share_bn_sums(const struct mtk_bn *a, size_t channel,
                              size_t thread, double sums[2])
{
	float mean = a->stats[2 * channel];

	for (size_t i = thread; i < a->images * a->plane; i += MTK_THREADS) {
		size_t at = mtk_bn_place(a, channel, i);
		float g = mtk_load(a->grad, at);

		sums[0] += (double)g;
		sums[1] += (double)(g * (mtk_load(a->x, at) - mean));
	}
}

MTK_FN void mtk_finish_bn_sums(const struct mtk_bn *a, size_t channel,
                               const double sums[2])
{
	double n = (double)(a->images * a->plane);
	float invstd = a->stats[2 * channel + 1];
	float gain = mtk_load(a->weight, channel) * invstd;
	float *share = a->shares + 3 * channel;
	double variance_share = sums[1] * (double)(invstd * invstd) / n;

	if (a->weight_grad.data)
		mtk_store(a->weight_grad, channel,
		          (float)(sums[1] * (double)invstd));
	if (a->bias_grad.data)
		mtk_store(a->bias_grad, channel, (float)sums[0]);
	share[0] = gain;
	share[1] = share[2] = 0.0F;
	if (a->training) { /* mean and variance depend on the input */
		share[1] = (float)(-(double)gain * variance_share);
		share[2] = (float)(-(double)gain * sums[0] / n);
	}
}

MTK_FN void mtk_each_bn_input_grad(const struct mtk_bn *a, size_t i)
{
	size_t channel = i / a->plane % a->channels;
	const float *share = a->shares + 3 * channel;
	float x = mtk_load(a->x, i) - a->stats[2 * channel];

	mtk_store(a->out, i,
	          mtk_load(a->grad, i) * share[0] + x * share[1] + share[2]);
}

/* ---- pooling ------------------------------------------------------------ */

/* The first of the largest elements; a nan counts as larger. */
MTK_FN void mtk_each_max_pool(const struct mtk_pool *a, size_t i)
{
	size_t pixel = i % ((size_t)a->out_h * (size_t)a->out_w);
	size_t plane = i / ((size_t)a->out_h * (size_t)a->out_w);
	int y = (int)(pixel / (size_t)a->out_w) * a->stride;
	int x = (int)(pixel % (size_t)a->out_w) * a->stride;
	float best = 0.0F;
	int best_k = 0;

	plane *= (size_t)a->height * (size_t)a->width;
	for (int k = 0; k < a->kernel * a->kernel; k++) {
		int at = (y + k / a->kernel) * a->width + x + k % a->kernel;
		float value = mtk_load(a->x, plane + (size_t)at);

		if (k == 0 || value > best || value != value) {
			best = value;
			best_k = k;
		}
	}
	mtk_store(a->out, i, best);
	a->index[i] = (unsigned char)best_k;
}

/* A pixel of the input asks the windows that it lies in, in their order. */
MTK_FN void mtk_each_max_pool_grad(const struct mtk_pool *a, size_t i)
{
	size_t size = (size_t)a->height * (size_t)a->width;
	size_t outputs = i / size * (size_t)(a->out_h * a->out_w);
	int y = (int)(i % size / (size_t)a->width);
	int x = (int)(i % size % (size_t)a->width);
	int first_y = (y - a->kernel + a->stride) / a->stride;
	int first_x = (x - a->kernel + a->stride) / a->stride;
	float sum = 0.0F;

	first_y = y < a->kernel ? 0 : first_y;
	first_x = x < a->kernel ? 0 : first_x;
	for (int oy = first_y; oy < a->out_h && oy * a->stride <= y; oy++)
		for (int ox = first_x; ox < a->out_w && ox * a->stride <= x;
		     ox++) {
			size_t at = outputs + (size_t)(oy * a->out_w + ox);
			int k = (y - oy * a->stride) * a->kernel + x -
			        ox * a->stride;

			if (a->index[at] == k)
				sum += mtk_load(a->out, at);
		}
	mtk_store(a->x, i, sum);
}

MTK_FN void mtk_each_avg_pool(const struct mtk_pool *a, size_t i)
{
	size_t size = (size_t)a->height * (size_t)a->width;
	double sum = 0.0;

	for (size_t j = 0; j < size; j++)
		sum += (double)mtk_load(a->x, i * size + j);
	mtk_store(a->out, i, (float)(sum / (double)size));
}

MTK_FN void mtk_each_avg_pool_grad(const struct mtk_pool *a, size_t i)
{
	size_t size = (size_t)a->height * (size_t)a->width;

	mtk_store(a->x, i, mtk_load(a->out, i / size) / (float)size);
}

/* ---- the loss ----------------------------------------------------------- */

MTK_FN void mtk_each_log_softmax(const struct mtk_softmax *a, size_t row)
{
	size_t at = row * a->classes;
	double largest = (double)mtk_load(a->x, at), sum = 0.0;

	for (size_t i = 1; i < a->classes; i++)
		largest = fmax(largest, (double)mtk_load(a->x, at + i));
	for (size_t i = 0; i < a->classes; i++)
		sum += exp((double)mtk_load(a->x, at + i) - largest);
	a->norm[row] = (float)(largest + log(sum));
	for (size_t i = at; i < at + a->classes; i++)
		mtk_store(a->out, i, (float)((double)mtk_load(a->x, i) -
		                             (double)a->norm[row]));
}

MTK_FN void mtk_each_log_softmax_grad(const struct mtk_softmax *a, size_t row)
{
	size_t at = row * a->classes;
	double sum = 0.0;

	for (size_t i = at; i < at + a->classes; i++)
		sum += (double)mtk_load(a->grad, i);
	for (size_t i = at; i < at + a->classes; i++) {
		double p = exp((double)mtk_load(a->x, i) -
		               (double)a->norm[row]);

		mtk_store(a->out, i,
		          (float)((double)mtk_load(a->grad, i) - sum * p));
	}
}

/* A target that is no class cannot be refused here: its loss is a nan. */
MTK_FN void mtk_share_nll(const struct mtk_nll *a, size_t none, size_t thread,
                          double sums[2])
{
	(void)none;
	for (size_t row = thread; row < a->rows; row += MTK_THREADS) {
		int32_t class_ = a->target[row];

		if (class_ < 0 || (size_t)class_ >= a->classes)
			sums[0] = (double)NAN;
		else
			sums[0] -= (double)mtk_load(a->logp,
			                            row * a->classes +
			                                    (size_t)class_);
	}
}

MTK_FN void mtk_finish_nll(const struct mtk_nll *a, size_t none,
                           const double sums[2])
{
	mtk_store(a->out, none, (float)(sums[0] / (double)a->rows));
}

MTK_FN void mtk_each_nll_grad(const struct mtk_nll *a, size_t i)
{
	size_t class_ = i % a->classes;
	double share = -(double)mtk_load(a->grad, 0) / (double)a->rows;
	int is_target = a->target[i / a->classes] == (int32_t)class_;

	mtk_store(a->out, i, is_target ? (float)share : 0.0F);
}

/* ---- convolution by products, see product.c ------------------------------ */

/* [depth][pixels]: pixels that lie between or outside of the image's are 0. */
MTK_FN void mtk_each_patches(const struct mtk_layout *a, size_t i)
{
	const struct geometry *g = &a->g;
	size_t plane = (size_t)g->out_h * (size_t)g->out_w;
	size_t pixel = i % ((size_t)g->images * plane);
	int d = (int)(i / ((size_t)g->images * plane));
	int image = (int)(pixel / plane), out = (int)(pixel % plane);
	int area = g->kernel_h * g->kernel_w;
	int y = out / g->out_w * g->stride + d % area / g->kernel_w - g->pad_y;
	int x = out % g->out_w * g->stride + d % g->kernel_w - g->pad_x;
	int inside = y >= 0 && x >= 0 && y % g->dilation == 0 &&
	             x % g->dilation == 0 && y / g->dilation < g->height &&
	             x / g->dilation < g->width;
	size_t size = (size_t)a->size;
	char *to = (char *)a->to + i * size;
	uint32_t zero = 0;

	if (inside) {
		size_t row = (size_t)(image * g->channels + d / area) *
		                     (size_t)g->height +
		             (size_t)(y / g->dilation);
		size_t at = row * (size_t)g->width + (size_t)(x / g->dilation);

		mtk_copy_element(to, (const char *)a->from + at * size, size);
	} else {
		mtk_copy_element(to, &zero, size);
	}
}

/* [filter][image][pixel] from NCHW, or to it; i is the place written. */
MTK_FN void mtk_each_exchange(const struct mtk_layout *a, size_t i)
{
	size_t plane = (size_t)a->g.out_h * (size_t)a->g.out_w;
	size_t images = (size_t)a->g.images, filters = (size_t)a->g.filters;
	size_t run = i / plane, size = (size_t)a->size;
	size_t inner = a->to_nchw ? filters : images;
	size_t outer = a->to_nchw ? images : filters;
	size_t at = (run % inner * outer + run / inner) * plane + i % plane;

	mtk_copy_element((char *)a->to + i * size,
	                 (const char *)a->from + at * size, size);
}

/* i: of the weight [filter][channel][area]; here g is of the layer itself. */
MTK_FN void mtk_each_turn(const struct mtk_layout *a, size_t i)
{
	size_t filters = (size_t)a->g.filters, size = (size_t)a->size;
	size_t channels = (size_t)a->g.channels;
	size_t area = (size_t)(a->g.kernel_h * a->g.kernel_w);
	size_t f = i / (channels * area), c = i / area % channels;
	size_t at = (c * filters + f) * area + area - 1 - i % area;

	mtk_copy_element((char *)a->to + at * size,
	                 (const char *)a->from + i * size, size);
}

MTK_FN void mtk_each_spread(const struct mtk_spread *a, size_t i)
{
	mtk_store(a->to, i, mtk_load(a->from, i / a->run % a->count));
}

/* Rows are filters. */
MTK_FN void mtk_share_bias_sums(const struct mtk_bias *a, size_t filter,
                                size_t thread, double sums[2])
{
	size_t plane = (size_t)a->g.out_h * (size_t)a->g.out_w;
	size_t filters = (size_t)a->g.filters;

	for (size_t p = thread; p < (size_t)a->g.images * plane;
	     p += MTK_THREADS) {
		size_t run = p / plane * filters + filter;

		sums[0] += (double)mtk_load(a->from, run * plane + p % plane);
	}
}

MTK_FN void mtk_finish_bias_sums(const struct mtk_bias *a, size_t filter,
                                 const double sums[2])
{
	mtk_store(a->to, filter, (float)sums[0]);
}

#endif
