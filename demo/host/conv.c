/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolution, and the linear layer, which is a 1x1 convolution of images of
 * one pixel: the dimensions that a tensor does not have count as 1.
 *
 * With patches as rows, all three products are mti_gemm on a window:
 *   output        = patches x weights
 *   weight grad   = transposed patches x output grad
 *   input grad    = patches of the output grad x turned weights
 */
#include "device.h"
#include "window.h"

#include <string.h>

static struct geometry geometry_of(const mt_tensor *input,
                                   const mt_tensor *weight, int stride,
                                   int padding)
{
	struct geometry g = {
		.images = input->shape[0],
		.channels = input->shape[1],
		.height = input->shape[2],
		.width = input->shape[3],
		.kernel_h = weight->shape[2],
		.kernel_w = weight->shape[3],
		.stride = stride,
		.pad_y = padding,
		.pad_x = padding,
		.dilation = 1,
		.filters = weight->shape[0],
	};

	g.out_h = (g.height + 2 * padding - g.kernel_h) / stride + 1;
	g.out_w = (g.width + 2 * padding - g.kernel_w) / stride + 1;
	return g;
}

/* The convolution with stride 1 that leads from the output's gradient, with
 * stride - 1 zeros between its pixels, to the input's. */
static struct geometry reversed(const struct geometry *g)
{
	struct geometry r = {
		.images = g->images,
		.channels = g->filters,
		.height = g->out_h,
		.width = g->out_w,
		.kernel_h = g->kernel_h,
		.kernel_w = g->kernel_w,
		.stride = 1,
		.pad_y = g->kernel_h - 1 - g->pad_y,
		.pad_x = g->kernel_w - 1 - g->pad_x,
		.dilation = g->stride,
		.out_h = g->height,
		.out_w = g->width,
		.filters = g->channels,
	};

	return r;
}

/* ---- weights as the right-hand matrix ---------------------------------- */

static mt_storage *new_matrix(int rows, int cols)
{
	size_t n = (size_t)mti_round_up(rows, MTI_ROWS) * (size_t)cols;
	mt_storage *m = mt_storage_new(n * sizeof(float), MT_MEM_OTHER);

	if (m)
		memset(m->data, 0, m->bytes);
	return m;
}

/*
 * [patch element][filter], in float.  Turned: the kernel by half a turn, and
 * its input and output channels exchanged.
 */
static mt_storage *pack_weight(const struct window *w, const mt_tensor *weight,
                               int turned)
{
	int filters = weight->shape[0], channels = weight->shape[1];
	int area = weight->shape[2] * weight->shape[3];
	mt_storage *matrix = new_matrix(w->depth, w->cols);
	float buffer[MTI_TILE];
	float *to = matrix ? matrix->data : NULL;

	if (!matrix)
		return NULL;
	for (int i = 0; i < filters * channels * area; i += MTI_TILE) {
		size_t n = mti_min((size_t)(filters * channels * area - i),
		                   MTI_TILE);
		const float *from = mti_read(weight, (size_t)i, n, buffer);

		for (int j = 0; j < (int)n; j++) {
			int f = (i + j) / (channels * area);
			int c = (i + j) / area % channels;
			int k = (i + j) % area;

			if (turned)
				to[(f * area + area - 1 - k) * w->cols + c] =
					from[j];
			else
				to[(c * area + k) * w->cols + f] = from[j];
		}
	}
	return matrix;
}

/* The inverse of pack_weight, for the gradient. */
static void unpack_weight(const struct window *w, const float *matrix,
                          mt_tensor *weight)
{
	float buffer[MTI_TILE];

	for (int f = 0; f < w->g.filters; f++) {
		for (int k = 0; k < w->depth; k += MTI_TILE) {
			size_t n = mti_min((size_t)(w->depth - k), MTI_TILE);
			size_t at = (size_t)(f * w->depth + k);
			float *to = mti_begin(weight, at, buffer);

			for (int i = 0; i < (int)n; i++)
				to[i] = matrix[(k + i) * w->cols + f];
			mti_end(weight, at, n, to);
		}
	}
}

