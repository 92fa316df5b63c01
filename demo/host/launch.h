/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for a device: what each of its kernels is told.  All pointers are the
 * device's; cuda/elements.h and layers.h have what is done.
 *
 * There are two kinds.  EACH: `n` threads, one for each element (or pixel, or
 * row) of what is written.  ROWS: `n` blocks of threads, each of which adds up
 * two sums over one row and then makes something of them.
 */
#ifndef MINITAPE_LAUNCH_H
#define MINITAPE_LAUNCH_H

#include "minitape.h"

#define MTK_KERNELS(EACH, ROWS)                                                \
	EACH(fill) EACH(combine) EACH(multiply) EACH(convert)                  \
	EACH(relu) EACH(draw) EACH(mask) EACH(part)                            \
	ROWS(bn_mean) ROWS(bn_variance) EACH(bn_running) EACH(bn_output)       \
	ROWS(bn_sums) EACH(bn_input_grad)                                      \
	EACH(max_pool) EACH(max_pool_grad) EACH(avg_pool) EACH(avg_pool_grad)  \
	EACH(log_softmax) EACH(log_softmax_grad) ROWS(nll) EACH(nll_grad)      \
	EACH(patches) EACH(exchange) EACH(turn) EACH(spread) ROWS(bias_sums)   \
	EACH(sgd) EACH(adam_begin) EACH(adam)

#define MTK_NUMBER(name) MTK_##name,
enum mtk_kernel { MTK_KERNELS(MTK_NUMBER, MTK_NUMBER) MTK_COUNT };

/* A tensor's elements; data is NULL where there is none. */
struct mtk_ref {
	void *data;
	int dtype; /* mt_dtype */
};

struct mtk_fill {
	struct mtk_ref to;
	float value;
};

/* out = x * fx + y * fy, or x * *by; y may be none. */
struct mtk_combine {
	struct mtk_ref out, x, y;
	float fx, fy;
	const float *by;
};

struct mtk_multiply {
	struct mtk_ref out, x, y;
};

struct mtk_convert {
	struct mtk_ref to, from;
};

/* Masks have a bit for each element; these threads write a byte each. */
struct mtk_relu {
	struct mtk_ref out, x;
	unsigned char *bits; /* or NULL */
	size_t total;
};

struct mtk_draw {
	unsigned char *bits;
	size_t total;
	float p;
	uint64_t seed;
};

/* out = x * factor where the bit is set, 0 elsewhere. */
struct mtk_mask {
	struct mtk_ref out, x;
	const unsigned char *bits;
	float factor;
};

/* A part of `width` elements in each slice of `step` elements of a whole. */
struct mtk_part {
	char *whole, *part;
	size_t offset, step, width, size; /* size: of an element, in bytes */
	int to_whole;
};

/* Batch norm; per channel: stats mean and 1 / deviation, shares what the
 * gradient's sums make of each element. */
struct mtk_bn {
	struct mtk_ref x, out, weight, bias, mean, var;
	struct mtk_ref grad, weight_grad, bias_grad;
	float *stats, *shares;
	size_t images, channels, plane;
	int training;
	float momentum, eps;
};

struct mtk_pool {
	struct mtk_ref x, out; /* backward: the gradients of both */
	unsigned char *index;
	int kernel, stride;
	int height, width, out_h, out_w;
};

struct mtk_softmax {
	struct mtk_ref x, out, grad;
	float *norm;
	size_t classes;
};

struct mtk_nll {
	struct mtk_ref logp, out, grad;
	const int32_t *target;
	size_t rows, classes;
};

/* What a convolution reads and writes, see window.h. */
struct geometry {
	int images, channels, height, width; /* what is read */
	int kernel_h, kernel_w;
	int stride;
	int pad_y, pad_x;
	int dilation; /* of what is read: dilation - 1 zeros between pixels */
	int out_h, out_w;
	int filters; /* channels of the output */
};

/* The copies of product.c; elements are of `size` bytes. */
struct mtk_layout {
	void *to;
	const void *from;
	int size;
	int to_nchw;
	struct geometry g;
};

/* to[i] = from[i / run % count] */
struct mtk_spread {
	struct mtk_ref to, from;
	size_t run, count;
};

struct mtk_bias {
	struct mtk_ref to, from;
	struct geometry g;
};

/* found_inf: where it is not 0 nothing changes; NULL: it is 0.  `count` is
 * Adam's steps and `rates` its rate and 1 / root, in their memory. */
struct mtk_update {
	struct mtk_ref param, grad;
	float *a, *b;
	int32_t *count;
	float *rates;
	const float *found_inf;
	float lr, weight_decay, momentum, beta1, beta2, eps;
};

/* Which of these a kernel takes. */
typedef struct mtk_fill mtk_args_fill;
typedef struct mtk_combine mtk_args_combine;
typedef struct mtk_multiply mtk_args_multiply;
typedef struct mtk_convert mtk_args_convert;
typedef struct mtk_relu mtk_args_relu;
typedef struct mtk_draw mtk_args_draw;
typedef struct mtk_mask mtk_args_mask;
typedef struct mtk_part mtk_args_part;
typedef struct mtk_bn mtk_args_bn_mean, mtk_args_bn_variance,
	mtk_args_bn_running, mtk_args_bn_output, mtk_args_bn_sums,
	mtk_args_bn_input_grad;
typedef struct mtk_pool mtk_args_max_pool, mtk_args_max_pool_grad,
	mtk_args_avg_pool, mtk_args_avg_pool_grad;
typedef struct mtk_softmax mtk_args_log_softmax, mtk_args_log_softmax_grad;
typedef struct mtk_nll mtk_args_nll, mtk_args_nll_grad;
typedef struct mtk_layout mtk_args_patches, mtk_args_exchange, mtk_args_turn;
typedef struct mtk_spread mtk_args_spread;
typedef struct mtk_bias mtk_args_bias_sums;
typedef struct mtk_update mtk_args_sgd, mtk_args_adam_begin, mtk_args_adam;

#endif
