/* SPDX-License-Identifier: Apache-2.0 */
#include "scaler/scaler.h"

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    *state = (struct amp__scaler){ .scale = settings->init_scale, .hysteresis_left = settings->hysteresis };
}

/* Clamping by comparison keeps the scale finite and above zero: an infinite product is above every ceiling. */
static float clamp(float scale, const struct amp__scaler_settings *settings) {
    if (scale > settings->max_scale) return settings->max_scale;
    if (scale < settings->min_scale) return settings->min_scale;
    return scale;
}

static amp_action apex_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    if (found_inf) {
        state->unskipped = 0;
        if (state->hysteresis_left > 1) state->hysteresis_left--;
        else state->scale = clamp(state->scale * settings->backoff, settings);
        return AMP_SKIP;
    }
    state->hysteresis_left = settings->hysteresis;
    if (++state->unskipped >= settings->window) {
        state->scale = clamp(state->scale * settings->growth, settings);
        state->unskipped = 0;
    }
    return AMP_STEP;
}

/* A static scale of 1 changes nothing about the gradients, so a skip could not help: it steps as FP32 training would.
 * Any other static scale may be what overflowed, so it skips (Apex steps on; on the list of differences). */
static amp_action static_update(struct amp__scaler *state, bool found_inf) {
    if (found_inf && state->scale != 1.0f) {
        state->unskipped = 0;
        return AMP_SKIP;
    }
    state->unskipped++;
    return AMP_STEP;
}

amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    const amp_action action =
        settings->dynamic ? apex_update(state, settings, found_inf) : static_update(state, found_inf);
    if (action == AMP_STEP) state->skips_in_row = 0;
    else if (state->skips_in_row < UINT32_MAX) state->skips_in_row++;
    return action;
}
