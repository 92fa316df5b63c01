/* SPDX-License-Identifier: Apache-2.0 */
/* The work on the sums of a matmul before they are stored, for the built-in code and for backends. */
#include "kernels/matmul.h"
#include "kernels/kernels.h"

#include <math.h>

enum { RUN = 256 }; /* elements converted at a time */

static void relu(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i]; /* a NaN is not below 0 and stays */
}

static void gelu(float *x, size_t n) {
    const float sqrt_half = 0.70710678118654752f;
    for (size_t i = 0; i < n; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * sqrt_half));
}

static void gelu_tanh(float *x, size_t n) {
    const float sqrt_2_over_pi = 0.79788456080286536f;
    for (size_t i = 0; i < n; i++) {
        const float inner = sqrt_2_over_pi * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
        x[i] = 0.5f * x[i] * (1.0f + tanhf(inner));
    }
}

static void activate(int32_t activation, float *x, size_t n) {
    static void (*const functions[])(float *, size_t) = {
        [AMP_ACTIVATION_RELU] = relu,
        [AMP_ACTIVATION_GELU] = gelu,
        [AMP_ACTIVATION_GELU_TANH] = gelu_tanh,
    };
    if (activation != AMP_ACTIVATION_NONE) functions[activation](x, n);
}

/* One run of one row: c is read before d is written. */
static void finish_run(const amp_matmul_args *g, float *sums, size_t i, size_t j, size_t n, const float *bias) {
    const struct amp__kernels *k = amp__kernels_get();
    const float alpha = g->k ? g->alpha : 0.0f; /* an empty sum is 0 even if alpha is infinite */
    float c[RUN];
    for (size_t e = 0; e < n; e++) sums[e] *= alpha;
    if (g->c && g->beta != 0.0f) {
        const char *from = (const char *)g->c + (i * (size_t)g->ld_c + j) * amp__dtype_size(g->c_dtype);
        k->cast[AMP_FLOAT32][g->c_dtype](c, from, n);
        for (size_t e = 0; e < n; e++) sums[e] += g->beta * c[e];
    }
    if (bias)
        for (size_t e = 0; e < n; e++) sums[e] += bias[e];
    activate(g->activation, sums, n);
    char *to = (char *)g->d + (i * (size_t)g->ld_d + j) * amp__dtype_size(g->d_dtype);
    k->cast[g->d_dtype][AMP_FLOAT32](to, sums, n);
}

void amp__matmul_finish(const amp_matmul_args *g, float *sums, size_t ld, size_t i0, size_t rows, size_t j0,
                        size_t cols) {
    float bias[RUN];
    for (size_t j = 0; j < cols; j += RUN) {
        const size_t n = cols - j < RUN ? cols - j : RUN;
        if (g->bias) {
            const char *from = (const char *)g->bias + (j0 + j) * amp__dtype_size(g->bias_dtype);
            amp__kernels_get()->cast[AMP_FLOAT32][g->bias_dtype](bias, from, n);
        }
        for (size_t i = 0; i < rows; i++)
            finish_run(g, sums + i * ld + j, i0 + i, j0 + j, n, g->bias ? bias : NULL);
    }
}
