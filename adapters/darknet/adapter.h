/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp_darknet.so: mixed precision for any program that uses libdarknet.so, by LD_PRELOAD. docs/start/darknet.md is
 * the user's page.
 *
 *     options.c    what the environment wants
 *     parts.c      which parameters a layer of which kind has
 *     product.c    gemm_cpu by amp_matmul, as ops of libamp
 *     columns.c    im2col and col2im
 *     route.c      the entries that are exported, and whose function each call means
 *     network.c    a network described to libamp, and given back
 *     interpose.c  the functions of libdarknet.so that this library stands before
 *     program.c    what to say to a program without libdarknet.so
 */
#ifndef ADAPTER_H
#define ADAPTER_H

#include <amp.h>
#include <amp_raw.h>
#include <darknet.h>

#include <stdbool.h>

/* ---- options.c ---- */

struct options {
    bool on; /* AMP_LEVEL is set: else every call goes straight through */
    bool quiet; /* AMP_LOG=off */
    bool fast; /* what need not be darknet's own is libamp's: at O0 only where it is asked for */
    amp_config config;
};

/* Read once. What cannot be read ends the program. */
const struct options *options(void);

/* A line on standard error that begins with our name; `stop` ends the program with status 1. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
void must(amp_status status, const char *what);

/* ---- parts.c ---- */

/* A layer with parameters: one of the network's, or one inside a recurrent layer. */
struct part {
    char name[40], backward_name[56]; /* "5.lstm.wf" and "5.lstm.wf.backward" */
    layer *l;
    const float *weights; /* as they lay when libamp was told of them */
    int n_weights, n_biases; /* as many scales as biases, where there are scales */
    amp_fn forward, backward; /* slots of its products */
};

/* The parts of a network, in *n; the caller frees them. A kind of layer that is not known ends the program. */
struct part *parts_of(layer *layers, int n_layers, int *n);

/* ---- product.c ---- */

struct wired;

typedef void gemm_fn(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb, float BETA,
                     float *C, int ldc);

/* Ops for the products of each part, forward and backward, and for others: 2 * n_parts + 1 entries. */
void describe_products(amp_op *ops, struct part *parts, int n_parts, amp_fn *other);

/* The slot of a product: whose weights or gradients are among its operands? */
gemm_fn *product_of(const struct wired *w, const float *A, const float *B, const float *C);

/* ---- columns.c ---- */

/* darknet's convolutions as products: the columns of an image, and the sums of columns, added to an image. */
typedef void columns_fn(float *from, int channels, int height, int width, int ksize, int stride, int pad, float *to);
columns_fn im2col, col2im;

/* ---- network.c ---- */

/* A network under libamp. Known by its array of layers: programs copy `network` structs. */
struct wired {
    struct wired *next;
    layer *layers;
    int n_layers, n_parts;
    struct part *parts;
    amp_fn other; /* slot of products of no part */
    amp_buffer *buffers; /* each parameter and its gradient, in turns */
    amp_model model;
    amp_optimizer optimizer;
    int32_t busy; /* a thread is inside */
    bool backward; /* it is in backward_network */
};

/* The network under libamp, wired now if it was not, for one thread until `leave`. */
struct wired *enter(network *net);
void leave(struct wired *w);

/* Gives it back, if it is one of ours: any layer of it will do. */
void unwire_layer(const layer *l);

/* ---- interpose.c ---- */

/* Darknet's functions that are interposed: route.c exports them, interpose.c has ours_NAME of each. All else is hidden:
 * a program may have a `stop` of its own. */
#define INTERPOSED(X)                                                                                                  \
    X(gemm_cpu) X(im2col_cpu) X(col2im_cpu) X(forward_network) X(backward_network) X(update_network)                   \
    X(save_weights_upto) X(load_weights_upto) X(free_layer)

/* darknet's own product. */
gemm_fn *darknet_gemm(void);

/* libdarknet.so has this function. */
bool darknet_has(const char *name);

#endif /* ADAPTER_H */
