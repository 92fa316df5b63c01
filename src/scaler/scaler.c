/* SPDX-License-Identifier: Apache-2.0 */
#include "scaler/scaler.h"

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings) {
    *state = (struct amp__scaler){
        .scale = settings->init_scale,
        .next_scale = settings->init_scale,
        .hysteresis_left = settings->hysteresis,
    };
}

amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf) {
    return amp__rule_update(state, settings, found_inf);
}

void amp__scaler_for_device(struct amp__device_scaler *out, const struct amp__scaler *state, uint64_t brackets,
                            uint64_t skipped) {
    *out = (struct amp__device_scaler){
        .state = *state,
        .first = AMP__NO_TENSOR,
        .inverse = amp__rule_inverse(state->scale),
        .scale_before = state->scale,
        .first_nonfinite = AMP__NO_TENSOR,
        .brackets = brackets,
        .skipped = skipped,
    };
    out->waiting = out->inverse;
}
