/* SPDX-License-Identifier: Apache-2.0 */
/* What a level means and what may be overridden: apex.md 1.3 and 1.4, one test per cell. */
#include "../support/levels.h"
#include "checks.h"
#include "opt_levels/levels.h"

static struct amp__properties of_level(amp_level level) {
    struct amp__properties properties;
    const amp_config config = config_of(level);
    ck_ok(amp__properties_resolve(&config, &properties));
    return properties;
}

static const amp_level levels[] = { AMP_O0, AMP_O1, AMP_O2, AMP_O3, AMP_O4, AMP_O5 };
enum { N_LEVELS = 6 };

TEST_TIMES(cast_model_type, N_LEVELS) {
    static const amp_dtype expected[] = { AMP_FLOAT32, AMP_DTYPE_UNCHANGED, AMP_FLOAT16,
                                          AMP_FLOAT16, AMP_DTYPE_UNCHANGED, AMP_BFLOAT16 };
    ck_assert_int_eq(of_level(levels[_i]).cast_model_type, expected[_i]);
}

TEST_TIMES(patch_ops, N_LEVELS) {
    static const bool expected[] = { false, true, false, false, true, false };
    ck_assert_int_eq(of_level(levels[_i]).patch_ops, expected[_i]);
}

TEST_TIMES(keep_batchnorm_fp32, N_LEVELS) {
    static const bool expected[] = { false, false, true, false, false, true };
    ck_assert_int_eq(of_level(levels[_i]).keep_batchnorm_fp32, expected[_i]);
}

TEST_TIMES(master_weights, N_LEVELS) {
    static const bool expected[] = { false, false, true, false, false, true };
    ck_assert_int_eq(of_level(levels[_i]).master_weights, expected[_i]);
}

TEST_TIMES(scaling_is_dynamic, N_LEVELS) {
    static const bool expected[] = { false, true, true, false, false, false };
    ck_assert_int_eq(of_level(levels[_i]).scaler.dynamic, expected[_i]);
}

DIFFERENCE_TIMES(initial_scale, N_LEVELS) {
    static const float expected[] = { 1.0f, 65536.0f, 65536.0f, 1.0f, 1.0f, 1.0f };
    ck_assert_float_eq(of_level(levels[_i]).scaler.init_scale, expected[_i]);
}

TEST_TIMES(low_type, N_LEVELS) {
    static const amp_dtype expected[] = {
        AMP_FLOAT16, AMP_FLOAT16, AMP_FLOAT16, AMP_FLOAT16, AMP_BFLOAT16, AMP_BFLOAT16
    };
    if (levels[_i] != AMP_O0) ck_assert_int_eq(of_level(levels[_i]).low, expected[_i]);
    ck_assert_int_eq(of_level(levels[_i]).enabled, true);
}

DIFFERENCE(scaler_defaults) {
    const struct amp__scaler_settings s = of_level(AMP_O1).scaler;
    ck_assert_double_eq(s.growth, 2.0);
    ck_assert_double_eq(s.backoff, 0.5);
    ck_assert_float_eq(s.max_scale, 16777216.0f);
    ck_assert_float_eq(s.min_scale, 0x1p-126f);
    ck_assert_uint_eq(s.window, 2000);
    ck_assert_uint_eq(s.hysteresis, 1);
}

TEST(max_skips_is_100) { ck_assert_uint_eq(of_level(AMP_O2).max_skips, 100); }

TEST(init_scale_follows_a_small_ceiling) {
    struct amp__properties properties;
    amp_config config = config_of(AMP_O1);
    config.max_scale = 8.0f;
    ck_ok(amp__properties_resolve(&config, &properties));
    ck_assert_float_eq(properties.scaler.init_scale, 8.0f);
}

/* ---- overrides: apex.md 1.4 ---- */

