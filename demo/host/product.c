/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolution by somebody else's matrix product.  All that
 * the pixels see is copied out, in the type it has, to
 *   patches [depth][pixels]: depth = channel x kernel row x kernel column,
 *                            pixels = image x output row x output column
 * and then
 *   output      [filters][pixels] = weight x patches
 *   weight grad [filters][depth]  = output grad x transposed patches
 *   input grad  = the output of turned weights and the output's gradient
 */
#include "device.h"
#include "window.h"

#include <string.h>

struct layout {
	const struct geometry *g;
	int depth, pixels, plane; /* plane: pixels of one image */
	int height, width;        /* of an image with its padding */
	size_t size;              /* of an element */
	mt_device device;
};

static struct layout layout_of(const struct geometry *g, const mt_tensor *from)
{
	struct layout l = {
		.g = g,
		.depth = g->channels * g->kernel_h * g->kernel_w,
		.plane = g->out_h * g->out_w,
		.height = (g->out_h - 1) * g->stride + g->kernel_h,
		.width = (g->out_w - 1) * g->stride + g->kernel_w,
		.size = mt_dtype_size(from->dtype),
		.device = from->storage->device,
	};

	l.pixels = g->images * l.plane;
	return l;
}

static mt_storage *new_block(const struct layout *l, int rows, int cols)
{
	return mt_storage_new_on(l->device,
	                         (size_t)rows * (size_t)cols * l->size,
	                         MT_MEM_OTHER);
}

/* One of the copies below by a device's kernel. */
static void copy_there(enum mtk_kernel kernel, const struct layout *l, void *to,
                       const void *from, int to_nchw, int n)
{
	const struct mtk_layout args = {.to = to,
	                                .from = from,
	                                .size = (int)l->size,
	                                .to_nchw = to_nchw,
	                                .g = *l->g};

	mti_run(kernel, &args, (size_t)n);
}

/* ---- patches ----------------------------------------------------------- */

/* Images with their padding, and with zeros between the pixels of what is
 * dilated: every patch lies in them. */
static mt_storage *pad(const struct layout *l, const mt_tensor *images)
{
	const struct geometry *g = l->g;
	int planes = g->images * g->channels;
	mt_storage *padded = new_block(l, planes, l->height * l->width);
	const char *from = images->storage->data;
	char *to = padded ? padded->data : NULL;
	int first = g->pad_x, end = first + (g->width - 1) * g->dilation + 1;
	int whole = g->dilation == 1 && first >= 0 && end <= l->width;

	if (!padded)
		return NULL;
	memset(to, 0, padded->bytes);
	for (int row = 0; row < planes * g->height; row++) {
		int y = row % g->height * g->dilation + g->pad_y;
		size_t line = (size_t)((row / g->height * l->height + y) *
		                       l->width);
		const char *line_from =
			from + (size_t)row * (size_t)g->width * l->size;

		if (y < 0 || y >= l->height)
			continue;
		if (whole) {
			memcpy(to + (line + (size_t)first) * l->size, line_from,
			       (size_t)g->width * l->size);
			continue;
		}
		for (int x = 0; x < g->width; x++) {
			int at = x * g->dilation + first;

			if (at >= 0 && at < l->width)
				memcpy(to + (line + (size_t)at) * l->size,
				       line_from + (size_t)x * l->size,
				       l->size);
		}
	}
	return padded;
}

static inline void copy_rows(char *to, const char *from, int rows,
                             size_t bytes, size_t pitch)
{
	for (int y = 0; y < rows; y++, to += bytes, from += pitch)
		memcpy(to, from, bytes);
}

/* One image of one row of patches.  The copies of few bytes are of a size
 * that the compiler knows. */
