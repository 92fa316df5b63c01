/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss-scale state machine, pure: (settings, state, found_inf) -> (state, action). No tensors, no host, no
 * allocation, so that it can be replayed against recorded traces and, later, run on a device word for word.
 * docs/scaler.md has each mode's rule, its defaults and its source; tests/parity replays the originals.
 */
#ifndef AMP_SCALER_H
#define AMP_SCALER_H

#include "common/common.h"

/* 0 < min_scale <= init_scale <= max_scale < infinity; growth > 1, backoff < 1; window and hysteresis at least 1. */
struct amp__scaler_settings {
    int32_t mode; /* AMP_SCALER_APEX .. AMP_SCALER_MXNET */
    bool dynamic;
    float init_scale; /* static: the scale */
    float min_scale, max_scale;
    float growth;
    float backoff; /* 0: back off by dividing by `growth`, as originals with one factor for both do */
    uint32_t window, hysteresis;
    bool consecutive_hysteresis; /* a clean bracket restores the hysteresis; else only growth does */
};

/* All of it belongs in a checkpoint. */
struct amp__scaler {
    float scale;              /* the next bracket's; min_scale..max_scale while dynamic, never 0, never infinite */
    float next_scale;         /* mxnet: decided by the last bracket, in effect after the next; else equal to `scale` */
    uint32_t unskipped;       /* clean brackets since overflow or growth (torch: _growth_tracker, jmp: counter) */
    uint32_t hysteresis_left; /* how many overflows until one backs off, that one included; 1: the next does */
    uint32_t skips_in_row;
    uint64_t clean_run; /* deepspeed: clean brackets since the last overflow, which growth does not reset
                           (cur_iter - last_overflow_iter of the original); else 0 */
};

void amp__scaler_init(struct amp__scaler *state, const struct amp__scaler_settings *settings);

/* Is an overflow a reason to skip? A static scale of 1 cannot have caused it. */
static inline bool amp__scaler_skips(const struct amp__scaler_settings *settings) {
    return settings->dynamic || settings->init_scale != 1.0f;
}

/* One closed bracket. */
amp_action amp__scaler_update(struct amp__scaler *state, const struct amp__scaler_settings *settings, bool found_inf);

#endif
