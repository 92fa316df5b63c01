/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of the loss scale in plain arithmetic: C compiles them for the host, nvcc for a device, with the same bits.
 * docs/guide/loss-scaling.md has the rule of each mode, its defaults and its source, tests/parity replays the
 * originals.
 *
 * Products and quotients are computed in double and rounded once more to the FP32 scale, as in PyTorch, with a float
 * scale and double factors. With float factors that is one rounding (a product is exact in double, and the 53 bits of a
 * quotient are more than 2 * 24 + 2). Nothing overflows or underflows, so nothing traps.
 */
#ifndef AMP_SCALER_RULES_H
#define AMP_SCALER_RULES_H

#include "amp.h"

#include <stdbool.h>

#ifdef __CUDACC__
#define AMP__RULE static __host__ __device__ __forceinline__
#else
#define AMP__RULE static inline
#endif

/* 0 < min_scale <= init_scale <= max_scale < infinity. growth > 1 and backoff < 1 are in the range of float, and floats
 * if the original multiplies in FP32. window and hysteresis are at least 1. */
struct amp__scaler_settings {
    int32_t mode; /* AMP_SCALER_MAP */
    bool dynamic;
    float init_scale; /* static: the scale */
    float min_scale, max_scale;
    double growth;
    double backoff; /* 0: back off by dividing by `growth`, as originals with one factor for both do */
    uint32_t window, hysteresis;
    bool consecutive_hysteresis; /* a clean bracket restores the hysteresis (false: only growth does) */
    bool check_finite; /* a static scale of 1 skips too */
};

/* All of it belongs in a checkpoint. */
struct amp__scaler {
    float scale; /* scale of the next bracket, in min_scale..max_scale while dynamic, never 0, never infinite */
    float next_scale; /* mxnet: decided by the last bracket, in effect after the next (others: equal to `scale`) */
    uint32_t unskipped;       /* clean brackets since overflow or growth (torch: _growth_tracker, jmp: counter) */
    uint32_t hysteresis_left; /* how many overflows until one backs off, that one included (1: the next does) */
    uint32_t skips_in_row;
    uint64_t clean_run; /* deepspeed: clean brackets since the last overflow, which growth does not reset (cur_iter -
                           last_overflow_iter of the original), others: 0 */
};

/* ---- the next scale ---- */

AMP__RULE float amp__rule_bounded(double scale, const struct amp__scaler_settings *settings) {
    if (scale > (double)settings->max_scale) return settings->max_scale;
    if (scale < (double)settings->min_scale) return settings->min_scale;
    return (float)scale;
}

AMP__RULE float amp__rule_grown(float scale, const struct amp__scaler_settings *settings) {
    return amp__rule_bounded((double)scale * settings->growth, settings);
}

AMP__RULE float amp__rule_backed_off(float scale, const struct amp__scaler_settings *settings) {
    const double by = settings->backoff != 0.0 ? (double)scale * settings->backoff
                                                : (double)scale / settings->growth;
    return amp__rule_bounded(by, settings);
}

/* torch and jmp: a scale that would round to infinity stays, below any max_scale. */
AMP__RULE float amp__rule_grown_if_finite(float scale, const struct amp__scaler_settings *settings) {
    /* halfway from the largest float to 2^128 */
    const double first_infinite = 340282356779733661637539395458142568448.0;
    return (double)scale * settings->growth < first_infinite ? amp__rule_grown(scale, settings) : scale;
}

/* ---- common parts of the modes ---- */

/* An overflow: is it one too many? */
AMP__RULE bool amp__rule_exceeds_hysteresis(struct amp__scaler *state) {
    state->unskipped = 0;
    if (state->hysteresis_left <= 1) return true;
    state->hysteresis_left--;
    return false;
}

AMP__RULE void amp__rule_count_clean(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    if (settings->consecutive_hysteresis) state->hysteresis_left = settings->hysteresis;
    if (state->unskipped < UINT32_MAX) state->unskipped++;
}

