/* SPDX-License-Identifier: Apache-2.0 */
#include "scaler/scaler.h"

static const struct amp__scaler_mode modes[] = {
#define ROW(constant, value, text, name, rule, ...) [constant] = { #name, __VA_ARGS__ },
    AMP_SCALER_MAP(ROW)
#undef ROW
};
_Static_assert(AMP_COUNT(modes) == AMP__SCALER_MODES + 1, "the values of AMP_SCALER_MAP are 1, 2, 3, ...");

const struct amp__scaler_mode *amp__scaler_mode(int32_t mode) { return &modes[mode]; }

const char *amp__scaler_name(int32_t mode) { return modes[mode].name; }

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
        .ended = 1.0f,
        .first = AMP__NO_TENSOR,
        .inverse = amp__rule_inverse(state->scale),
        .scale_before = state->scale,
        .first_nonfinite = AMP__NO_TENSOR,
        .brackets = brackets,
        .skipped = skipped,
    };
    out->left = out->inverse;
}
