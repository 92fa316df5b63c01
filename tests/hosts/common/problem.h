/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one small problem that every host in tests/hosts/ trains, so that hosts of different kinds can be compared:
 *
 *     x[32,16] -> linear 16x24 -> batch norm -> ReLU -> linear 24x4 -> softmax cross entropy, mean over the batch
 *
 * 60 steps of SGD, rate 0.05, momentum 0.9 (m = 0.9 m + g; w -= rate m), batches in order, starting again after the
 * eighth. Weights are [outputs, inputs], everything row-major. Nothing here knows libamp but for the level's number.
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INPUTS = 16, HIDDEN = 24, CLASSES = 4, BATCH = 32, BATCHES = 8, SAMPLES = BATCH * BATCHES, STEPS = 60 };
#define RATE 0.05f
#define MOMENTUM 0.9f
#define EPSILON 1e-5f
#define SCALE 1024.0f /* the static loss scale for O1 and O2, so that no host skips */

/* Parameters in this order, everywhere: as one block, and as a list. */
enum { W1, B1, GAMMA, BETA, W2, B2, N_PARAMS };
struct problem_param {
    const char *name;
    size_t offset, size; /* floats, in the block of all parameters */
    bool batch_norm;
};
extern const struct problem_param problem_params[N_PARAMS];
enum { PARAM_FLOATS = HIDDEN * INPUTS + 3 * HIDDEN + CLASSES * HIDDEN + CLASSES };

/* x[SAMPLES,INPUTS], labels[SAMPLES]: the same numbers on every machine. */
void problem_data(float *x, int32_t *labels);
/* The starting values, params[PARAM_FLOATS]. */
void problem_start(float *params);

/* What a training printed, for comparisons. */
struct curve {
    float loss[STEPS];
    float params[PARAM_FLOATS]; /* at the end, FP32: the masters where there are masters */
};

/* The training in plain C with every cast written out by hand, and no libamp. level: 0..5 for O0..O5. linear runs in the
 * low type, batch norm (O1, O4) and the loss in FP32. scale: what the loss is multiplied with (O0: 1). */
void reference_train(int level, float scale, struct curve *curve);

/* O3 alone, scale 1, for hosts that keep momentum in the gradient's own buffer: there it is 16-bit as the gradient is. */
void reference_train_momentum_in_gradients(int level, struct curve *curve);

/* The largest difference of two curves' losses, relative to the first loss. */
double curve_distance(const struct curve *a, const struct curve *b);

/* ---- arithmetic, for hosts that want the very same bits ---- */

/* y[n,outs] = x[n,ins] w[outs,ins]^T + b */
void math_linear(float *y, const float *x, const float *w, const float *b, int n, int ins, int outs);
/* dx (NULL: not wanted) is overwritten; dw and db are added to. */
void math_linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x, const float *w, int n,
                          int ins, int outs);
/* Training mode; mean and rstd [channels] are kept for backward. */
void math_batch_norm(float *y, float *mean, float *rstd, const float *x, const float *gamma, const float *beta, int n,
                     int channels);
void math_batch_norm_backward(float *dx, float *dgamma, float *dbeta, const float *dy, const float *x,
                              const float *mean, const float *rstd, const float *gamma, int n, int channels);
void math_relu(float *y, const float *x, int n);
void math_relu_backward(float *dx, const float *dy, const float *y, int n);
/* The mean loss; probabilities[n,classes]. */
float math_cross_entropy(float *probabilities, const float *logits, const int32_t *labels, int n, int classes);
/* dlogits = seed * (p - onehot) / n */
void math_cross_entropy_backward(float *dlogits, const float *probabilities, const int32_t *labels, float seed, int n,
                                 int classes);
void math_sgd(float *w, float *momentum, const float *grad, int n);

#endif
