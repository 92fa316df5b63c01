/* SPDX-License-Identifier: Apache-2.0 */
/* What headers have that a tool stumbles over. In the manner of darknet: structs by value, tables in the layers. */
#ifndef TRAPS_H
#define TRAPS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define NN_API __attribute__((visibility("default"), hot))
#define nn_gemm_fast nn_gemm
#define nn_square(x) ((x) * (x))

typedef float real;
typedef int64_t extent;

typedef enum { CONVOLUTIONAL, CONNECTED, BATCHNORM, SOFTMAX, DROPOUT, COST } layer_type;

struct network;
typedef struct network network;
struct layer;
typedef struct layer layer;

typedef struct {
    int batch;
    float rate, momentum, decay;
} update_args;

struct layer {
    layer_type type;
    void (*forward)(struct layer, struct network);
    void (*backward)(struct layer, struct network);
    void (*update)(struct layer, update_args);
    void (*forward_gpu)(struct layer, struct network);
    int batch, inputs, outputs, nweights, nbiases;
    unsigned frozen : 1;
    union {
        int seed;
        float probability;
    } extra;
    float *weights, *weight_updates;
    float *biases, *bias_updates;
    float *output, *delta;
    float **sums;
    struct layer *next;
};

struct network {
    int n, batch;
    layer *layers;
    real *input, *truth, *delta;
    float *workspace;
};

typedef struct {
    float scale, shift;
    int n;
} affine;

typedef union {
    float f;
    uint32_t u;
} bits;

typedef struct {
    unsigned low : 4, high : 4;
} nibbles;

NN_API void nn_gemm(int TA, int TB, int M, int N, int K, float ALPHA, const real *A, int lda, const real *B, int ldb,
                    float BETA, real *C, int ldc) __asm__("nn_gemm");
NN_API void nn_dense_forward(real *out, const real *in, const real *weight, const real *bias, extent n, extent c,
                             extent oc);
NN_API void nn_dense_backward(real *din, real *dweight, real *dbias, const real *dout, const real *in,
                              const real *weight, extent n, extent c, extent oc);
void nn_softmax(float *x, int n);
void nn_crossentropy_backward(int n, int v, float dlogits[n][v], const float *dlosses, const int *targets);
void nn_smooth(float window[16], struct layer *l, real *x);
float nn_apply(affine how, float *x);
void nn_step(float *weights, float *grads, float rate, size_t n);

extern int (*nn_ops[4])(layer *l, int action);
void nn_log(const char *format, ...);
void nn_reset();
int nn_bits(bits b);
int nn_nibbles(nibbles n);
static inline float nn_half(float x) { __asm__ volatile("" : "+x"(x)); return __extension__({ 0.5f * x; }); }
_Complex float nn_rotate(_Complex float z);
void nn_train(layer *layers, int n, void (*done)(void *), void *arg);

#endif