/* ---- the products ------------------------------------------------------ */

/* The sums begin with the bias, or with zero. */
static void start_out(struct window *w, int pixels, const mt_tensor *bias)
{
	memset(w->out, 0, (size_t)(pixels * w->cols) * sizeof(float));
	for (int f = 0; bias && f < w->g.filters; f++) {
		float value = (float)mt_get(bias, (size_t)f);

		for (int p = 0; p < pixels; p++)
			w->out[p * w->cols + f] = value;
	}
}

/* output = input * weight + bias; takes NULL for output and passes it on. */
static mt_tensor *convolve(mt_tensor *output, const mt_tensor *input,
                           const mt_tensor *weight, const mt_tensor *bias,
                           const struct geometry *g, int turned)
{
	struct window w;
	mt_storage *matrix = NULL;

	if (!output || mti_window_init(&w, g) != 0)
		return mt_then(output, NULL);
	matrix = pack_weight(&w, weight, turned);
	for (int i = 0; matrix && i < mti_window_tiles(&w); i++) {
		struct tile t = mti_window_tile(&w, i);
		int rows = mti_round_up(t.pixels, MTI_ROWS);

		start_out(&w, rows, bias);
		mti_window_load(&w, &t, input);
		mti_gemm(rows, w.cols, w.depth, w.data, w.pixel_at,
		         w.depth_at, matrix->data, w.out);
		mti_window_store_out(&w, &t, output);
	}
	mti_window_done(&w);
	if (!matrix)
		return mt_then(output, NULL);
	mt_storage_free(matrix);
	return output;
}

static void store_bias(mt_tensor *bias, const float *sums)
{
	for (int f = 0; f < bias->shape[0]; f++)
		mt_set(bias, (size_t)f, (double)sums[f]);
}

/* Either gradient may be NULL: not wanted. */
static int weight_grads(mt_tensor *weight_grad, mt_tensor *bias_grad,
                        const mt_tensor *input, const mt_tensor *grad,
                        const struct geometry *g)
{
	struct window w;
	mt_storage *matrix;
	float *sums;

	if (mti_window_init(&w, g) != 0)
		return -1;
	/* The row after the last one takes the sums for the bias. */
	matrix = new_matrix(mti_round_up(w.depth, MTI_ROWS) + 1, w.cols);
	if (!matrix) {
		mti_window_done(&w);
		return -1;
	}
	sums = (float *)matrix->data + mti_round_up(w.depth, MTI_ROWS) * w.cols;
	for (int i = 0; i < mti_window_tiles(&w); i++) {
		struct tile t = mti_window_tile(&w, i);

		mti_window_load(&w, &t, input);
		mti_window_load_out(&w, &t, grad);
		mti_gemm(mti_round_up(w.depth, MTI_ROWS), w.cols, t.pixels,
		         w.data, w.depth_at, w.pixel_at, w.out, matrix->data);
		for (int p = 0; p < t.pixels; p++)
			for (int f = 0; f < g->filters; f++)
				sums[f] += w.out[p * w.cols + f];
	}
	if (weight_grad)
		unpack_weight(&w, matrix->data, weight_grad);
	if (bias_grad)
		store_bias(bias_grad, sums);
	mt_storage_free(matrix);
	mti_window_done(&w);
	return 0;
}

/* ---- the operators ----------------------------------------------------- */

/* On a device everything is a product. */
static mt_product_fn product_for(const mt_tensor *input, mt_product_fn given)
{
	return given || !mti_there(input) ? given : mti_device()->multiply;
}

