/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operators. */
#include "internal.h"

mt_ops *mt_ops_default(void)
{
	static mt_ops ops = {
		.conv2d = mti_conv2d,
		.batch_norm = mti_batch_norm,
		.relu = mti_relu,
		.add = mti_add,
		.mul = mti_mul,
		.max_pool2d = mti_max_pool2d,
		.global_avg_pool = mti_global_avg_pool,
		.linear = mti_linear,
		.log_softmax = mti_log_softmax,
		.nll_loss = mti_nll_loss,
		.dropout = mti_dropout,
		.cat = mti_cat,
		.scale = mti_scale,
		.cast = mti_cast,
		.add_ = mti_add_,
	};

	return &ops;
}
