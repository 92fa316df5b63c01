/* SPDX-License-Identifier: Apache-2.0 */
/* Concatenation. */
#include "device.h"

#include <string.h>

/* Bytes of the elements of a shape from dimension `dim` on. */
static size_t bytes_from(const int *shape, int dim, mt_dtype dtype)
{
	size_t bytes = mt_dtype_size(dtype);

	for (int i = dim; i < MT_MAX_DIMS; i++)
		bytes *= (size_t)shape[i];
	return bytes;
}

/*
 * Copies between a part of the whole, which begins `offset` bytes into each
 * of its slices, and a tensor that is that part; returns the part's width.
 */
static size_t copy_part(const mt_tensor *whole, int dim, size_t offset,
                        const mt_tensor *part, int to_whole)
{
	size_t step = bytes_from(whole->shape, dim, whole->dtype);
	size_t width = bytes_from(part->shape, dim, part->dtype);
	char *in_whole = (char *)whole->storage->data + offset;
	char *in_part = part->storage->data;
	size_t bytes = bytes_from(part->shape, 0, part->dtype);
	size_t size = mt_dtype_size(part->dtype);

	if (mti_there(whole)) {
		MTI_RUN(part, bytes / size, .whole = in_whole, .part = in_part,
		        .step = step / size, .width = width / size,
		        .size = size, .to_whole = to_whole);
		return width;
	}
	for (size_t at = 0; at < bytes; at += width) {
		if (to_whole)
			memcpy(in_whole, in_part + at, width);
		else
			memcpy(in_part + at, in_whole, width);
		in_whole += step;
	}
	return width;
}

static int cat_backward(const mt_node *node, mt_tensor *grad,
                        mt_tensor **grads)
{
	int dim = node->rec.arg[0];
	size_t offset = 0;

	for (int i = 0; i < node->n_edges; i++) {
		if (!mti_wants(node, i)) {
			offset += bytes_from(node->edges[i].shape, dim,
			                     node->edges[i].dtype);
			continue;
		}
		grads[i] = mti_grad_for(node, i);
		if (!grads[i])
			return -1;
		offset += copy_part(grad, dim, offset, grads[i], 0);
	}
	return 0;
}

/* Also adds up the result's shape. */
static int check(mt_tensor **tensors, int n, int dim, int *shape)
{
	if (n < 1 || !mti_check("cat", n, tensors))
		return 0;
	if (dim < 0 || dim >= tensors[0]->ndim) {
		mti_fail("cat: there is no dimension %d", dim);
		return 0;
	}
	memcpy(shape, tensors[0]->shape, sizeof(tensors[0]->shape));
	for (int i = 1; i < n; i++) {
		for (int d = 0; d < MT_MAX_DIMS; d++) {
			if (tensors[i]->ndim == tensors[0]->ndim &&
			    (d == dim || tensors[i]->shape[d] == shape[d]))
				continue;
			mti_fail("cat: input %d does not fit input 0", i);
			return 0;
		}
		shape[dim] += tensors[i]->shape[dim];
	}
	return 1;
}

mt_tensor *mti_cat(mt_tensor **tensors, int n, int dim)
{
	struct mti_record rec = {
		.name = "cat", .backward = cat_backward, .arg = {dim}};
	int shape[MT_MAX_DIMS];
	mt_tensor *out;
	size_t offset = 0;

	if (!check(tensors, n, dim, shape))
		return NULL;
	out = mti_activation(tensors[0]->storage->device, tensors[0]->dtype,
	                     tensors[0]->ndim, shape);
	for (int i = 0; out && i < n; i++)
		offset += copy_part(out, dim, offset, tensors[i], 1);
	return mti_finish(out, &rec, n, tensors);
}
