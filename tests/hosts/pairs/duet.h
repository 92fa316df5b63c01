/* SPDX-License-Identifier: Apache-2.0 */
/*
 * duet: a small framework of forward and backward pairs, with the habits of its kind. A layer is a struct of more than a
 * kilobyte that is passed by value, with a function pointer for each of its three duties; the network goes along by value
 * too. There is no tape, no tensor and no type: buffers are float *, all weights are slices of one block, gradients are
 * added to, and momentum stays in them. It knows nothing of libamp.
 */
#ifndef DUET_H
#define DUET_H

#include <stdint.h>

enum { DUET_LAYERS = 8 };

struct network;

typedef enum { DUET_LINEAR, DUET_NORM, DUET_RELU, DUET_COST } duet_kind;

typedef struct duet_args {
    int step;
    float rate, momentum;
} duet_args;

typedef struct layer {
    duet_kind kind;
    void (*forward)(struct layer l, struct network net);
    void (*backward)(struct layer l, struct network net);
    void (*update)(struct layer l, struct duet_args a); /* NULL: nothing to update */
    int batch, inputs, outputs;
    int n_weights, n_biases; /* floats */
    float scale;             /* cost: what the loss gradient is multiplied with */
    float *weights, *biases; /* norm: its gain and shift */
    float *weight_updates, *bias_updates; /* gradients are added here; between steps they hold the momentum */
    float *output, *delta;   /* [batch, outputs] */
    float *mean, *rstd;      /* norm, [outputs] */
    float *cost;             /* cost, [1] */
    char name[64];
    int anchors[64], mask[64];
    float schedule_rates[64], schedule_steps[64];
} layer;

/* C = ALPHA op(A) op(B) + BETA C, row-major, and a thread pool of the poorest sort. */
typedef void duet_gemm(int TA, int TB, int M, int N, int K, float ALPHA, float *A, int lda, float *B, int ldb, float BETA,
                       float *C, int ldc);
typedef struct duet_blas {
    duet_gemm *gemm;
    void (*parallel)(void (*body)(void *arg, int part), void *arg, int parts);
} duet_blas;
extern const duet_blas duet_default_blas;

typedef struct network {
    int n, batch, index, train;
    layer *layers;
    const duet_blas *blas;
    float *input, *delta; /* of the layer that runs */
    float *truth;         /* class numbers, as floats */
    float *workspace;     /* shared by all layers */
    float *params, *updates; /* one block each: all weights, all gradients */
    int n_params, workspace_floats;
    float *deltas[2];     /* layers take turns */
    float *buffers[4 * DUET_LAYERS];
    int n_buffers;
    float cost_history[128], seen[64], thresholds[64];
} network;

/* An empty network for at most max_params weights, and layers of at most max_outputs. NULL: out of memory. */
network *duet_new(int batch, int max_params, int max_outputs);
void duet_free(network *net);
void duet_add_linear(network *net, int inputs, int outputs);
void duet_add_norm(network *net);
void duet_add_relu(network *net); /* in place on the layer before */
void duet_add_cost(network *net);

void duet_forward(network *net); /* from net->input and net->truth */
void duet_backward(network *net);
void duet_update(network *net, duet_args a);         /* through the layers' pointers */
void duet_update_inlined(network *net, duet_args a); /* the same as one loop over the block */
float duet_cost(const network *net);

/* Called at the end of every layer's forward if set: where a user's interrupt leaves by longjmp. */
extern void (*duet_interrupt)(const layer *l);

/* layers.c */
void duet_linear_forward(layer l, network net);
void duet_linear_backward(layer l, network net);
void duet_norm_forward(layer l, network net);
void duet_norm_backward(layer l, network net);
void duet_relu_forward(layer l, network net);
void duet_relu_backward(layer l, network net);
void duet_cost_forward(layer l, network net);
void duet_cost_backward(layer l, network net);
void duet_sgd(layer l, duet_args a);

#endif
