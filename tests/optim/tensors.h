/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for a rule to step. */
#ifndef TEST_OPTIM_TENSORS_H
#define TEST_OPTIM_TENSORS_H

#include "rules.h"

#include <stdlib.h>
#include <string.h>

enum { N_TENSORS = 4 };
static const size_t tensor_sizes[N_TENSORS] = { 1, 7, 300, 66000 }; /* the last is longer than a block of the sums */

struct tensors {
    float *grad[N_TENSORS], *param[N_TENSORS], *moments[3][N_TENSORS]; /* FP32 */
    uint16_t *low_grad[N_TENSORS], *low[N_TENSORS];
    uint64_t steps[N_TENSORS];
    amp_span grads[N_TENSORS], params[N_TENSORS], lows[N_TENSORS], moment_spans[3][N_TENSORS];
    amp_optim_tensors list;
};

static inline float *floats(size_t n) { return calloc(n, sizeof(float)); }

/* Zeros. The list is of FP32 parameters with FP32 gradients and no copies. */
static inline void tensors_init(struct tensors *t, const amp_optim *rule) {
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < N_TENSORS; i++) {
        const size_t n = tensor_sizes[i];
        t->grad[i] = floats(n), t->param[i] = floats(n);
        t->low_grad[i] = calloc(n, 2), t->low[i] = calloc(n, 2);
        t->grads[i] = (amp_span){ t->grad[i], n, AMP_FLOAT32, 0 };
        t->params[i] = (amp_span){ t->param[i], n, AMP_FLOAT32, 0 };
        for (int k = 0; k < 3; k++) {
            const size_t size = rule->kind == AMP_OPTIM_NOVOGRAD && k == 1 ? 1 : n;
            t->moments[k][i] = floats(n);
            t->moment_spans[k][i] = (amp_span){ t->moments[k][i], size, AMP_FLOAT32, 0 };
        }
    }
    t->list = (amp_optim_tensors){ .struct_size = sizeof t->list, .n = N_TENSORS, .grad = t->grads, .param = t->params,
                                   .steps = t->steps };
    for (int k = 0; k < 3; k++) t->list.moments[k] = t->moment_spans[k];
}

static inline void tensors_free(struct tensors *t) {
    for (size_t i = 0; i < N_TENSORS; i++) {
        free(t->grad[i]), free(t->param[i]), free(t->low_grad[i]), free(t->low[i]);
        for (int k = 0; k < 3; k++) free(t->moments[k][i]);
    }
}

#define OWN_TENSORS __attribute__((cleanup(tensors_free))) struct tensors

/* A generator of its own, so that every failure can be had again: splitmix64 from the test's number. */
static inline uint64_t next_bits(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline float next_float(uint64_t *state) { return (float)((double)(int64_t)next_bits(state) * 0x1p-63); }

static inline void fill_floats(float *x, size_t n, float scale, uint64_t *state) {
    for (size_t i = 0; i < n; i++) x[i] = scale * next_float(state);
}

#endif