static int conv_backward(const mt_node *node, mt_tensor *grad,
                         mt_tensor **grads)
{
	const mt_tensor *input = node->rec.saved[0];
	const mt_tensor *weight = node->rec.saved[1];
	struct geometry g = geometry_of(input, weight, node->rec.arg[0],
	                                node->rec.arg[1]);
	struct geometry r = reversed(&g);
	mt_product_fn multiply = product_for(input, node->rec.multiply);

	for (int i = 0; i < node->n_edges; i++) {
		if (!mti_wants(node, i))
			continue;
		grads[i] = mti_grad_for(node, i);
		if (!grads[i])
			return -1;
	}
	if (multiply && input->ndim == 2) {
		if (grads[2])
			mti_sum_bias(grads[2], grad, &g);
		return mti_linear_grads(multiply, grads[0], grads[1], input,
		                        weight, grad);
	}
	if (multiply && mti_wants(node, 0) &&
	    mti_product_input_grad(multiply, grads[0], weight, grad, &r) != 0)
		return -1;
	if (multiply)
		return mti_product_weight_grads(multiply, grads[1], grads[2],
		                                input, grad, &g);
	if (mti_wants(node, 0)) {
		grads[0] = convolve(grads[0], grad, weight, NULL, &r, 1);
		if (!grads[0])
			return -1;
	}
	if (mti_wants(node, 1) || mti_wants(node, 2))
		return weight_grads(grads[1], grads[2], input, grad, &g);
	return 0;
}

/* What convolution and linear layer have in common, arguments checked. */
static mt_tensor *run(const char *name, mt_product_fn multiply,
                      mt_tensor *input, mt_tensor *weight, mt_tensor *bias,
                      int stride, int padding)
{
	struct geometry g = geometry_of(input, weight, stride, padding);
	int shape[] = {g.images, g.filters, g.out_h, g.out_w};
	mt_tensor *in[] = {input, weight, bias};
	struct mti_record rec = {.name = name,
	                         .backward = conv_backward,
	                         .saved = {input, weight},
	                         .arg = {stride, padding},
	                         .multiply = multiply};
	mt_product_fn product = product_for(input, multiply);
	mt_tensor *out = mti_activation(input->storage->device, input->dtype,
	                                input->ndim, shape);

	if (product && input->ndim == 2)
		out = mti_linear_output(product, out, input, weight, bias);
	else if (product)
		out = mti_product_output(product, out, input, weight, bias, &g);
	else
		out = convolve(out, input, weight, bias, &g, 0);
	return mti_finish(out, &rec, 3, in);
}

static int check(const char *op, mt_tensor *input, mt_tensor *weight,
                 mt_tensor *bias, int ndim)
{
	mt_tensor *in[] = {input, weight, bias};

	if (!mti_check(op, bias ? 3 : 2, in) ||
	    !mti_check_ndim(op, "input", input, ndim) ||
	    !mti_check_ndim(op, "weight", weight, ndim))
		return 0;
	if (input->shape[1] != weight->shape[1]) {
		mti_fail("%s: the input has %d channels, the weight %d", op,
		         input->shape[1], weight->shape[1]);
		return 0;
	}
	return !bias || mti_check_vector(op, "bias", bias, weight->shape[0]);
}

mt_tensor *mt_conv2d_by(mt_product_fn multiply, mt_tensor *input,
                        mt_tensor *weight, mt_tensor *bias, int stride,
                        int padding)
{
	if (!check("conv2d", input, weight, bias, 4))
		return NULL;
	if (stride < 1 || padding < 0 ||
	    input->shape[2] + 2 * padding < weight->shape[2] ||
	    input->shape[3] + 2 * padding < weight->shape[3]) {
		mti_fail("conv2d: stride %d and padding %d do not fit", stride,
		         padding);
		return NULL;
	}
	return run("conv2d", multiply, input, weight, bias, stride, padding);
}

mt_tensor *mt_linear_by(mt_product_fn multiply, mt_tensor *input,
                        mt_tensor *weight, mt_tensor *bias)
{
	return check("linear", input, weight, bias, 2)
	               ? run("linear", multiply, input, weight, bias, 1, 0)
	               : NULL;
}

mt_tensor *mti_conv2d(mt_tensor *input, mt_tensor *weight, mt_tensor *bias,
                      int stride, int padding)
{
	return mt_conv2d_by(NULL, input, weight, bias, stride, padding);
}

mt_tensor *mti_linear(mt_tensor *input, mt_tensor *weight, mt_tensor *bias)
{
	return mt_linear_by(NULL, input, weight, bias);
}
