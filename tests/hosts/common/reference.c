/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem trained without libamp, with each level's casts written out: FP32 arithmetic between values rounded
 * through the 16-bit type. The rounding is written here too, so that nothing of libamp's judges libamp.
 */
#include "problem.h"

#include <math.h>
#include <string.h>

static const struct rules {
    int mantissa;       /* bits stored; 0: no 16-bit type */
    int smallest;       /* exponent of the smallest normal number */
    float largest;      /* what rounds beyond is infinite */
    bool model_is_low;  /* parameters and activations, not only what enters linear */
    bool norm_is_fp32;  /* batch norm's parameters */
    bool masters;
} levels[] = {
    { 0, 0, 0.0f, false, true, false },
    { 10, -14, 65504.0f, false, true, false },
    { 10, -14, 65504.0f, true, true, true },
    { 10, -14, 65504.0f, true, false, false },
    { 7, -126, 0x1.fep127f, false, true, false },
    { 7, -126, 0x1.fep127f, true, true, true },
};

/* To nearest, ties to even, as the 16-bit type would store it. */
static float rounded(const struct rules *rules, float value) {
    int exponent;
    if (!rules->mantissa || value == 0.0f || !isfinite(value)) return value;
    (void)frexpf(value, &exponent); /* value = f * 2^exponent, f in [0.5, 1) */
    const int lowest = rules->smallest + 1;
    const double unit = ldexp(1.0, (exponent < lowest ? lowest : exponent) - 1 - rules->mantissa);
    const double result = nearbyint((double)value / unit) * unit;
    return fabs(result) > (double)rules->largest ? copysignf(INFINITY, value) : (float)result;
}

static void round_all(const struct rules *rules, float *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = rounded(rules, values[i]);
}

static const struct rules *when(bool condition, const struct rules *rules) { return condition ? rules : &levels[0]; }

/* One training's memory. */
struct state {
    const struct rules *rules, *norm_rules, *model_rules; /* of linear's tensors; of norm's parameters; of activations */
    float x[SAMPLES * INPUTS];
    int32_t labels[SAMPLES];
    float weights[PARAM_FLOATS], master[PARAM_FLOATS], grads[PARAM_FLOATS], part[PARAM_FLOATS], momentum[PARAM_FLOATS];
    float in[BATCH * INPUTS], y1[BATCH * HIDDEN], normed[BATCH * HIDDEN], active[BATCH * HIDDEN], low[BATCH * HIDDEN];
    float mean[HIDDEN], rstd[HIDDEN];
    float logits[BATCH * CLASSES], p[BATCH * CLASSES], dlogits[BATCH * CLASSES];
    float dactive[BATCH * HIDDEN], dnormed[BATCH * HIDDEN], dy1[BATCH * HIDDEN];
};

static float *at(float *block, int param) { return block + problem_params[param].offset; }

static float forward(struct state *s, const float *x, const int32_t *labels) {
    memcpy(s->in, x, sizeof s->in);
    round_all(s->rules, s->in, BATCH * INPUTS);
    math_linear(s->y1, s->in, at(s->weights, W1), at(s->weights, B1), BATCH, INPUTS, HIDDEN);
    round_all(s->rules, s->y1, BATCH * HIDDEN);
    math_batch_norm(s->normed, s->mean, s->rstd, s->y1, at(s->weights, GAMMA), at(s->weights, BETA), BATCH, HIDDEN);
    round_all(s->model_rules, s->normed, BATCH * HIDDEN);
    math_relu(s->active, s->normed, BATCH * HIDDEN);
    memcpy(s->low, s->active, sizeof s->low);
    round_all(s->rules, s->low, BATCH * HIDDEN);
    math_linear(s->logits, s->low, at(s->weights, W2), at(s->weights, B2), BATCH, HIDDEN, CLASSES);
    round_all(s->rules, s->logits, BATCH * CLASSES);
    return math_cross_entropy(s->p, s->logits, labels, BATCH, CLASSES);
}

static void backward(struct state *s, const int32_t *labels, float scale) {
    memset(s->part, 0, sizeof s->part);
    math_cross_entropy_backward(s->dlogits, s->p, labels, scale, BATCH, CLASSES);
    round_all(s->rules, s->dlogits, BATCH * CLASSES);
    math_linear_backward(s->dactive, at(s->part, W2), at(s->part, B2), s->dlogits, s->low, at(s->weights, W2), BATCH,
                         HIDDEN, CLASSES);
    round_all(s->rules, s->dactive, BATCH * HIDDEN);
    math_relu_backward(s->dnormed, s->dactive, s->active, BATCH * HIDDEN);
    math_batch_norm_backward(s->dy1, at(s->part, GAMMA), at(s->part, BETA), s->dnormed, s->y1, s->mean, s->rstd,
                             at(s->weights, GAMMA), BATCH, HIDDEN);
    round_all(s->rules, s->dy1, BATCH * HIDDEN);
    math_linear_backward(NULL, at(s->part, W1), at(s->part, B1), s->dy1, s->in, at(s->weights, W1), BATCH, INPUTS,
                         HIDDEN);
    for (int p = 0; p < N_PARAMS; p++)
        round_all(problem_params[p].batch_norm ? s->norm_rules : s->rules, at(s->part, p), problem_params[p].size);
    for (int i = 0; i < PARAM_FLOATS; i++) s->grads[i] = s->part[i] / scale;
}

/* What forward and backward use: at O1 each call's casts of the FP32 weights, else the model's own low weights. */
static void derive_weights(struct state *s) {
    memcpy(s->weights, s->master, sizeof s->weights);
    for (int p = 0; p < N_PARAMS; p++)
        round_all(problem_params[p].batch_norm ? s->norm_rules : s->rules, at(s->weights, p), problem_params[p].size);
}

/* The gradient is added to what is left of the older ones, and the sum is stored in 16 bits. */
static void sgd_in_gradients(struct state *s) {
    for (int i = 0; i < PARAM_FLOATS; i++) {
        s->momentum[i] = rounded(s->rules, MOMENTUM * s->momentum[i] + s->grads[i]);
        s->master[i] -= RATE * s->momentum[i];
    }
}

static void train(int level, float scale, bool momentum_in_gradients, struct curve *curve) {
    static struct state s;
    memset(&s, 0, sizeof s);
    const struct rules *rules = &levels[level];
    s.rules = rules;
    s.norm_rules = when(!rules->norm_is_fp32, rules);
    s.model_rules = when(rules->model_is_low, rules);
    problem_data(s.x, s.labels);
    problem_start(s.master);
    for (int step = 0; step < STEPS; step++) {
        const int batch = step % BATCHES;
        const int32_t *labels = s.labels + batch * BATCH;
        derive_weights(&s);
        if (rules->model_is_low && !rules->masters) memcpy(s.master, s.weights, sizeof s.master);
        curve->loss[step] = forward(&s, s.x + batch * BATCH * INPUTS, labels);
        backward(&s, labels, scale);
        if (momentum_in_gradients) sgd_in_gradients(&s);
        else math_sgd(s.master, s.momentum, s.grads, PARAM_FLOATS);
    }
    if (rules->model_is_low && !rules->masters) {
        derive_weights(&s);
        memcpy(s.master, s.weights, sizeof s.master);
    }
    memcpy(curve->params, s.master, sizeof curve->params);
}

void reference_train(int level, float scale, struct curve *curve) { train(level, scale, false, curve); }

void reference_train_momentum_in_gradients(int level, struct curve *curve) { train(level, 1.0f, true, curve); }
