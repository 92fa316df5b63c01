/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss-scale state machine, pure: (settings, state, found_inf) -> (state, action). No tensors, no host, no
 * allocation, so that it can be replayed against recorded traces. rules.h has the rules, for devices too.
 */
#ifndef AMP_SCALER_ROOM_H
#define AMP_SCALER_ROOM_H

#include "common/common.h"
#include "scaler/rules.h"

/* An entry of AMP_SCALER_MAP. */
struct amp__scaler_mode {
    const char *name;
    float init_scale, min_scale, max_scale;
    double growth, backoff;
    uint32_t window, hysteresis;
    bool consecutive_hysteresis;
    bool fp32_factors; /* the original multiplies an FP32 scale in FP32, so that a factor is rounded first */
};

enum { AMP__SCALER_MODES = 0 AMP_SCALER_MAP(AMP__ONE_MORE) };

const struct amp__scaler_mode *amp__scaler_mode(int32_t mode); /* 1 .. AMP__SCALER_MODES */
const char *amp__scaler_name(int32_t mode);                    /* "apex" */

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings);

/* Do gradients carry a scale? */
static inline bool amp__scales(const struct amp__scaler_settings *settings) {
    return settings->dynamic || settings->init_scale != 1.0f;
}

/* Returns true if an overflow causes a skip. A static scale of 1 cannot have caused the overflow, but check_finite may
 * be on. */
static inline bool amp__scaler_skips(const struct amp__scaler_settings *settings) {
    return amp__scales(settings) || settings->check_finite;
}

/* One closed bracket. */
amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf);

/* A device's scaler that goes on from here; `brackets` closed so far, `skipped` of them. */
void amp__scaler_for_device(struct amp__device_scaler *out, const struct amp__scaler *state, uint64_t brackets,
                            uint64_t skipped);

#endif
