/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <stdio.h>
#include <stdlib.h>

enum { W1 = HIDDEN * IN, B1 = HIDDEN, W2 = OUT * HIDDEN, B2 = OUT, PARAMS = W1 + B1 + W2 + B2 };

void dense_forward(float *out, const float *in, const float *weight, const float *bias, int n, int c, int oc) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < oc; o++) {
            out[i * oc + o] = bias[o];
            for (int k = 0; k < c; k++) out[i * oc + o] += weight[o * c + k] * in[i * c + k];
        }
}

void dense_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in, const float *weight,
                    int n, int c, int oc) {
    for (int i = 0; din && i < n * c; i++) din[i] = 0;
    for (int i = 0; i < n; i++)
        for (int o = 0; o < oc; o++) {
            dbias[o] += dout[i * oc + o];
            for (int k = 0; k < c; k++) {
                dweight[o * c + k] += dout[i * oc + o] * in[i * c + k];
                if (din) din[i * c + k] += dout[i * oc + o] * weight[o * c + k];
            }
        }
}

void relu_forward(float *x, int n) {
    for (int i = 0; i < n; i++) if (x[i] < 0) x[i] = 0;
}

void relu_backward(float *dx, const float *x, int n) {
    for (int i = 0; i < n; i++) if (!(x[i] > 0)) dx[i] = 0;
}

float mse_forward(const float *out, const float *target, int n, int c) {
    float sum = 0;
    for (int i = 0; i < n * c; i++) sum += (out[i] - target[i]) * (out[i] - target[i]);
    return sum / (float)n;
}

void mse_backward(float *dout, const float *dlosses, const float *out, const float *target, int n, int c) {
    for (int i = 0; i < n * c; i++) dout[i] = dlosses[i / c] * 2 * (out[i] - target[i]);
}

static float uniform(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 16777216.0f - 0.5f;
}

void net_init(net *net) {
    net->params = calloc(PARAMS, sizeof(float));
    net->grads = calloc(PARAMS, sizeof(float));
    for (int i = 0; i < PARAMS; i++) net->params[i] = 0.5f * uniform();
    for (int i = 0; i < BATCH; i++) net->dlosses[i] = 1.0f / BATCH;
}

float net_forward(net *net, const float *in, const float *target) {
    const float *w1 = net->params, *b1 = w1 + W1, *w2 = b1 + B1, *b2 = w2 + W2;
    dense_forward(net->hidden, in, w1, b1, BATCH, IN, HIDDEN);
    relu_forward(net->hidden, BATCH * HIDDEN);
    dense_forward(net->out, net->hidden, w2, b2, BATCH, HIDDEN, OUT);
    return mse_forward(net->out, target, BATCH, OUT);
}

void net_backward(net *net, const float *in, const float *target) {
    const float *w1 = net->params, *w2 = w1 + W1 + B1;
    float *dw1 = net->grads, *db1 = dw1 + W1, *dw2 = db1 + B1, *db2 = dw2 + W2;
    mse_backward(net->dout, net->dlosses, net->out, target, BATCH, OUT);
    dense_backward(net->dhidden, dw2, db2, net->dout, net->hidden, w2, BATCH, HIDDEN, OUT);
    relu_backward(net->dhidden, net->hidden, BATCH * HIDDEN);
    dense_backward(NULL, dw1, db1, net->dhidden, in, w1, BATCH, IN, HIDDEN);
}

void net_update(net *net, float rate) {
    for (int i = 0; i < PARAMS; i++) {
        net->params[i] -= rate * net->grads[i];
        net->grads[i] = 0;
    }
}

void net_free(net *net) {
    free(net->params);
    free(net->grads);
}

int main(void) {
    static net trained;
    float in[BATCH * IN], target[BATCH * OUT], loss = 0;
    net_init(&trained);
    for (int step = 0; step < 600; step++) {
        for (int i = 0; i < BATCH * IN; i++) in[i] = uniform();
        for (int i = 0; i < BATCH; i++) {
            target[i * OUT] = in[i * IN] - in[i * IN + 1];
            target[i * OUT + 1] = in[i * IN + 2] * 0.5f;
        }
        loss = net_forward(&trained, in, target);
        net_backward(&trained, in, target);
        net_update(&trained, 0.1f);
        if (step % 200 == 0) printf("step %3d: loss %.7f\n", step, (double)loss);
    }
    printf("at the end: loss %.7f\n", (double)loss);
    net_free(&trained);
    return 0;
}
