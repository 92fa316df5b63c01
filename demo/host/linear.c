/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linear layer by somebody else's matrix product: matrices as they lie,
 * where a convolution would copy patches and exchange dimensions.
 *   output      [images][filters]   = input x transposed weight
 *   input grad  [images][channels]  = output grad x weight
 *   weight grad [filters][channels] = transposed output grad x input
 */
#include "window.h"

mt_tensor *mti_linear_output(mt_product_fn fn, mt_tensor *to,
                             const mt_tensor *input, const mt_tensor *weight,
                             const mt_tensor *bias)
{
	mt_product product = {.m = input->shape[0],
	                      .n = weight->shape[0],
	                      .k = input->shape[1],
	                      .transpose_b = 1,
	                      .dtype = input->dtype,
	                      .a = input->storage->data,
	                      .b = weight->storage->data,
	                      .add = bias != NULL};

	if (!to)
		return NULL;
	product.d = to->storage->data;
	if (bias)
		mti_fill_bias(product.d, mt_numel(to), 1, bias);
	if (mti_multiply(fn, input->storage->device, &product) == 0)
		return to;
	return mt_then(to, NULL);
}

int mti_linear_grads(mt_product_fn fn, mt_tensor *input_grad,
                     mt_tensor *weight_grad, const mt_tensor *input,
                     const mt_tensor *weight, const mt_tensor *grad)
{
	mt_product product = {.m = grad->shape[0],
	                      .n = weight->shape[1],
	                      .k = weight->shape[0],
	                      .dtype = grad->dtype,
	                      .a = grad->storage->data,
	                      .b = weight->storage->data};

	if (input_grad) {
		product.d = input_grad->storage->data;
		if (mti_multiply(fn, grad->storage->device, &product) != 0)
			return -1;
	}
	if (!weight_grad)
		return 0;
	product.m = weight->shape[0];
	product.k = grad->shape[0];
	product.transpose_a = 1;
	product.b = input->storage->data;
	product.d = weight_grad->storage->data;
	return mti_multiply(fn, grad->storage->device, &product);
}
