/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling over images. */
#include "device.h"

/* An image plane in float, as scratch memory. */
static mt_storage *new_plane(const int *shape)
{
	return mt_storage_new((size_t)shape[2] * (size_t)shape[3] *
	                              sizeof(float),
	                      MT_MEM_OTHER);
}

/* ---- max_pool2d: keeps the place of each maximum within its window ------ */

struct pool {
	int kernel, stride;
	int height, width;
	int out_h, out_w;
};

static struct pool pool_of(const int *shape, int kernel, int stride)
{
	struct pool p = {.kernel = kernel,
	                 .stride = stride,
	                 .height = shape[2],
	                 .width = shape[3]};

	p.out_h = (p.height - kernel) / stride + 1;
	p.out_w = (p.width - kernel) / stride + 1;
	return p;
}

/* Where in its plane a window's k-th element lies. */
static int place(const struct pool *p, int y, int x, int k)
{
	return (y * p->stride + k / p->kernel) * p->width + x * p->stride +
	       k % p->kernel;
}

/* The first of the largest elements; a nan counts as larger. */
static int find_max(const struct pool *p, const float *plane, int y, int x)
{
	float best = plane[place(p, y, x, 0)];
	int best_k = 0;

	for (int k = 1; k < p->kernel * p->kernel; k++) {
		float value = plane[place(p, y, x, k)];

		if (value > best || value != value) {
			best = value;
			best_k = k;
		}
	}
	return best_k;
}

static void pool_plane(const struct pool *p, const float *plane, mt_tensor *out,
                       size_t at, unsigned char *index)
{
	for (int y = 0; y < p->out_h; y++) {
		for (int x = 0; x < p->out_w; x++) {
			int k = find_max(p, plane, y, x);
			float buffer;
			float *to = mti_begin(out, at, &buffer);

			*to = plane[place(p, y, x, k)];
			mti_end(out, at, 1, to);
			index[at++] = (unsigned char)k;
		}
	}
}

/* x, out: the input and the output, or the gradients of both. */
static void run_there(enum mtk_kernel kernel, const struct pool *p,
                      const mt_tensor *x, const mt_tensor *out,
                      unsigned char *index, size_t n)
{
	const struct mtk_pool args = {.x = mti_ref(x),
	                              .out = mti_ref(out),
	                              .index = index,
	                              .kernel = p->kernel,
	                              .stride = p->stride,
	                              .height = p->height,
	                              .width = p->width,
	                              .out_h = p->out_h,
	                              .out_w = p->out_w};

	mti_run(kernel, &args, n);
}

static int max_pool_backward(const mt_node *node, mt_tensor *grad,
                             mt_tensor **grads)
{
	const int *shape = node->edges[0].shape;
	struct pool p = pool_of(shape, node->rec.arg[0], node->rec.arg[1]);
	const unsigned char *index = node->rec.aux->data;
	size_t size = (size_t)p.height * (size_t)p.width, at = 0;
	mt_storage *scratch;

	if (mti_there(grad)) {
		grads[0] = mti_grad_for(node, 0);
		if (grads[0])
			run_there(MTK_max_pool_grad, &p, grads[0], grad,
			          node->rec.aux->data, mt_numel(grads[0]));
		return grads[0] ? 0 : -1;
	}
	scratch = new_plane(shape);
	grads[0] = scratch ? mti_grad_for(node, 0) : NULL;
	for (int c = 0; grads[0] && c < shape[0] * shape[1]; c++) {
		float *plane = scratch->data;

		for (size_t i = 0; i < size; i++)
			plane[i] = 0.0F;
		for (int y = 0; y < p.out_h; y++)
			for (int x = 0; x < p.out_w; x++, at++)
				plane[place(&p, y, x, index[at])] +=
					(float)mt_get(grad, at);
		mt_convert(grads[0]->dtype,
		           (char *)grads[0]->storage->data +
		                   (size_t)c * size *
		                           mt_dtype_size(grads[0]->dtype),
		           MT_F32, plane, size);
	}
	mt_storage_free(scratch);
	return grads[0] ? 0 : -1;
}

static int check(const mt_tensor *input, int kernel, int stride)
{
	if (!mti_check_ndim("max_pool2d", "input", input, 4))
		return 0;
	if (kernel >= 1 && kernel <= 16 && stride >= 1 &&
	    kernel <= input->shape[2] && kernel <= input->shape[3])
		return 1;
	mti_fail("max_pool2d: kernel %d (at most 16 and the image) or "
	         "stride %d does not fit",
	         kernel, stride);
	return 0;
}