static void copy_image(const struct layout *l, char *to, const char *from)
{
	const struct geometry *g = l->g;
	size_t bytes = (size_t)g->out_w * l->size;
	size_t pitch = (size_t)(g->stride * l->width) * l->size;

	if (g->stride != 1)
		for (int y = 0; y < g->out_h; y++, from += pitch)
			for (int x = 0; x < g->out_w; x++, to += l->size)
				memcpy(to, from + (size_t)(x * g->stride) * l->size,
				       l->size);
	else if (bytes == 8)
		copy_rows(to, from, g->out_h, 8, pitch);
	else if (bytes == 16)
		copy_rows(to, from, g->out_h, 16, pitch);
	else
		copy_rows(to, from, g->out_h, bytes, pitch);
}

static mt_storage *new_patches(const struct layout *l, const mt_tensor *images)
{
	const struct geometry *g = l->g;
	int area = g->kernel_h * g->kernel_w;
	mt_storage *padded = l->device == MT_CPU ? pad(l, images) : NULL;
	mt_storage *patches = padded || l->device != MT_CPU
	                              ? new_block(l, l->depth, l->pixels)
	                              : NULL;
	char *to = patches ? patches->data : NULL;

	if (patches && l->device != MT_CPU) {
		copy_there(MTK_patches, l, to, images->storage->data, 0,
		           l->depth * l->pixels);
		return patches;
	}
	for (int d = 0; patches && d < l->depth; d++)
		for (int i = 0; i < g->images; i++) {
			int plane = i * g->channels + d / area;
			int y = plane * l->height + d % area / g->kernel_w;
			int at = y * l->width + d % g->kernel_w;

			copy_image(l, to,
			           (const char *)padded->data +
			                   (size_t)at * l->size);
			to += (size_t)l->plane * l->size;
		}
	mt_storage_free(padded);
	return patches;
}

/* ---- [filter][image][pixel], as a product has it, and NCHW ------------- */

static void exchange(const struct layout *l, char *product, char *nchw,
                     int to_nchw)
{
	size_t run = (size_t)l->plane * l->size;
	int images = l->g->images, filters = l->g->filters;

	if (l->device != MT_CPU) {
		copy_there(MTK_exchange, l, to_nchw ? nchw : product,
		           to_nchw ? product : nchw, to_nchw,
		           filters * l->pixels);
		return;
	}
	for (int f = 0; f < filters; f++)
		for (int i = 0; i < images; i++) {
			char *here = product + (size_t)(f * images + i) * run;
			char *there = nchw + (size_t)(i * filters + f) * run;

			if (to_nchw)
				memcpy(there, here, run);
			else
				memcpy(here, there, run);
		}
}

void mti_fill_bias(void *to, size_t n, size_t run, const mt_tensor *bias)
{
	size_t count = mt_numel(bias), size = mt_dtype_size(bias->dtype);
	const char *from = bias->storage->data;
	char *at = to;

	if (mti_there(bias)) {
		MTI_RUN(spread, n, .to = {to, (int)bias->dtype},
		        .from = mti_ref(bias), .run = run, .count = count);
		return;
	}
	for (size_t i = 0; i < n; i++, at += size)
		memcpy(at, from + i / run % count * size, size);
}

/* The kernel by half a turn, its input and output channels exchanged. */
static mt_storage *turn(const struct layout *l, const mt_tensor *weight)
{
	int filters = weight->shape[0], channels = weight->shape[1];
	int area = weight->shape[2] * weight->shape[3];
	mt_storage *turned = new_block(l, filters, channels * area);
	const char *from = weight->storage->data;

	if (turned && l->device != MT_CPU) {
		struct geometry g = {.filters = filters,
		                     .channels = channels,
		                     .kernel_h = weight->shape[2],
		                     .kernel_w = weight->shape[3]};
		struct layout of_weight = *l;

		of_weight.g = &g;
		copy_there(MTK_turn, &of_weight, turned->data, from, 0,
		           filters * channels * area);
		return turned;
	}
	for (int i = 0; turned && i < filters * channels * area; i++) {
		int f = i / (channels * area), c = i / area % channels;
		int at = (c * filters + f) * area + area - 1 - i % area;

		memcpy((char *)turned->data + (size_t)at * l->size,
		       from + (size_t)i * l->size, l->size);
	}
	return turned;
}

