/* SPDX-License-Identifier: Apache-2.0 */
/* log_softmax and the negative log-likelihood. */
#include "device.h"

#include <math.h>
#include <string.h>

/* The logarithm of the sum of the exponentials of one row of n numbers.  The
 * largest is taken out first, so that nothing overflows. */
static double log_sum_exp(const mt_tensor *t, size_t at, size_t n)
{
	double largest = mt_get(t, at), sum = 0.0;

	for (size_t i = 1; i < n; i++)
		largest = fmax(largest, mt_get(t, at + i));
	for (size_t i = 0; i < n; i++)
		sum += exp(mt_get(t, at + i) - largest);
	return largest + log(sum);
}

static int log_softmax_backward(const mt_node *node, mt_tensor *grad,
                                mt_tensor **grads)
{
	const mt_tensor *input = node->rec.saved[0];
	const float *norm = node->rec.aux->data;
	size_t classes = (size_t)grad->shape[1];

	grads[0] = mti_grad_for(node, 0);
	if (!grads[0])
		return -1;
	if (mti_there(grad)) {
		MTI_RUN(log_softmax_grad, (size_t)grad->shape[0],
		        .x = mti_ref(input), .out = mti_ref(grads[0]),
		        .grad = mti_ref(grad), .norm = node->rec.aux->data,
		        .classes = classes);
		return 0;
	}
	for (size_t row = 0; row < (size_t)grad->shape[0]; row++) {
		size_t at = row * classes;
		double sum = 0.0;

		for (size_t i = at; i < at + classes; i++)
			sum += mt_get(grad, i);
		for (size_t i = at; i < at + classes; i++)
			mt_set(grads[0], i,
			       mt_get(grad, i) -
			               sum * exp(mt_get(input, i) -
			                         (double)norm[row]));
	}
	return 0;
}

mt_tensor *mti_log_softmax(mt_tensor *input)
{
	struct mti_record rec = {.name = "log_softmax",
	                         .backward = log_softmax_backward,
	                         .saved = {input},
	                         .is_exact = 1};
	mt_tensor *out;
	size_t rows, classes;
	float *norm;

	if (!mti_check(rec.name, 1, &input) ||
	    !mti_check_ndim(rec.name, "input", input, 2))
		return NULL;
	rows = (size_t)input->shape[0];
	classes = (size_t)input->shape[1];
	rec.aux = mti_beside(input, rows * sizeof(float));
	out = rec.aux ? mti_like(input) : NULL;
	norm = rec.aux ? rec.aux->data : NULL;
	if (out && mti_there(out)) {
		MTI_RUN(log_softmax, rows, .x = mti_ref(input),
		        .out = mti_ref(out), .norm = norm, .classes = classes);
		return mti_finish(out, &rec, 1, &input);
	}
	for (size_t row = 0; out && row < rows; row++) {
		size_t at = row * classes;

		norm[row] = (float)log_sum_exp(input, at, classes);
		for (size_t i = at; i < at + classes; i++)
			mt_set(out, i, mt_get(input, i) - (double)norm[row]);
	}
	return mti_finish(out, &rec, 1, &input);
}

/* ---- nll_loss: keeps a copy of the targets ------------------------------ */

static int nll_backward(const mt_node *node, mt_tensor *grad,
                        mt_tensor **grads)
{
	const int32_t *target = node->rec.aux->data;
	const int *shape = node->edges[0].shape;
	double share;

	grads[0] = mti_grad_for(node, 0);
	if (!grads[0])
		return -1;
	if (mti_there(grad)) {
		MTI_RUN(nll_grad, mt_numel(grads[0]), .grad = mti_ref(grad),
		        .out = mti_ref(grads[0]), .target = target,
		        .rows = (size_t)shape[0], .classes = (size_t)shape[1]);
		return 0;
	}
	share = -mt_get(grad, 0) / shape[0];
	mt_fill(grads[0], 0.0);
	for (int row = 0; row < shape[0]; row++)
		mt_set(grads[0], (size_t)(row * shape[1] + target[row]),
		       share);
	return 0;
}

static int check(mt_tensor *logp, mt_tensor *target)
{
	const char *op = "nll_loss";

	if (!target || !mti_check(op, 1, &logp) ||
	    !mti_check_ndim(op, "logp", logp, 2) ||
	    !mti_check_vector(op, "target", target, logp->shape[0]))
		return 0;
	if (target->dtype != MT_I32) {
		mti_fail("%s: the target is %s, not i32", op,
		         mt_dtype_name(target->dtype));
		return 0;
	}
	if (!mti_check_device(op, 1, target, logp))
		return 0;
	/* On a device nobody looks: the loss will be a nan. */
	if (mti_there(target))
		return 1;
	for (size_t i = 0; i < (size_t)target->shape[0]; i++) {
		double class = mt_get(target, i);

		if (class < 0 || class >= logp->shape[1]) {
			mti_fail("%s: target %g of row %zu is no class", op,
			         class, i);
			return 0;
		}
	}
	return 1;
}

/* A copy of the targets, or NULL. */
static mt_storage *keep(const mt_tensor *target)
{
	mt_storage *kept = mti_beside(target, mt_numel(target) *
	                                              sizeof(int32_t));

	if (!kept)
		return NULL;
	if (!mti_there(target))
		memcpy(kept->data, target->storage->data, kept->bytes);
	else /* four bytes are four bytes */
		MTI_RUN(part, mt_numel(target), .whole = kept->data,
		        .part = target->storage->data, .width = 1, .step = 1,
		        .size = sizeof(int32_t), .to_whole = 1);
	return kept;
}

mt_tensor *mti_nll_loss(mt_tensor *logp, mt_tensor *target)
{
	struct mti_record rec = {.name = "nll_loss",
	                         .backward = nll_backward};
	mt_tensor *out;
	double sum = 0.0;
	const int32_t *kept;
	int classes;

	if (!check(logp, target))
		return NULL;
	rec.aux = keep(target);
	out = rec.aux ? mti_activation(logp->storage->device, logp->dtype, 0,
	                               NULL)
	              : NULL;
	if (!out)
		return mti_finish(NULL, &rec, 1, &logp);
	kept = rec.aux->data;
	classes = logp->shape[1];
	if (mti_there(out)) {
		MTI_RUN(nll, 1, .logp = mti_ref(logp), .out = mti_ref(out),
		        .target = kept, .rows = (size_t)logp->shape[0],
		        .classes = (size_t)classes);
		return mti_finish(out, &rec, 1, &logp);
	}
	for (int row = 0; row < logp->shape[0]; row++)
		sum -= mt_get(logp, (size_t)(row * classes + kept[row]));
	mt_set(out, 0, sum / logp->shape[0]);
	return mti_finish(out, &rec, 1, &logp);
}
