/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine against apex.md 3.2, transcribed here in double, over long random traces. */
#include "checks.h"
#include "opt_levels/levels.h"

#include <math.h>

/* Apex's defaults: 2^16, doubled after 2000, halved, at most 2^24. */
static struct amp__scaler_settings settings(void) {
    struct amp__properties properties;
    const amp_config config = config_of(AMP_O1);
    ck_ok(amp__properties_resolve(&config, &properties));
    return properties.scaler;
}

/* ---- apex.md 3.2 ---- */

struct apex {
    double scale, floor, ceiling;
    uint32_t unskipped, window;
};

static bool apex_update(struct apex *a, bool overflow) {
    bool skip = false;
    if (overflow) {
        a->scale = fmax(a->floor, a->scale / 2.0);
        a->unskipped = 0;
        skip = true;
    } else {
        a->unskipped++;
    }
    if (a->unskipped == a->window) {
        a->scale = fmin(a->ceiling, a->scale * 2.0);
        a->unskipped = 0;
    }
    return skip;
}

static uint64_t next(uint64_t *state) { /* xorshift64 */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static const struct {
    uint32_t window;
    unsigned one_in; /* overflows */
} traces[] = { { 1, 2 }, { 1, 4 }, { 2, 3 }, { 5, 6 }, { 20, 25 }, { 2000, 3000 }, { 3, 2 } };

TEST_TIMES(every_tick_is_apexs, sizeof traces / sizeof traces[0]) {
    enum { STEPS = 100000 };
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    uint64_t random = 0x9e3779b97f4a7c15u + (uint64_t)_i;
    s.window = traces[_i].window;
    struct apex apex = { 65536.0, (double)s.min_scale, (double)s.max_scale, 0, s.window };
    amp__scaler_init(&state, &s);
    for (int i = 0; i < STEPS; i++) {
        const bool overflow = next(&random) % traces[_i].one_in == 0;
        const bool skip = apex_update(&apex, overflow);
        const amp_action action = amp__scaler_update(&state, &s, overflow);
        ck_assert_msg((action == AMP_SKIP) == skip && (double)state.scale == apex.scale &&
                          state.unskipped == apex.unskipped,
                      "seed %d, step %d: scale %g, expected %g", _i, i, (double)state.scale, apex.scale);
    }
}

TEST_TIMES(growth_stops_at_the_ceiling_and_is_never_infinite, 2) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    s.window = 1;
    s.max_scale = _i ? 3.402823466e38f : 0x1p24f;
    amp__scaler_init(&state, &s);
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(amp__scaler_update(&state, &s, false), AMP_STEP);
    ck_assert_float_eq(state.scale, s.max_scale);
}

DIFFERENCE_TIMES(backing_off_stops_at_the_floor_and_is_never_zero, 2) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    if (_i) s.min_scale = 4.0f;
    amp__scaler_init(&state, &s);
    for (int i = 0; i < 10000; i++) ck_assert_int_eq(amp__scaler_update(&state, &s, true), AMP_SKIP);
    ck_assert_float_eq(state.scale, s.min_scale);
    ck_assert_float_gt(state.scale, 0.0f);
    ck_assert_uint_eq(state.skips_in_row, 10000);
}

TEST(other_factors) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    s.growth = 1.5;
    s.backoff = 0.25;
    s.window = 2;
    amp__scaler_init(&state, &s);
    (void)amp__scaler_update(&state, &s, true);
    ck_assert_float_eq(state.scale, 16384.0f);
    (void)amp__scaler_update(&state, &s, false);
    (void)amp__scaler_update(&state, &s, false);
    ck_assert_float_eq(state.scale, 24576.0f);
}

TEST(hysteresis_tolerates_overflows_in_a_row) { /* apex.md 6.4 */
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    s.hysteresis = 3;
    amp__scaler_init(&state, &s);
    const float expected[] = { 65536.0f, 65536.0f, 32768.0f, 16384.0f };
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(amp__scaler_update(&state, &s, true), AMP_SKIP);
        ck_assert_float_eq(state.scale, expected[i]);
    }
    ck_assert_int_eq(amp__scaler_update(&state, &s, false), AMP_STEP); /* one clean bracket restores the budget */
    (void)amp__scaler_update(&state, &s, true);
    ck_assert_float_eq(state.scale, 16384.0f);
}

TEST(a_clean_bracket_ends_the_row_of_skips) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    amp__scaler_init(&state, &s);
    (void)amp__scaler_update(&state, &s, true);
    (void)amp__scaler_update(&state, &s, true);
    ck_assert_uint_eq(state.skips_in_row, 2);
    (void)amp__scaler_update(&state, &s, false);
    ck_assert_uint_eq(state.skips_in_row, 0);
}

TEST(a_static_scale_never_changes) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    s.dynamic = false;
    s.init_scale = 128.0f;
    s.window = 1;
    amp__scaler_init(&state, &s);
    ck_assert_int_eq(amp__scaler_update(&state, &s, false), AMP_STEP);
    ck_assert_int_eq(amp__scaler_update(&state, &s, true), AMP_SKIP); /* design.md 6: it skips if it is not 1 */
    ck_assert_float_eq(state.scale, 128.0f);
}

TEST(a_static_scale_of_one_steps_on) {
    struct amp__scaler_settings s = settings();
    struct amp__scaler state;
    s.dynamic = false;
    s.init_scale = 1.0f;
    amp__scaler_init(&state, &s);
    ck_assert_int_eq(amp__scaler_update(&state, &s, true), AMP_STEP);
}
