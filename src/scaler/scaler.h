/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss-scale state machine, pure: (settings, state, found_inf) -> (state, action). No tensors, no host, no
 * allocation, so that it can be replayed against recorded traces and, later, run on a device word for word.
 */
#ifndef AMP_SCALER_H
#define AMP_SCALER_H

#include "common/common.h"

struct amp__scaler_settings {
    int32_t mode; /* AMP_SCALER_* */
    bool dynamic;
    float init_scale; /* static: the scale */
    float min_scale, max_scale;
    float growth, backoff;
    uint32_t window, hysteresis;
};

struct amp__scaler {
    float scale;
    uint32_t unskipped;       /* clean brackets since the scale last changed */
    uint32_t hysteresis_left; /* overflows still tolerated */
    uint32_t skips_in_row;
};

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings);

/* One closed bracket. Source: apex.amp.scaler update_scale; hysteresis as apex's update_scale_hysteresis. */
amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf);

#endif
