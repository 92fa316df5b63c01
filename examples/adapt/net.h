/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of a small network: y = W2 relu(W1 x + b1) + b2. */
enum { BATCH = 16, IN = 8, HIDDEN = 24, OUT = 2 };

typedef struct net {
    float *params, *grads;  /* W1, b1, W2, b2: slices of one block each */
    float hidden[BATCH * HIDDEN], out[BATCH * OUT], dhidden[BATCH * HIDDEN], dout[BATCH * OUT], dlosses[BATCH];
} net;

void dense_forward(float *out, const float *in, const float *weight, const float *bias, int n, int c, int oc);
void dense_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in, const float *weight,
                    int n, int c, int oc);
void relu_forward(float *x, int n);
void relu_backward(float *dx, const float *x, int n);
float mse_forward(const float *out, const float *target, int n, int c);
void mse_backward(float *dout, const float *dlosses, const float *out, const float *target, int n, int c);

void net_init(net *net);
float net_forward(net *net, const float *in, const float *target);
void net_backward(net *net, const float *in, const float *target);
void net_update(net *net, float rate);
void net_free(net *net);