/* levels: bit per AMP_Ox that accepts the override. */
#define L(n) (1u << AMP_O##n)
#define ALL (L(0) | L(1) | L(2) | L(3) | L(4) | L(5))
#define NOT_O1 (L(0) | L(2) | L(3) | L(5))
static const struct {
    const char *field;
    amp_dtype model_type;
    amp_switch patch, bn, masters;
    float scale;
    unsigned allowed;
} overrides[] = {
    { "cast_model_type", AMP_FLOAT32, 0, 0, 0, 0, ALL },
    { "cast_model_type", AMP_DTYPE_UNCHANGED, 0, 0, 0, 0, ALL },
    { "cast_model_type", AMP_FLOAT16, 0, 0, 0, 0, NOT_O1 },
    { "cast_model_type", AMP_BFLOAT16, 0, 0, 0, 0, NOT_O1 },
    { "patch_ops", 0, AMP_ON, 0, 0, 0, L(1) | L(4) },
    { "patch_ops", 0, AMP_OFF, 0, 0, 0, ALL },
    { "keep_batchnorm_fp32", 0, 0, AMP_ON, 0, 0, NOT_O1 },
    { "keep_batchnorm_fp32", 0, 0, AMP_OFF, 0, 0, NOT_O1 },
    { "master_weights", 0, 0, 0, AMP_ON, 0, NOT_O1 },
    { "master_weights", 0, 0, 0, AMP_OFF, 0, NOT_O1 },
    { "loss_scale", 0, 0, 0, 0, AMP_DYNAMIC, ALL },
    { "loss_scale", 0, 0, 0, 0, 128.0f, ALL },
};
enum { N_OVERRIDES = sizeof overrides / sizeof overrides[0] };

DIFFERENCE_TIMES(override_rules, N_OVERRIDES * N_LEVELS) {
    const size_t rule = (size_t)_i / N_LEVELS;
    const amp_level level = levels[_i % N_LEVELS];
    amp_config config = config_of(level);
    struct amp__properties properties;
    config.cast_model_type = overrides[rule].model_type;
    config.patch_ops = overrides[rule].patch;
    config.keep_batchnorm_fp32 = overrides[rule].bn;
    config.master_weights = overrides[rule].masters;
    config.loss_scale = overrides[rule].scale;
    if (overrides[rule].allowed & (1u << level)) {
        ck_ok(amp__properties_resolve(&config, &properties));
        return;
    }
    ck_fails(AMP_ERR_CONFLICT, amp__properties_resolve(&config, &properties));
    ck_says(overrides[rule].field);
    ck_says(amp__level_name(level));
}

TEST(an_override_replaces_the_default) {
    struct amp__properties properties;
    amp_config config = config_of(AMP_O2);
    config.keep_batchnorm_fp32 = AMP_OFF;
    config.master_weights = AMP_OFF;
    config.loss_scale = 128.0f;
    config.cast_model_type = AMP_BFLOAT16;
    ck_ok(amp__properties_resolve(&config, &properties));
    ck_assert(!properties.keep_batchnorm_fp32 && !properties.master_weights && !properties.scaler.dynamic);
    ck_assert_float_eq(properties.scaler.init_scale, 128.0f);
    ck_assert_int_eq(properties.cast_model_type, AMP_BFLOAT16);
}

TEST_TIMES(outputs_default_to_fp32_where_the_model_has_a_type, N_LEVELS) {
    static const amp_dtype expected[] = { AMP_FLOAT32, AMP_DTYPE_UNCHANGED, AMP_FLOAT32,
                                          AMP_FLOAT32, AMP_DTYPE_UNCHANGED, AMP_FLOAT32 };
    ck_assert_int_eq(of_level(levels[_i]).cast_model_outputs, expected[_i]);
}

/* ---- values that are wrong at every level ---- */

