/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer in one file, as people write them: functions on raw float buffers that call each other by name. No table,
 * no tensor, no header. Weights, gradients that backward adds into and momentum are thirds of one allocation; buffers
 * are used again, ReLU works in place, backward starts from a constant. It knows nothing of libamp.
 *
 *     cc -O2 -o trainer trainer.c -lm && ./trainer
 *
 * The problem is that of tests/hosts/common. It prints the loss of each step and the weights, in hexadecimal.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 32, C = 16, H = 24, V = 4, N_BATCHES = 8, N_STEPS = 60 };
enum { N_PARAMS = H * C + 3 * H + V * H + V };

struct network {
    float *params, *grads, *momentum; /* N_PARAMS each */
    float *w1, *b1, *gamma, *beta, *w2, *b2;
    float *acts;
    float *y1, *hidden, *mean, *rstd, *logits, *probs, *losses, *dlosses, *dlogits, *dhidden;
    const float *x; /* of the last forward */
    const int *targets;
};

float uniform(uint64_t *state);
void linear_forward(float *out, const float *inp, const float *weight, const float *bias, int n, int c, int oc);
void linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                     const float *weight, int n, int c, int oc);
void batchnorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *gamma, const float *beta,
                       int n, int c);
void batchnorm_backward(float *dinp, float *dgamma, float *dbeta, const float *inp, const float *mean,
                        const float *rstd, const float *gamma, int n, int c);
void relu_forward(float *x, int n);
void relu_backward(float *dx, const float *out, int n);
void crossentropy_forward(float *losses, float *probs, const float *logits, const int *targets, int n, int v);
void crossentropy_backward(float *dlogits, const float *dlosses, const float *probs, const int *targets, int n, int v);

void network_build(struct network *net);
float network_forward(struct network *net, const float *x, const int *targets);
void network_zero_grad(struct network *net);
void network_backward(struct network *net);
void network_update(struct network *net, float rate, float momentum);
void network_free(struct network *net);

/* ---- layers ---- */

/* in [-1, 1) */
float uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 40) / 8388608.0f - 1.0f;
}

void linear_forward(float *out, const float *inp, const float *weight, const float *bias, int n, int c, int oc) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < oc; o++) {
            float sum = 0.0f;
            for (int k = 0; k < c; k++) sum += inp[i * c + k] * weight[o * c + k];
            out[i * oc + o] = sum + bias[o];
        }
}

/* dinp is NULL where nobody wants it */
void linear_backward(float *dinp, float *dweight, float *dbias, const float *dout, const float *inp,
                     const float *weight, int n, int c, int oc) {
    for (int i = 0; dinp && i < n; i++)
        for (int k = 0; k < c; k++) {
            float sum = 0.0f;
            for (int o = 0; o < oc; o++) sum += dout[i * oc + o] * weight[o * c + k];
            dinp[i * c + k] = sum;
        }
    for (int o = 0; o < oc; o++) {
        float bias = 0.0f;
        for (int k = 0; k < c; k++) {
            float sum = 0.0f;
            for (int i = 0; i < n; i++) sum += dout[i * oc + o] * inp[i * c + k];
            dweight[o * c + k] += sum;
        }
        for (int i = 0; i < n; i++) bias += dout[i * oc + o];
        dbias[o] += bias;
    }
}

void batchnorm_forward(float *out, float *mean, float *rstd, const float *inp, const float *gamma, const float *beta,
                       int n, int c) {
    for (int k = 0; k < c; k++) {
        float sum = 0.0f, squares = 0.0f;
        for (int i = 0; i < n; i++) sum += inp[i * c + k];
        mean[k] = sum / (float)n;
        for (int i = 0; i < n; i++) {
            const float d = inp[i * c + k] - mean[k];
            squares += d * d;
        }
        rstd[k] = 1.0f / sqrtf(squares / (float)n + 1e-5f);
        for (int i = 0; i < n; i++) out[i * c + k] = (inp[i * c + k] - mean[k]) * rstd[k] * gamma[k] + beta[k];
    }
}

/* in place: dinp comes as the gradient of the output */
void batchnorm_backward(float *dinp, float *dgamma, float *dbeta, const float *inp, const float *mean,
                        const float *rstd, const float *gamma, int n, int c) {
    for (int k = 0; k < c; k++) {
        float sum = 0.0f, dot = 0.0f;
        for (int i = 0; i < n; i++) {
            sum += dinp[i * c + k];
            dot += dinp[i * c + k] * ((inp[i * c + k] - mean[k]) * rstd[k]);
        }
        dgamma[k] += dot;
        dbeta[k] += sum;
        for (int i = 0; i < n; i++) {
            const float normal = (inp[i * c + k] - mean[k]) * rstd[k];
            dinp[i * c + k] = gamma[k] * rstd[k] * (dinp[i * c + k] - (sum + normal * dot) / (float)n);
        }
    }
}

void relu_forward(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

void relu_backward(float *dx, const float *out, int n) {
    for (int i = 0; i < n; i++) dx[i] = out[i] > 0.0f ? dx[i] : 0.0f;
}

void crossentropy_forward(float *losses, float *probs, const float *logits, const int *targets, int n, int v) {
    for (int i = 0; i < n; i++) {
        const float *row = logits + i * v;
        float *p = probs + i * v, largest = row[0], sum = 0.0f;
        for (int k = 1; k < v; k++) largest = row[k] > largest ? row[k] : largest;
        for (int k = 0; k < v; k++) sum += p[k] = expf(row[k] - largest);
        for (int k = 0; k < v; k++) p[k] /= sum;
        losses[i] = -logf(p[targets[i]]);
    }
}

void crossentropy_backward(float *dlogits, const float *dlosses, const float *probs, const int *targets, int n, int v) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < v; k++)
            dlogits[i * v + k] = dlosses[i] * (probs[i * v + k] - (k == targets[i] ? 1.0f : 0.0f));
}

