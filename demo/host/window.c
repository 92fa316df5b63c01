/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

#include <string.h>

/* Enough pixels to pay for a tile's overhead, few enough for the first-level
 * cache. */
#define TILE_PIXELS 64

static int at_least_one(int n)
{
	return n > 1 ? n : 1;
}

static int at_most(int n, int limit)
{
	return n < limit ? n : limit;
}

static void choose_tile(struct window *w, const struct geometry *g)
{
	int plane = g->out_h * g->out_w;

	w->g = *g;
	w->tile_rows =
		at_most(at_least_one(TILE_PIXELS / g->out_w), g->out_h);
	w->tile_images = w->tile_rows < g->out_h
	                         ? 1
	                         : at_most(at_least_one(TILE_PIXELS / plane),
	                                   g->images);
	w->pixels = w->tile_images * w->tile_rows * g->out_w;
	w->win_h = (w->tile_rows - 1) * g->stride + g->kernel_h;
	w->win_w = (g->out_w - 1) * g->stride + g->kernel_w;
	w->depth = g->channels * g->kernel_h * g->kernel_w;
	w->cols = mti_round_up(g->filters, MTI_COLS);
}

static void fill_offsets(struct window *w)
{
	const struct geometry *g = &w->g;
	int plane = w->win_h * w->win_w;
	int *at = w->pixel_at;

	for (int i = 0; i < w->tile_images; i++)
		for (int y = 0; y < w->tile_rows; y++)
			for (int x = 0; x < g->out_w; x++)
				*at++ = i * g->channels * plane +
				        y * g->stride * w->win_w +
				        x * g->stride;
	at = w->depth_at;
	for (int c = 0; c < g->channels; c++)
		for (int y = 0; y < g->kernel_h; y++)
			for (int x = 0; x < g->kernel_w; x++)
				*at++ = c * plane + y * w->win_w + x;
}

int mti_window_init(struct window *w, const struct geometry *g)
{
	size_t rows, depth, data, line, out;
	float *base;

	choose_tile(w, g);
	rows = (size_t)mti_round_up(w->pixels, MTI_ROWS);
	depth = (size_t)mti_round_up(w->depth, MTI_ROWS);
	data = (size_t)w->tile_images * (size_t)g->channels *
	       (size_t)w->win_h * (size_t)w->win_w;
	line = (size_t)(w->pixels > g->width ? w->pixels : g->width);
	out = rows * (size_t)w->cols;
	w->scratch = mt_storage_new((data + line + out) * sizeof(float) +
	                                    (rows + depth) * sizeof(int),
	                            MT_MEM_OTHER);
	if (!w->scratch)
		return -1;
	/* The zeros are the padding around what is loaded, and harmless
	 * offsets for the rows that only fill up a block. */
	memset(w->scratch->data, 0, w->scratch->bytes);
	base = w->scratch->data;
	w->data = base;
	w->line = base + data;
	w->out = base + data + line;
	w->pixel_at = (int *)(void *)(base + data + line + out);
	w->depth_at = w->pixel_at + rows;
	fill_offsets(w);
	return 0;
}

void mti_window_done(struct window *w)
{
	mt_storage_free(w->scratch);
}

/* ---- tiles ------------------------------------------------------------- */

static int tiles_down(const struct window *w)
{
	return (w->g.out_h + w->tile_rows - 1) / w->tile_rows;
}

int mti_window_tiles(const struct window *w)
{
	return (w->g.images + w->tile_images - 1) / w->tile_images *
	       tiles_down(w);
}

struct tile mti_window_tile(const struct window *w, int index)
{
	struct tile t;

	t.image = index / tiles_down(w) * w->tile_images;
	t.images = at_most(w->tile_images, w->g.images - t.image);
	t.row = index % tiles_down(w) * w->tile_rows;
	t.rows = at_most(w->tile_rows, w->g.out_h - t.row);
	t.pixels = t.images * t.rows * w->g.out_w;
	return t;
}

/* ---- input ------------------------------------------------------------- */

/* Row y, counted with dilation, of one channel plane that begins at `plane`. */
static void load_row(struct window *w, const mt_tensor *from, int plane,
                     int y, float *to)
{
	const struct geometry *g = &w->g;
	int d = g->dilation;
	int first = g->pad_x < 0 ? (-g->pad_x + d - 1) / d : 0;
	/* The columns whose place, x * d + pad_x, lies in the window. */
	int end = w->win_w - g->pad_x;

	end = end <= 0 ? 0 : at_most((end + d - 1) / d, g->width);
	if (y < 0 || y % d != 0 || y / d >= g->height) {
		memset(to, 0, (size_t)w->win_w * sizeof(float));
		return;
	}
	if (first >= end)
		return;
	plane += y / d * g->width + first;
	to += first * d + g->pad_x;
	if (d == 1) {
		mti_load(from, (size_t)plane, (size_t)(end - first), to);
		return;
	}
	mti_load(from, (size_t)plane, (size_t)(end - first), w->line);
	for (int x = 0; x < end - first; x++)
		to[x * d] = w->line[x];
}

void mti_window_load(struct window *w, const struct tile *t,
                     const mt_tensor *from)
{
	const struct geometry *g = &w->g;
	int plane = g->height * g->width;
	int at = t->image * g->channels * plane;
	float *to = w->data;

	/* A window that is the image itself, as in a 1x1 convolution. */
	if (w->win_h == g->height && w->win_w == g->width &&
	    g->dilation == 1 && g->pad_y == 0 && g->pad_x == 0) {
		mti_load(from, (size_t)at,
		         (size_t)(t->images * g->channels * plane), to);
		return;
	}
	for (int c = 0; c < t->images * g->channels; c++) {
		for (int y = 0; y < w->win_h; y++) {
			load_row(w, from, at,
			         t->row * g->stride + y - g->pad_y, to);
			to += w->win_w;
		}
		at += plane;
	}
}

/* ---- output ------------------------------------------------------------ */

/* Where the tile's pixels of one image and filter begin. */
static size_t run_at(const struct window *w, const struct tile *t, int image,
                     int filter)
{
	const struct geometry *g = &w->g;

	return (size_t)((((t->image + image) * g->filters + filter) *
	                         g->out_h +
	                 t->row) *
	                g->out_w);
}

void mti_window_store_out(struct window *w, const struct tile *t,
                          mt_tensor *to)
{
	int run = t->rows * w->g.out_w;

	for (int i = 0; i < t->images; i++) {
		for (int f = 0; f < w->g.filters; f++) {
			size_t at = run_at(w, t, i, f);
			const float *from = w->out + i * run * w->cols + f;
			float *line = mti_begin(to, at, w->line);

			for (int p = 0; p < run; p++)
				line[p] = from[p * w->cols];
			mti_end(to, at, (size_t)run, line);
		}
	}
}

void mti_window_load_out(struct window *w, const struct tile *t,
                         const mt_tensor *from)
{
	int run = t->rows * w->g.out_w;

	for (int i = 0; i < t->images; i++) {
		for (int f = 0; f < w->g.filters; f++) {
			const float *line = mti_read(from, run_at(w, t, i, f),
			                             (size_t)run, w->line);
			float *to = w->out + i * run * w->cols + f;

			for (int p = 0; p < run; p++)
				to[p * w->cols] = line[p];
		}
	}
}
