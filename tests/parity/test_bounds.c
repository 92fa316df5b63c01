/* SPDX-License-Identifier: Apache-2.0 */
/* In every mode, whatever the settings, the scale is never 0, never infinite, and within its bounds. */
#include "replay.h"
#include "test.h"

#include <fenv.h>
#include <math.h>

enum { ROUNDS = 3000, STEPS = 400 };

static uint64_t random_state;

static uint64_t draw(uint64_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 24) % below;
}

static float power_of_two(int low, int high) {
    const double mantissa = draw(2) ? 1.0 : 1.0 + (double)draw(1 << 23) * 0x1p-23;
    return (float)ldexp(mantissa, low + (int)draw((uint64_t)(high - low + 1)));
}

/* Everything that check_scaler lets through, subnormal floors included, with a taste for the extremes. */
static struct amp__scaler_settings extreme_settings(int32_t mode) {
    const float extremes[] = { 0x1p-149f, 0x1p-126f, 1.0f, 0x1p24f, 0x1p127f, 0x1.fffffep127f };
    struct amp__scaler_settings s = { .mode = mode, .dynamic = true, .consecutive_hysteresis = draw(2) };
    s.min_scale = draw(2) ? extremes[draw(AMP_COUNT(extremes))] : power_of_two(-126, 127);
    s.max_scale = draw(2) ? extremes[draw(AMP_COUNT(extremes))] : power_of_two(-126, 127);
    if (s.max_scale < s.min_scale) s.max_scale = s.min_scale;
    s.init_scale = draw(2) ? s.max_scale : s.min_scale;
    s.growth = draw(2) ? 0x1.fffffep127 : 1.0 + (double)power_of_two(draw(2) ? -52 : -23, 10);
    s.backoff = draw(3) ? (double)power_of_two(-148, -1) / 2 : 0.0;
    if (s.backoff == 0.0 && draw(2)) s.backoff = draw(2) ? 0x1.fffffep-1 : 0x1.fffffffffffffp-1;
    s.window = draw(4) ? 1 + (uint32_t)draw(3) : UINT32_MAX;
    s.hysteresis = draw(4) ? 1 + (uint32_t)draw(3) : UINT32_MAX;
    return s;
}

/* Plain comparisons: Check's own macros write to a pipe each time. */
static void check_bounded(float scale, const struct amp__scaler_settings *s) {
    if (isfinite(scale) && scale > 0.0f && scale >= s->min_scale && scale <= s->max_scale) return;
    ck_abort_msg("mode %d: scale %a, floor %a, ceiling %a, growth %a, backoff %a", (int)s->mode, (double)scale,
                 (double)s->min_scale, (double)s->max_scale, s->growth, s->backoff);
}

TEST_RANGE(the_scale_stays_within_its_bounds, 1, AMP__SCALER_MODES + 1) {
    random_state = 0x9e3779b97f4a7c15u + (uint64_t)_i;
    for (int round = 0; round < ROUNDS; round++) {
        const struct amp__scaler_settings settings = extreme_settings(_i);
        const uint64_t overflows = draw(11); /* of ten steps */
        struct amp__scaler state;
        amp__scaler_init(&state, &settings);
        for (int step = 0; step < STEPS; step++) {
            const bool overflow = draw(10) < overflows;
            feclearexcept(FE_ALL_EXCEPT);
            const amp_action action = amp__scaler_update(&state, &settings, overflow);
            if (action != (overflow ? AMP_SKIP : AMP_STEP)) ck_abort_msg("mode %d: action %d", _i, (int)action);
            if (fetestexcept(FE_OVERFLOW | FE_DIVBYZERO | FE_INVALID)) ck_abort_msg("mode %d would trap", _i);
            check_bounded(state.scale, &settings);
            check_bounded(state.next_scale, &settings);
        }
    }
}

DIFFERENCE_TIMES(backing_off_stops_at_the_floor_and_is_never_zero, 2) {
    const amp_config config = { .min_scale = _i ? 4.0f : 0.0f };
    const struct amp__scaler_settings settings = settings_of(config, AMP_SCALER_APEX);
    struct amp__scaler state;
    amp__scaler_init(&state, &settings);
    for (int i = 0; i < 10000; i++) ck_assert_int_eq(amp__scaler_update(&state, &settings, true), AMP_SKIP);
    ck_assert_float_eq(state.scale, settings.min_scale);
    ck_assert_float_gt(state.scale, 0.0f);
    ck_assert_uint_eq(state.skips_in_row, 10000);
}

/* A static scale stays: one of 1 broke nothing, and steps on. */
TEST_TIMES(a_static_scale_never_changes, 2) {
    const float scale = _i ? 1.0f : 128.0f;
    struct amp__scaler_settings settings = settings_of((amp_config){ .window = 1 }, AMP_SCALER_APEX);
    struct amp__scaler state;
    settings.dynamic = false;
    settings.init_scale = scale;
    amp__scaler_init(&state, &settings);
    ck_assert_int_eq(amp__scaler_update(&state, &settings, false), AMP_STEP);
    ck_assert_int_eq(amp__scaler_update(&state, &settings, true), _i ? AMP_STEP : AMP_SKIP);
    ck_assert_float_eq(state.scale, scale);
}
