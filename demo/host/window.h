/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sliding window of a convolution, tile by tile.
 *
 * A tile is a few rows of output pixels (or a few whole small images).  Its
 * window is the padded part of the input that those pixels see, in float.
 * Element k of the patch of pixel p lies at window[pixel_at[p] + depth_at[k]]
 * - so mti_gemm multiplies patches that were never copied out one by one, and
 * the scratch memory is a few rows of the input, whatever its size.
 */
#ifndef MINITAPE_WINDOW_H
#define MINITAPE_WINDOW_H

#include "internal.h"
#include "launch.h"

struct tile {
	int image, images;
	int row, rows; /* of the output, in each of these images */
	int pixels;
};

struct window {
	struct geometry g;
	int tile_images, tile_rows; /* of a full tile */
	int win_h, win_w;           /* of one channel's window */
	int pixels;                 /* of a full tile */
	int depth;                  /* of a patch */
	int cols;                   /* filters, rounded up for mti_gemm */
	float *data;
	float *line; /* one channel of a tile's output, or one input row */
	float *out;  /* a tile of output, [pixel][filter] */
	int *pixel_at, *depth_at; /* padded for mti_gemm's rows */
	mt_storage *scratch;
};

/* 0, or -1 when there is no memory. */
int mti_window_init(struct window *w, const struct geometry *g);
void mti_window_done(struct window *w);

int mti_window_tiles(const struct window *w);
struct tile mti_window_tile(const struct window *w, int index);

/* Loads what the tile sees of `from`. */
void mti_window_load(struct window *w, const struct tile *t,
                     const mt_tensor *from);

/* Moves w->out to or from the tile's place in an NCHW tensor. */
void mti_window_store_out(struct window *w, const struct tile *t,
                          mt_tensor *to);
void mti_window_load_out(struct window *w, const struct tile *t,
                         const mt_tensor *from);

/* ---- product.c: the same by a product of the user's --------------------- */

/* Takes NULL for output and passes it on. */
mt_tensor *mti_product_output(mt_product_fn fn, mt_tensor *to,
                              const mt_tensor *input, const mt_tensor *weight,
                              const mt_tensor *bias, const struct geometry *g);
/* The two gradients: 0, or -1.  Weight's and bias's may be NULL: not wanted. */
int mti_product_input_grad(mt_product_fn fn, mt_tensor *to,
                           const mt_tensor *weight, const mt_tensor *grad,
                           const struct geometry *reversed);
int mti_product_weight_grads(mt_product_fn fn, mt_tensor *weight_grad,
                             mt_tensor *bias_grad, const mt_tensor *input,
                             const mt_tensor *grad, const struct geometry *g);

/* to[i] = bias[i / run % its length]: the sums begin with the bias. */
void mti_fill_bias(void *to, size_t n, size_t run, const mt_tensor *bias);
void mti_sum_bias(mt_tensor *to, const mt_tensor *grad,
                  const struct geometry *g);
/* 0, or -1 with a message. */
int mti_multiply(mt_product_fn fn, mt_device device, mt_product *product);

/* ---- linear.c: the linear layer so --------------------------------------- */

/* Takes NULL for output and passes it on. */
mt_tensor *mti_linear_output(mt_product_fn fn, mt_tensor *to,
                             const mt_tensor *input, const mt_tensor *weight,
                             const mt_tensor *bias);
/* 0, or -1.  Either gradient may be NULL: not wanted. */
int mti_linear_grads(mt_product_fn fn, mt_tensor *input_grad,
                     mt_tensor *weight_grad, const mt_tensor *input,
                     const mt_tensor *weight, const mt_tensor *grad);

#endif
