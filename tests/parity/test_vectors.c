/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors worked by hand, and what the configuration refuses. */
#include "replay.h"
#include "test.h"
#include "vectors.h"

#include "opt_levels/levels.h"

#include <string.h>

static const struct vector *const vectors[] = {
#define OF_MODE(constant, value, text, name, ...) [constant] = vectors_##name,
    AMP_SCALER_MAP(OF_MODE)
#undef OF_MODE
};

static void check_vector(const struct vector *v, int32_t mode) {
    const struct amp__scaler_settings settings = settings_of(v->config, mode);
    const size_t n = strlen(v->ticks);
    ck_assert(n > 0 && n <= MAX_TICKS);
    struct amp__scaler state;
    amp__scaler_init(&state, &settings);
    uint32_t skips = 0;
    for (size_t i = 0; i < n; i++) {
        const bool overflow = v->ticks[i] == 'x';
        skips = overflow ? skips + 1 : 0;
        ck_assert_int_eq(amp__scaler_update(&state, &settings, overflow), overflow ? AMP_SKIP : AMP_STEP);
        ck_assert_uint_eq(state.skips_in_row, skips);
        ck_assert_msg(state.scale == v->scales[i], "mode %d, \"%s\", tick %zu of %s: %a, not %a", (int)mode, v->what,
                      i + 1, v->ticks, (double)state.scale, (double)v->scales[i]);
    }
}

TEST_RANGE(vectors_by_hand, 1, AMP__SCALER_MODES + 1) {
    for (int i = 0; i < VECTORS; i++) check_vector(&vectors[_i][i], _i);
}

TEST(the_default_mode_is_apex) {
    ck_assert_int_eq(settings_of((amp_config)AMP_CONFIG_INIT, AMP_SCALER_DEFAULT).mode, AMP_SCALER_APEX);
}

static void check_refused(amp_config config, amp_status status, const char *text) {
    struct amp__properties properties;
    config.struct_size = (uint32_t)sizeof config;
    config.level = AMP_O1;
    ck_assert_int_eq(amp__properties_resolve(&config, &properties), status);
    ck_assert_msg(strstr(amp_last_error(), text) != NULL, "\"%s\" is not in: %s", text, amp_last_error());
}

TEST(refusals) {
    check_refused((amp_config){ .scaler = AMP__SCALER_MODES + 1 }, AMP_ERR_INVALID_ARGUMENT, "scaler");
    check_refused((amp_config){ .scaler = -1 }, AMP_ERR_INVALID_ARGUMENT, "scaler");
    check_refused((amp_config){ .consecutive_hysteresis = 3 }, AMP_ERR_INVALID_ARGUMENT, "consecutive_hysteresis");
    check_refused((amp_config){ .scaler = AMP_SCALER_JMP, .init_scale = 0.5f }, AMP_ERR_CONFLICT, "min_scale");
    check_refused((amp_config){ .scaler = AMP_SCALER_MEGATRON, .max_scale = 0.5f }, AMP_ERR_CONFLICT, "max_scale");
}
