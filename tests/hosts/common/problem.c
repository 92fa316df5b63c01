/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include <math.h>
#include <string.h>

const struct problem_param problem_params[N_PARAMS] = {
    [W1] = { "linear1.weight", 0, HIDDEN * INPUTS, false },
    [B1] = { "linear1.bias", HIDDEN * INPUTS, HIDDEN, false },
    [GAMMA] = { "norm.weight", HIDDEN * INPUTS + HIDDEN, HIDDEN, true },
    [BETA] = { "norm.bias", HIDDEN * INPUTS + 2 * HIDDEN, HIDDEN, true },
    [W2] = { "linear2.weight", HIDDEN * INPUTS + 3 * HIDDEN, CLASSES * HIDDEN, false },
    [B2] = { "linear2.bias", HIDDEN * INPUTS + 3 * HIDDEN + CLASSES * HIDDEN, CLASSES, false },
};

/* Uniform in [-1, 1): a linear congruential generator (Knuth's MMIX constants). */
static float uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 40) / 8388608.0f - 1.0f;
}

/* Four clusters that overlap a little. */
void problem_data(float *x, int32_t *labels) {
    uint64_t state = 20;
    float centre[CLASSES][INPUTS];
    for (int c = 0; c < CLASSES; c++)
        for (int k = 0; k < INPUTS; k++) centre[c][k] = uniform(&state);
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = (int32_t)((uniform(&state) + 1.0f) * 0.5f * CLASSES);
        for (int k = 0; k < INPUTS; k++) x[i * INPUTS + k] = centre[labels[i]][k] + 1.5f * uniform(&state);
    }
}

void problem_start(float *params) {
    uint64_t state = 3;
    for (int p = 0; p < N_PARAMS; p++) {
        const struct problem_param *param = &problem_params[p];
        const float bound = p == W1 ? 1.0f / sqrtf(INPUTS) : p == W2 ? 1.0f / sqrtf(HIDDEN) : 0.0f;
        for (size_t i = 0; i < param->size; i++)
            params[param->offset + i] = p == GAMMA ? 1.0f : bound * uniform(&state);
    }
}

double curve_distance(const struct curve *a, const struct curve *b) {
    double largest = 0.0;
    for (int i = 0; i < STEPS; i++) {
        const double distance = fabs((double)a->loss[i] - (double)b->loss[i]) / (double)a->loss[0];
        if (!(distance <= largest)) largest = distance; /* NaN counts as the largest there is */
    }
    return largest;
}