/* ---- the products ------------------------------------------------------ */

int mti_multiply(mt_product_fn fn, mt_device device, mt_product *product)
{
	product->device = device;
	product->stream = mt_device_stream(device);
	if (fn(product) == 0)
		return 0;
	if (device == MT_CPU || fn != mti_device()->multiply)
		mti_fail("the matrix product failed");
	return -1;
}

static int output(mt_product_fn fn, mt_tensor *to, const mt_tensor *input,
                  const void *weight, const mt_tensor *bias,
                  const struct layout *l)
{
	mt_storage *patches = new_patches(l, input);
	mt_storage *sums =
		patches ? new_block(l, l->g->filters, l->pixels) : NULL;
	int status = -1;

	if (sums) {
		mt_product product = {.m = l->g->filters,
		                      .n = l->pixels,
		                      .k = l->depth,
		                      .dtype = input->dtype,
		                      .a = weight,
		                      .b = patches->data,
		                      .d = sums->data,
		                      .add = bias != NULL};

		if (bias)
			mti_fill_bias(sums->data,
			              (size_t)l->g->filters * (size_t)l->pixels,
			              (size_t)l->pixels, bias);
		status = mti_multiply(fn, l->device, &product);
		exchange(l, sums->data, to->storage->data, 1);
	}
	mt_storage_free(sums);
	mt_storage_free(patches);
	return status;
}

mt_tensor *mti_product_output(mt_product_fn fn, mt_tensor *to,
                              const mt_tensor *input, const mt_tensor *weight,
                              const mt_tensor *bias, const struct geometry *g)
{
	struct layout l = layout_of(g, input);

	if (to && output(fn, to, input, weight->storage->data, bias, &l) == 0)
		return to;
	return mt_then(to, NULL);
}

int mti_product_input_grad(mt_product_fn fn, mt_tensor *to,
                           const mt_tensor *weight, const mt_tensor *grad,
                           const struct geometry *reversed)
{
	struct layout l = layout_of(reversed, grad);
	mt_storage *turned = turn(&l, weight);
	int status = turned ? output(fn, to, grad, turned->data, NULL, &l) : -1;

	mt_storage_free(turned);
	return status;
}

void mti_sum_bias(mt_tensor *to, const mt_tensor *grad,
                  const struct geometry *g)
{
	int filters = g->filters, plane = g->out_h * g->out_w;

	if (mti_there(to)) {
		MTI_RUN(bias_sums, (size_t)filters, .to = mti_ref(to),
		        .from = mti_ref(grad), .g = *g);
		return;
	}
	for (int f = 0; f < filters; f++) {
		double sum = 0.0;

		for (int p = 0; p < g->images * plane; p++) {
			int run = p / plane * filters + f;

			sum += mt_get(grad, (size_t)(run * plane + p % plane));
		}
		mt_set(to, (size_t)f, sum);
	}
}

int mti_product_weight_grads(mt_product_fn fn, mt_tensor *weight_grad,
                             mt_tensor *bias_grad, const mt_tensor *input,
                             const mt_tensor *grad, const struct geometry *g)
{
	struct layout l = layout_of(g, input);
	mt_storage *patches = weight_grad ? new_patches(&l, input) : NULL;
	mt_storage *rows = patches ? new_block(&l, g->filters, l.pixels) : NULL;
	int status = weight_grad ? -1 : 0;

	if (rows) {
		mt_product product = {.m = g->filters,
		                      .n = l.depth,
		                      .k = l.pixels,
		                      .transpose_b = 1,
		                      .dtype = input->dtype,
		                      .a = rows->data,
		                      .b = patches->data,
		                      .d = weight_grad->storage->data};

		exchange(&l, rows->data, grad->storage->data, 0);
		status = mti_multiply(fn, l.device, &product);
	}
	if (bias_grad)
		mti_sum_bias(bias_grad, grad, g);
	mt_storage_free(rows);
	mt_storage_free(patches);
	return status;
}
