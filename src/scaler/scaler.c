/* SPDX-License-Identifier: Apache-2.0 */
#include "scaler/scaler.h"

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    *state = (struct amp__scaler){
        .scale = settings->init_scale,
        .next_scale = settings->init_scale,
        .hysteresis_left = settings->hysteresis,
    };
}

/* ---- the next scale ----
 * Products and quotients are formed in double: two floats' product is exact there and neither overflows nor underflows,
 * so nothing is rounded twice (a float quotient is not either: 53 bits are more than 2 * 24 + 2) and nothing traps. */

static float bounded(double scale, const struct amp__scaler_settings *settings) {
    if (scale > (double)settings->max_scale) return settings->max_scale;
    if (scale < (double)settings->min_scale) return settings->min_scale;
    return (float)scale;
}

static float grown(float scale, const struct amp__scaler_settings *settings) {
    return bounded((double)scale * (double)settings->growth, settings);
}

static float backed_off(float scale, const struct amp__scaler_settings *settings) {
    const double by = settings->backoff != 0.0f ? (double)scale * (double)settings->backoff
                                                : (double)scale / (double)settings->growth;
    return bounded(by, settings);
}

/* torch and jmp: a scale that would round to infinity stays what it is, below whatever ceiling. */
static float grown_if_finite(float scale, const struct amp__scaler_settings *settings) {
    const double first_infinite = 0x1.ffffffp127; /* halfway from the largest float to 2^128, ties to even */
    return (double)scale * (double)settings->growth < first_infinite ? grown(scale, settings) : scale;
}

/* ---- what the modes share ---- */

/* An overflow: is it one too many? */
static bool exceeds_hysteresis(struct amp__scaler *state) {
    state->unskipped = 0;
    if (state->hysteresis_left <= 1) return true;
    state->hysteresis_left--;
    return false;
}

static void count_clean(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    if (settings->consecutive_hysteresis) state->hysteresis_left = settings->hysteresis;
    if (state->unskipped < UINT32_MAX) state->unskipped++;
}

static void restart_window(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    state->hysteresis_left = settings->hysteresis;
    state->unskipped = 0;
}

/* Counts a clean bracket: does it complete the window? */
static bool completes_window(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    count_clean(state, settings);
    if (state->unskipped < settings->window) return false;
    restart_window(state, settings);
    return true;
}

/* ---- the modes ---- */

typedef void update_fn(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf);

/* apex.amp.scaler LossScaler.update_scale; megatron.core.optimizer.grad_scaler DynamicGradScaler.update. One rule: they
 * differ in consecutive_hysteresis and in their defaults. */
static void update_apex_megatron(struct amp__scaler *state, const struct amp__scaler_settings *settings,
                                 bool found_inf) {
    if (found_inf) {
        if (exceeds_hysteresis(state)) state->scale = backed_off(state->scale, settings);
    } else if (completes_window(state, settings)) {
        state->scale = grown(state->scale, settings);
    }
    state->next_scale = state->scale;
}

/* torch.amp.GradScaler (_amp_update_scale_); jmp DynamicLossScale.adjust. */
static void update_torch_jmp(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    if (found_inf) {
        if (exceeds_hysteresis(state)) state->scale = backed_off(state->scale, settings);
    } else if (completes_window(state, settings)) {
        state->scale = grown_if_finite(state->scale, settings);
    }
    state->next_scale = state->scale;
}

/* deepspeed.runtime.fp16.loss_scaler DynamicLossScaler.update_scale. Windows are counted from the last overflow, and
 * the first clean bracket after it is not counted: growth comes after window + 1 of them, then every window. */
static void update_deepspeed(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    if (found_inf) {
        state->clean_run = 0;
        if (exceeds_hysteresis(state)) state->scale = backed_off(state->scale, settings);
    } else {
        const uint64_t stable = state->clean_run++;
        count_clean(state, settings);
        if (stable && stable % settings->window == 0) {
            restart_window(state, settings);
            state->scale = grown(state->scale, settings);
        }
    }
    state->next_scale = state->scale;
}

/* mxnet.contrib.amp.loss_scaler LossScaler.has_overflow: first the scale that the bracket before decided comes into
 * effect, then the next one is derived from it, not from the scale that these gradients had. */
static void update_mxnet(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    state->scale = state->next_scale;
    if (found_inf) {
        if (exceeds_hysteresis(state)) state->next_scale = backed_off(state->scale, settings);
    } else if (completes_window(state, settings)) {
        state->next_scale = grown(state->scale, settings);
    }
}

static update_fn *const modes[] = {
    [AMP_SCALER_APEX] = update_apex_megatron,
    [AMP_SCALER_TORCH] = update_torch_jmp,
    [AMP_SCALER_MEGATRON] = update_apex_megatron,
    [AMP_SCALER_DEEPSPEED] = update_deepspeed,
    [AMP_SCALER_JMP] = update_torch_jmp,
    [AMP_SCALER_MXNET] = update_mxnet,
};

/* A static scale of 1 changes nothing about the gradients, so a skip could not help: it steps as FP32 training would.
 * Any other static scale may be what overflowed, so it skips (Apex steps on; on the list of differences). */
static amp_action update_static(struct amp__scaler *state, bool found_inf) {
    if (found_inf && state->scale != 1.0f) {
        state->unskipped = 0;
        return AMP_SKIP;
    }
    state->unskipped++;
    return AMP_STEP;
}

amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    amp_action action = found_inf ? AMP_SKIP : AMP_STEP;
    if (settings->dynamic) modes[settings->mode](state, settings, found_inf);
    else action = update_static(state, found_inf);
    if (action == AMP_STEP) state->skips_in_row = 0;
    else if (state->skips_in_row < UINT32_MAX) state->skips_in_row++;
    return action;
}