/* All planes on the CPU; 0, or -1. */
static int pool_planes(const struct pool *p, const mt_tensor *input,
                       mt_tensor *out, unsigned char *index)
{
	size_t size = (size_t)p->height * (size_t)p->width;
	mt_storage *scratch = new_plane(input->shape);

	if (!scratch)
		return -1;
	for (int c = 0; c < input->shape[0] * input->shape[1]; c++) {
		mti_load(input, (size_t)c * size, size, scratch->data);
		pool_plane(p, scratch->data, out,
		           (size_t)c * (size_t)(p->out_h * p->out_w), index);
	}
	mt_storage_free(scratch);
	return 0;
}

mt_tensor *mti_max_pool2d(mt_tensor *input, int kernel, int stride)
{
	struct mti_record rec = {.name = "max_pool2d",
	                         .backward = max_pool_backward,
	                         .arg = {kernel, stride}};
	mt_tensor *out;
	struct pool p;

	if (!mti_check(rec.name, 1, &input) || !check(input, kernel, stride))
		return NULL;
	p = pool_of(input->shape, kernel, stride);
	out = mti_activation(input->storage->device, input->dtype, 4,
	                     (int[]){input->shape[0], input->shape[1], p.out_h,
	                             p.out_w});
	if (out)
		rec.aux = mti_beside(out, mt_numel(out));
	if (!rec.aux)
		return mt_then(out, NULL);
	if (mti_there(out))
		run_there(MTK_max_pool, &p, input, out, rec.aux->data,
		          mt_numel(out));
	else if (pool_planes(&p, input, out, rec.aux->data) != 0)
		out = mt_then(out, NULL);
	return mti_finish(out, &rec, 1, &input);
}

/* ---- global_avg_pool --------------------------------------------------- */

static int avg_backward(const mt_node *node, mt_tensor *grad,
                        mt_tensor **grads)
{
	const int *shape = node->edges[0].shape;
	size_t size = (size_t)shape[2] * (size_t)shape[3];
	float buffer[MTI_TILE];

	grads[0] = mti_grad_for(node, 0);
	if (!grads[0])
		return -1;
	if (mti_there(grad)) {
		const struct pool p = {.height = shape[2], .width = shape[3]};

		run_there(MTK_avg_pool_grad, &p, grads[0], grad, NULL,
		          mt_numel(grads[0]));
		return 0;
	}
	for (size_t c = 0; c < mt_numel(grad); c++) {
		float share = (float)mt_get(grad, c) / (float)size;

		for (size_t i = 0; i < size; i += MTI_TILE) {
			size_t n = mti_min(size - i, MTI_TILE);
			float *to = mti_begin(grads[0], c * size + i, buffer);

			for (size_t j = 0; j < n; j++)
				to[j] = share;
			mti_end(grads[0], c * size + i, n, to);
		}
	}
	return 0;
}

mt_tensor *mti_global_avg_pool(mt_tensor *input)
{
	struct mti_record rec = {.name = "global_avg_pool",
	                         .backward = avg_backward};
	float buffer[MTI_TILE];
	mt_tensor *out;
	size_t size;

	if (!mti_check(rec.name, 1, &input) ||
	    !mti_check_ndim(rec.name, "input", input, 4))
		return NULL;
	size = (size_t)input->shape[2] * (size_t)input->shape[3];
	out = mti_activation(input->storage->device, input->dtype, 2,
	                     input->shape);
	if (out && mti_there(out)) {
		const struct pool p = {.height = input->shape[2],
		                       .width = input->shape[3]};

		run_there(MTK_avg_pool, &p, input, out, NULL, mt_numel(out));
		return mti_finish(out, &rec, 1, &input);
	}
	for (size_t c = 0; out && c < mt_numel(out); c++) {
		double sum = 0.0;

		for (size_t i = 0; i < size; i += MTI_TILE) {
			size_t n = mti_min(size - i, MTI_TILE);

			sum += mti_sum(
				mti_read(input, c * size + i, n, buffer), n);
		}
		mt_set(out, c, sum / (double)size);
	}
	return mti_finish(out, &rec, 1, &input);
}
