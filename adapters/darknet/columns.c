/* SPDX-License-Identifier: Apache-2.0 */
/*
 * im2col and col2im, a row at a time where darknet's go pixel by pixel and take longer than a product in 16 bits. The
 * same values, and sums in the same order: the same bits.
 */
#include "adapter.h"

struct image_row { /* what one row of columns has of an image, at one place of the kernel */
    int from, to;   /* columns that lie in the image; none if from == to */
    float *pixels;  /* that of column `from` */
};

struct shape {
    int height, width, ksize, stride, pad;
};

static int columns_of(int size, const struct shape *s) { return (size + 2 * s->pad - s->ksize) / s->stride + 1; }

/* Row `h` of the columns that channel `c` of them has: kernel place and image channel are in `c`. */
static struct image_row row_of(float *image, const struct shape *s, int c, int h) {
    const int shift = c % s->ksize - s->pad, row = c / s->ksize % s->ksize - s->pad + h * s->stride;
    const int channel = c / s->ksize / s->ksize, n = columns_of(s->width, s);
    struct image_row r = { 0, 0, image };
    if (row < 0 || row >= s->height || s->width - 1 - shift < 0) return r;
    r.from = shift < 0 ? (s->stride - 1 - shift) / s->stride : 0;
    r.to = (s->width - 1 - shift) / s->stride + 1;
    if (r.to > n) r.to = n;
    if (r.from > r.to) r.from = r.to;
    r.pixels = image + ((ptrdiff_t)channel * s->height + row) * s->width + shift + r.from * s->stride;
    return r;
}

static void read_row(float *columns, int n, struct image_row r, int stride) {
    memset(columns, 0, (size_t)r.from * sizeof *columns);
    if (stride == 1) memcpy(columns + r.from, r.pixels, (size_t)(r.to - r.from) * sizeof *columns);
    else
        for (int w = r.from; w < r.to; w++) columns[w] = r.pixels[(w - r.from) * stride];
    memset(columns + r.to, 0, (size_t)(n - r.to) * sizeof *columns);
}

static void add_row(const float *columns, struct image_row r, int stride) {
    for (int w = r.from; w < r.to; w++) r.pixels[(w - r.from) * stride] += columns[w];
}

void im2col(float *image, int channels, int height, int width, int ksize, int stride, int pad, float *columns) {
    const struct shape s = { height, width, ksize, stride, pad };
    const int rows = columns_of(height, &s), n = columns_of(width, &s);
    for (int c = 0; c < channels * ksize * ksize; c++)
        for (int h = 0; h < rows; h++, columns += n) read_row(columns, n, row_of(image, &s, c, h), stride);
}

void col2im(float *columns, int channels, int height, int width, int ksize, int stride, int pad, float *image) {
    const struct shape s = { height, width, ksize, stride, pad };
    const int rows = columns_of(height, &s), n = columns_of(width, &s);
    for (int c = 0; c < channels * ksize * ksize; c++)
        for (int h = 0; h < rows; h++, columns += n) add_row(columns, row_of(image, &s, c, h), stride);
}
