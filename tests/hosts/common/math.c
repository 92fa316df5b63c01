/* SPDX-License-Identifier: Apache-2.0 */
/* The problem's arithmetic in FP32, in one fixed order. */
#include "problem.h"

#include <math.h>

void math_linear(float *y, const float *x, const float *w, const float *b, int n, int ins, int outs) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) {
            float sum = 0.0f;
            for (int k = 0; k < ins; k++) sum += x[i * ins + k] * w[o * ins + k];
            y[i * outs + o] = sum + b[o];
        }
}

static void linear_backward_input(float *dx, const float *dy, const float *w, int n, int ins, int outs) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ins; k++) {
            float sum = 0.0f;
            for (int o = 0; o < outs; o++) sum += dy[i * outs + o] * w[o * ins + k];
            dx[i * ins + k] = sum;
        }
}

void math_linear_backward(float *dx, float *dw, float *db, const float *dy, const float *x, const float *w, int n,
                          int ins, int outs) {
    if (dx) linear_backward_input(dx, dy, w, n, ins, outs);
    for (int o = 0; o < outs; o++) {
        for (int k = 0; k < ins; k++) {
            float sum = 0.0f;
            for (int i = 0; i < n; i++) sum += dy[i * outs + o] * x[i * ins + k];
            dw[o * ins + k] += sum;
        }
        float sum = 0.0f;
        for (int i = 0; i < n; i++) sum += dy[i * outs + o];
        db[o] += sum;
    }
}

void math_batch_norm(float *y, float *mean, float *rstd, const float *x, const float *gamma, const float *beta, int n,
                     int channels) {
    for (int c = 0; c < channels; c++) {
        float sum = 0.0f, squares = 0.0f;
        for (int i = 0; i < n; i++) sum += x[i * channels + c];
        mean[c] = sum / (float)n;
        for (int i = 0; i < n; i++) {
            const float d = x[i * channels + c] - mean[c];
            squares += d * d;
        }
        rstd[c] = 1.0f / sqrtf(squares / (float)n + EPSILON);
        for (int i = 0; i < n; i++)
            y[i * channels + c] = (x[i * channels + c] - mean[c]) * rstd[c] * gamma[c] + beta[c];
    }
}

void math_batch_norm_backward(float *dx, float *dgamma, float *dbeta, const float *dy, const float *x,
                              const float *mean, const float *rstd, const float *gamma, int n, int channels) {
    for (int c = 0; c < channels; c++) {
        float sum = 0.0f, dot = 0.0f;
        for (int i = 0; i < n; i++) {
            sum += dy[i * channels + c];
            dot += dy[i * channels + c] * ((x[i * channels + c] - mean[c]) * rstd[c]);
        }
        dgamma[c] += dot;
        dbeta[c] += sum;
        for (int i = 0; i < n; i++) {
            const float normal = (x[i * channels + c] - mean[c]) * rstd[c];
            dx[i * channels + c] = gamma[c] * rstd[c] * (dy[i * channels + c] - (sum + normal * dot) / (float)n);
        }
    }
}

void math_relu(float *y, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

void math_relu_backward(float *dx, const float *dy, const float *y, int n) {
    for (int i = 0; i < n; i++) dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

float math_cross_entropy(float *probabilities, const float *logits, const int32_t *labels, int n, int classes) {
    float loss = 0.0f;
    for (int i = 0; i < n; i++) {
        const float *row = logits + i * classes;
        float *p = probabilities + i * classes, largest = row[0], sum = 0.0f;
        for (int c = 1; c < classes; c++) largest = row[c] > largest ? row[c] : largest;
        for (int c = 0; c < classes; c++) sum += p[c] = expf(row[c] - largest);
        for (int c = 0; c < classes; c++) p[c] /= sum;
        loss -= logf(p[labels[i]]);
    }
    return loss / (float)n;
}

void math_cross_entropy_backward(float *dlogits, const float *probabilities, const int32_t *labels, float seed, int n,
                                 int classes) {
    for (int i = 0; i < n; i++)
        for (int c = 0; c < classes; c++) {
            const float target = c == labels[i] ? 1.0f : 0.0f;
            dlogits[i * classes + c] = seed * ((probabilities[i * classes + c] - target) / (float)n);
        }
}

void math_sgd(float *w, float *momentum, const float *grad, int n) {
    for (int i = 0; i < n; i++) {
        momentum[i] = MOMENTUM * momentum[i] + grad[i];
        w[i] -= RATE * momentum[i];
    }
}
