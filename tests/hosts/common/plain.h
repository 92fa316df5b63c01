/* SPDX-License-Identifier: Apache-2.0 */
/* The problem on raw buffers: a table of math.c's functions, which the host calls through, and all the memory of one
 * training. Who describes it to libamp is the test. */
#ifndef PLAIN_H
#define PLAIN_H

#include "problem.h"

enum {
    PLAIN_LINEAR, PLAIN_LINEAR_BACKWARD, PLAIN_NORM, PLAIN_NORM_BACKWARD, PLAIN_RELU, PLAIN_RELU_BACKWARD, PLAIN_LOSS,
    PLAIN_LOSS_BACKWARD, N_PLAIN_OPS
};

struct plain_table {
    void (*linear)(float *, const float *, const float *, const float *, int, int, int);
    void (*linear_backward)(float *, float *, float *, const float *, const float *, const float *, int, int, int);
    void (*norm)(float *, float *, float *, const float *, const float *, const float *, int, int);
    void (*norm_backward)(float *, float *, float *, const float *, const float *, const float *, const float *,
                          const float *, int, int);
    void (*relu)(float *, const float *, int);
    void (*relu_backward)(float *, const float *, const float *, int);
    float (*loss)(float *, const float *, const int32_t *, int, int);
    void (*loss_backward)(float *, const float *, const int32_t *, float, int, int);
};
extern const struct plain_table plain_functions; /* what a table holds before it is wired */

/* In the order of the table. */
extern const struct plain_op {
    const char *name, *backward_of, *schema;
} plain_ops[N_PLAIN_OPS];

struct plain {
    struct plain_table ops;
    bool calls_past_slots; /* of linear */
    float data[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
    float params[PARAM_FLOATS + 1], grads[PARAM_FLOATS + 1], momentum[PARAM_FLOATS]; /* the last is nobody's */
    float y[BATCH * HIDDEN], normed[BATCH * HIDDEN], hidden[BATCH * HIDDEN], mean[HIDDEN], rstd[HIDDEN];
    float logits[BATCH * CLASSES], probabilities[BATCH * CLASSES], dlogits[BATCH * CLASSES];
    float dhidden[BATCH * HIDDEN], dnormed[BATCH * HIDDEN], dy[BATCH * HIDDEN];
};

void plain_init(struct plain *host); /* at the starting values */
static inline float *plain_param(struct plain *host, int i) { return host->params + problem_params[i].offset; }
static inline float *plain_grad(struct plain *host, int i) { return host->grads + problem_params[i].offset; }
void *plain_slot(struct plain *host, int op);
float plain_forward(struct plain *host, int step);
void plain_backward(struct plain *host, int step, float seed); /* adds to the gradients */
void plain_update(struct plain *host);

#endif