/* ---- network ---- */

static void point(float **pointers[], const int sizes[], int n, float *block) {
    for (int i = 0; i < n; i++) {
        *pointers[i] = block;
        block += sizes[i];
    }
}

void network_build(struct network *net) {
    float **params[] = { &net->w1, &net->b1, &net->gamma, &net->beta, &net->w2, &net->b2 };
    const int param_sizes[] = { H * C, H, H, H, V * H, V };
    float **acts[] = { &net->y1, &net->hidden, &net->mean, &net->rstd, &net->logits, &net->probs, &net->losses,
                       &net->dlosses, &net->dlogits, &net->dhidden };
    const int act_sizes[] = { B * H, B * H, H, H, B * V, B * V, B, B, B * V, B * H };
    uint64_t state = 3;
    memset(net, 0, sizeof *net);
    net->params = calloc(3 * N_PARAMS, sizeof(float));
    net->acts = calloc(3 * B * H + 2 * H + 3 * B * V + 2 * B, sizeof(float));
    if (!net->params || !net->acts) exit(1);
    net->grads = net->params + N_PARAMS;
    net->momentum = net->grads + N_PARAMS;
    point(params, param_sizes, 6, net->params);
    point(acts, act_sizes, 10, net->acts);
    for (int i = 0; i < H * C; i++) net->w1[i] = 1.0f / sqrtf(C) * uniform(&state);
    for (int i = 0; i < 2 * H; i++) (void)uniform(&state);
    for (int i = 0; i < H; i++) net->gamma[i] = 1.0f;
    for (int i = 0; i < V * H; i++) net->w2[i] = 1.0f / sqrtf(H) * uniform(&state);
}

float network_forward(struct network *net, const float *x, const int *targets) {
    float loss = 0.0f;
    net->x = x;
    net->targets = targets;
    linear_forward(net->y1, x, net->w1, net->b1, B, C, H);
    batchnorm_forward(net->hidden, net->mean, net->rstd, net->y1, net->gamma, net->beta, B, H);
    relu_forward(net->hidden, B * H);
    linear_forward(net->logits, net->hidden, net->w2, net->b2, B, H, V);
    crossentropy_forward(net->losses, net->probs, net->logits, targets, B, V);
    for (int i = 0; i < B; i++) loss += net->losses[i];
    return loss / (float)B;
}

void network_zero_grad(struct network *net) { memset(net->grads, 0, N_PARAMS * sizeof(float)); }

void network_backward(struct network *net) {
    float *grads[6], **pointers[] = { &grads[0], &grads[1], &grads[2], &grads[3], &grads[4], &grads[5] };
    const int sizes[] = { H * C, H, H, H, V * H, V };
    point(pointers, sizes, 6, net->grads);
    for (int i = 0; i < B; i++) net->dlosses[i] = 1.0f / (float)B;
    crossentropy_backward(net->dlogits, net->dlosses, net->probs, net->targets, B, V);
    linear_backward(net->dhidden, grads[4], grads[5], net->dlogits, net->hidden, net->w2, B, H, V);
    relu_backward(net->dhidden, net->hidden, B * H);
    batchnorm_backward(net->dhidden, grads[2], grads[3], net->y1, net->mean, net->rstd, net->gamma, B, H);
    linear_backward(NULL, grads[0], grads[1], net->dhidden, net->x, net->w1, B, C, H);
}

void network_update(struct network *net, float rate, float momentum) {
    for (int i = 0; i < N_PARAMS; i++) {
        net->momentum[i] = momentum * net->momentum[i] + net->grads[i];
        net->params[i] -= rate * net->momentum[i];
    }
}

void network_free(struct network *net) {
    free(net->params);
    free(net->acts);
}

/* ---- program ---- */

static float data[N_BATCHES * B * C];
static int labels[N_BATCHES * B];

/* four clusters that overlap a little */
static void make_data(void) {
    uint64_t state = 20;
    float centre[V][C];
    for (int v = 0; v < V; v++)
        for (int k = 0; k < C; k++) centre[v][k] = uniform(&state);
    for (int i = 0; i < N_BATCHES * B; i++) {
        labels[i] = (int)((uniform(&state) + 1.0f) * 0.5f * V);
        for (int k = 0; k < C; k++) data[i * C + k] = centre[labels[i]][k] + 1.5f * uniform(&state);
    }
}

int main(void) {
    struct network net;
    make_data();
    network_build(&net);
    for (int step = 0; step < N_STEPS; step++) {
        const int batch = step % N_BATCHES;
        const float loss = network_forward(&net, data + batch * B * C, labels + batch * B);
        network_zero_grad(&net);
        network_backward(&net);
        network_update(&net, 0.05f, 0.9f);
        printf("%a\n", (double)loss);
    }
    for (int i = 0; i < N_PARAMS; i++) printf("%a\n", (double)net.params[i]);
    network_free(&net);
    return 0;
}