static const struct {
    const char *field;
    amp_config config;
} wrong[] = {
    { "enabled", { .enabled = 3 } },
    { "cache", { .cache = -1 } },
    { "lists", { .lists = 9 } },
    { "scaler", { .scaler = 9 } },
    { "cast_model_outputs", { .cast_model_outputs = 77 } },
    { "loss_scale", { .loss_scale = -2.0f } },
    { "loss_scale", { .loss_scale = __builtin_nanf("") } },
    { "loss_scale", { .loss_scale = __builtin_inff() } },
    { "init_scale", { .init_scale = -1.0f } },
    { "min_scale", { .min_scale = __builtin_inff() } },
    { "growth", { .growth = 1.0 } },
    { "growth", { .growth = 1e39 } },
    { "growth", { .growth = __builtin_nan("") } },
    { "the nearest float, which is 1", { .growth = 1.00000001, .scaler = AMP_SCALER_MEGATRON } },
    { "backoff", { .backoff = 1.0 } },
    { "backoff", { .backoff = -0.5 } },
    { "below 2^-149", { .backoff = 1e-46 } },
    { "the nearest float, which is 1", { .backoff = 0.99999999, .scaler = AMP_SCALER_JMP } },
    { "num_losses", { .num_losses = 1000000 } },
    { "min_scale", { .min_scale = 16.0f, .max_scale = 8.0f } },
    { "init_scale", { .loss_scale = AMP_DYNAMIC, .init_scale = 64.0f, .max_scale = 8.0f } },
};

DIFFERENCE_TIMES(a_wrong_value_is_named, sizeof wrong / sizeof wrong[0]) {
    struct amp__properties properties;
    amp_config config = wrong[_i].config;
    config.struct_size = sizeof config;
    config.level = AMP_O2;
    ck_assert_int_ne(amp__properties_resolve(&config, &properties), AMP_OK);
    ck_says(wrong[_i].field);
}

/* ---- names ---- */

TEST_TIMES(names, N_LEVELS) {
    static const char *const texts[] = { "O0", "O1", "O2", "O3", "O4", "O5" };
    amp_level level = 0;
    ck_ok(amp_level_from_name(texts[_i], &level));
    ck_assert_int_eq(level, levels[_i]);
}

TEST(a_zero_for_an_o_is_explained) {
    amp_level level = 77;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_level_from_name("02", &level));
    ck_says("letter O");
    ck_assert_int_eq(level, 77);
}

TEST_TIMES(unknown_names_are_refused, 6) {
    static const char *const texts[] = { "", "O9", "O", "o1", "O11", "fast" };
    amp_level level = 77;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_level_from_name(texts[_i], &level));
    ck_says("O1");
    ck_assert_int_eq(level, 77);
}

TEST_TIMES(levels_outside_the_table_are_refused, 4) {
    static const amp_level bad[] = { 0, -1, N_EACH_LEVEL + 1, 48 };
    struct amp__properties properties;
    const amp_config config = config_of(bad[_i]);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__properties_resolve(&config, &properties));
    ck_says("AMP_O1");
}

TEST(a_resolved_configuration_has_no_defaults_left) {
    amp_config config = config_of(AMP_O2), resolved = AMP_CONFIG_INIT;
    config.master_weights = AMP_OFF;
    ck_ok(amp_config_resolve(&config, &resolved));
    ck_assert_int_eq(resolved.level, AMP_O2);
    ck_assert_int_eq(resolved.cast_model_type, AMP_FLOAT16);
    ck_assert_int_eq(resolved.keep_batchnorm_fp32, AMP_ON);
    ck_assert_int_eq(resolved.master_weights, AMP_OFF);
    ck_assert_int_eq(resolved.patch_ops, AMP_OFF);
    ck_assert_float_eq(resolved.loss_scale, AMP_DYNAMIC);
    ck_assert_float_eq(resolved.init_scale, 65536.0f);
    ck_assert_uint_eq(resolved.window, 2000);
    ck_assert_uint_eq(resolved.num_losses, 1);
    amp_config again = AMP_CONFIG_INIT;
    ck_ok(amp_config_resolve(&resolved, &again)); /* and comes to itself */
    ck_assert_mem_eq(&again, &resolved, sizeof again);
    config.patch_ops = AMP_ON;
    ck_fails(AMP_ERR_CONFLICT, amp_config_resolve(&config, &resolved));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_config_resolve(&config, NULL));
}