AMP__RULE void amp__rule_restart_window(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    state->hysteresis_left = settings->hysteresis;
    state->unskipped = 0;
}

/* Counts a clean bracket: does it complete the window? */
AMP__RULE bool amp__rule_completes_window(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    amp__rule_count_clean(state, settings);
    if (state->unskipped < settings->window) return false;
    amp__rule_restart_window(state, settings);
    return true;
}

/* ---- the modes ---- */

/* apex.amp.scaler LossScaler.update_scale and megatron.core.optimizer.grad_scaler DynamicGradScaler.update. One rule:
 * they differ in consecutive_hysteresis and in their defaults. */
AMP__RULE void amp__rule_apex(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    if (found_inf) {
        if (amp__rule_exceeds_hysteresis(state)) state->scale = amp__rule_backed_off(state->scale, settings);
    } else if (amp__rule_completes_window(state, settings)) {
        state->scale = amp__rule_grown(state->scale, settings);
    }
    state->next_scale = state->scale;
}

/* torch.amp.GradScaler (_amp_update_scale_) and jmp DynamicLossScale.adjust. */
AMP__RULE void amp__rule_torch(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    if (found_inf) {
        if (amp__rule_exceeds_hysteresis(state)) state->scale = amp__rule_backed_off(state->scale, settings);
    } else if (amp__rule_completes_window(state, settings)) {
        state->scale = amp__rule_grown_if_finite(state->scale, settings);
    }
    state->next_scale = state->scale;
}

/* deepspeed.runtime.fp16.loss_scaler DynamicLossScaler.update_scale. Windows are counted from the last overflow, and
 * the first clean bracket after it is not counted: growth comes after window + 1 of them, then every window. */
AMP__RULE void amp__rule_deepspeed(struct amp__scaler *state, const struct amp__scaler_settings *settings,
                                   bool found_inf) {
    if (found_inf) {
        state->clean_run = 0;
        if (amp__rule_exceeds_hysteresis(state)) state->scale = amp__rule_backed_off(state->scale, settings);
    } else {
        const uint64_t stable = state->clean_run++;
        amp__rule_count_clean(state, settings);
        if (stable && stable % settings->window == 0) {
            amp__rule_restart_window(state, settings);
            state->scale = amp__rule_grown(state->scale, settings);
        }
    }
    state->next_scale = state->scale;
}

/* mxnet.contrib.amp.loss_scaler LossScaler.has_overflow: first the scale that the bracket before decided comes into
 * effect, then the next one is derived from it, not from the scale that these gradients had. */
AMP__RULE void amp__rule_mxnet(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    state->scale = state->next_scale;
    if (found_inf) {
        if (amp__rule_exceeds_hysteresis(state)) state->next_scale = amp__rule_backed_off(state->scale, settings);
    } else if (amp__rule_completes_window(state, settings)) {
        state->next_scale = amp__rule_grown(state->scale, settings);
    }
}

AMP__RULE void amp__rule_dynamic(struct amp__scaler *state, const struct amp__scaler_settings *settings,
                                 bool found_inf) {
    switch (settings->mode) {
#define AMP__CASE(constant, value, text, name, rule, ...) \
    case constant: amp__rule_##rule(state, settings, found_inf); break;
        AMP_SCALER_MAP(AMP__CASE)
#undef AMP__CASE
    }
}

/* A static scale of 1 does not change gradients, so it steps as FP32 training would, unless check_finite is on. Any
 * other static scale may have caused the overflow, so it skips (Apex steps: see the list of differences). */
AMP__RULE amp_action amp__rule_static(struct amp__scaler *state, const struct amp__scaler_settings *settings,
                                      bool found_inf) {
    if (found_inf && (state->scale != 1.0f || settings->check_finite)) {
        state->unskipped = 0;
        return AMP_SKIP;
    }
    state->unskipped++;
    return AMP_STEP;
}

/* One closed bracket. */
AMP__RULE amp_action amp__rule_update(struct amp__scaler *state, const struct amp__scaler_settings *settings,
                                      bool found_inf) {
    amp_action action = found_inf ? AMP_SKIP : AMP_STEP;
    if (settings->dynamic) amp__rule_dynamic(state, settings, found_inf);
    else action = amp__rule_static(state, settings, found_inf);
    if (action == AMP_STEP) state->skips_in_row = 0;
    else if (state->skips_in_row < UINT32_MAX) state->skips_in_row++;
    return action;
}

/* Returns the factor for gradients of a bracket with this scale. */
AMP__RULE float amp__rule_inverse(float scale) { return (float)(1.0 / (double)scale); }

/* ---- a scaler that lives on a device ---- */

#define AMP__NO_TENSOR UINT32_MAX

/* A loss's, in the device's memory: kernels raise `found` and lower `first`, and the end of a bracket is one small
 * launch of amp__rule_end. So the host has no part in an iteration, and a graph that is replayed counts by itself. */
struct amp__device_scaler {
    struct amp__scaler state;
    /* exchanged by the ranks at the end of a bracket, by maximum, with `found`. Above 0: yes */
    float gave_up;       /* an error, or a cancel */
    float ended;         /* no cancel; yes, but for a cancel's moment */
    /* set by the kernels of the open bracket and of earlier ones with a delayed check. 0: all finite */
    float found;
    uint32_t first;      /* least number of a tensor that was not finite, with `found` (AMP__NO_TENSOR: none) */
    float inverse;       /* of the scale that the open bracket has, or the next one will */
    float left;          /* the same of the bracket that closed last: its gradients may be left to the step */
    float found_inf;     /* of that bracket */
    float scale_before;  /* the record of that bracket */
    int32_t action;      /* amp_action */
    int32_t given_up;    /* by some rank: nothing was counted, no scale moved */
    uint32_t first_nonfinite; /* at the last overflow */
    uint64_t brackets, skipped;
};

AMP__RULE void amp__rule_begin(struct amp__device_scaler *scaler) {
    scaler->found = 0.0f;
    scaler->gave_up = 0.0f;
    scaler->first = AMP__NO_TENSOR;
}

/* Another rank had an error or cancelled: the record stays. */
AMP__RULE amp_action amp__rule_give_up(struct amp__device_scaler *scaler) {
    scaler->found_inf = 1.0f;
    amp__rule_begin(scaler);
    return AMP_SKIP;
}

/* Returns the action again. */
AMP__RULE amp_action amp__rule_decided(const struct amp__device_scaler *scaler) {
    return scaler->given_up ? AMP_SKIP : scaler->action;
}

/* The end of a bracket. decides: false where its check is delayed. found_elsewhere: by the host, in memory of
 * its own. */
AMP__RULE amp_action amp__rule_end(struct amp__device_scaler *scaler, const struct amp__scaler_settings *settings,
                                   bool decides, bool found_elsewhere) {
    const bool found = scaler->found != 0.0f || found_elsewhere; /* a NaN is not 0 */
    scaler->found_inf = found ? 1.0f : 0.0f;
    scaler->left = scaler->inverse;
    if (!decides) {
        scaler->found = scaler->found_inf;
        return AMP_STEP;
    }
    scaler->given_up = scaler->gave_up != 0.0f;
    if (scaler->given_up) return amp__rule_give_up(scaler);
    scaler->scale_before = scaler->state.scale;
    scaler->action = amp__rule_update(&scaler->state, settings, found);
    scaler->inverse = amp__rule_inverse(scaler->state.scale);
    scaler->brackets++;
    scaler->skipped += scaler->action == AMP_SKIP;
    if (found) scaler->first_nonfinite = scaler->first;
    amp__rule_begin(scaler);
    return scaler->action;
}

#endif
