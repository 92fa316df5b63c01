/* SPDX-License-Identifier: Apache-2.0 */
/* What a level means and what may be overridden: Apex's tables, one test per cell. */
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

static const struct {
    amp_dtype low, model_type, outputs;
    bool patch_ops, keep_batchnorm_fp32, master_weights, dynamic;
} meant[N_LEVELS] = {
    { 0, AMP_FLOAT32, AMP_FLOAT32, false, false, false, false }, /* O0 has no 16-bit type */
    { AMP_FLOAT16, AMP_DTYPE_UNCHANGED, AMP_DTYPE_UNCHANGED, true, false, false, true },
    { AMP_FLOAT16, AMP_FLOAT16, AMP_FLOAT32, false, true, true, true },
    { AMP_FLOAT16, AMP_FLOAT16, AMP_FLOAT32, false, false, false, false },
    { AMP_BFLOAT16, AMP_DTYPE_UNCHANGED, AMP_DTYPE_UNCHANGED, true, false, false, false },
    { AMP_BFLOAT16, AMP_BFLOAT16, AMP_FLOAT32, false, true, true, false },
};

/* Outputs are FP32 where the model has a type. */
TEST_TIMES(a_level_means_this, N_LEVELS) {
    const struct amp__properties properties = of_level(levels[_i]);
    if (meant[_i].low) ck_assert_int_eq(properties.low, meant[_i].low);
    ck_assert_int_eq(properties.enabled, true);
    ck_assert_int_eq(properties.cast_model_type, meant[_i].model_type);
    ck_assert_int_eq(properties.cast_model_outputs, meant[_i].outputs);
    ck_assert_int_eq(properties.patch_ops, meant[_i].patch_ops);
    ck_assert_int_eq(properties.keep_batchnorm_fp32, meant[_i].keep_batchnorm_fp32);
    ck_assert_int_eq(properties.master_weights, meant[_i].master_weights);
    ck_assert_int_eq(properties.scaler.dynamic, meant[_i].dynamic);
}

DIFFERENCE_TIMES(initial_scale, N_LEVELS) {
    ck_assert_float_eq(of_level(levels[_i]).scaler.init_scale, meant[_i].dynamic ? 65536.0f : 1.0f);
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
    const amp_config config = CONFIG(AMP_O1, .max_scale = 8.0f);
    ck_ok(amp__properties_resolve(&config, &properties));
    ck_assert_float_eq(properties.scaler.init_scale, 8.0f);
}

/* ---- overrides ---- */

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
    { "master_weights", 0, 0, 0, AMP_SPLIT, 0, L(5) },
    { "loss_scale", 0, 0, 0, 0, AMP_DYNAMIC, ALL },
    { "loss_scale", 0, 0, 0, 0, 128.0f, ALL },
};
enum { N_OVERRIDES = sizeof overrides / sizeof overrides[0] };

DIFFERENCE_TIMES(override_rules, N_OVERRIDES * N_LEVELS) {
    const size_t rule = (size_t)_i / N_LEVELS;
    const amp_level level = levels[_i % N_LEVELS];
    struct amp__properties properties;
    const amp_config config = CONFIG(level, .cast_model_type = overrides[rule].model_type,
                                     .patch_ops = overrides[rule].patch, .keep_batchnorm_fp32 = overrides[rule].bn,
                                     .master_weights = overrides[rule].masters, .loss_scale = overrides[rule].scale);
    if (overrides[rule].allowed & (1u << level)) {
        ck_ok(amp__properties_resolve(&config, &properties));
        return;
    }
    ck_refused(AMP_ERR_CONFLICT, overrides[rule].field, amp__properties_resolve(&config, &properties));
    ck_says(amp__level_name(level));
}

TEST(an_override_replaces_the_default) {
    struct amp__properties properties;
    const amp_config config = CONFIG(AMP_O2, .keep_batchnorm_fp32 = AMP_OFF, .master_weights = AMP_OFF,
                                     .loss_scale = 128.0f, .cast_model_type = AMP_BFLOAT16);
    ck_ok(amp__properties_resolve(&config, &properties));
    ck_assert(!properties.keep_batchnorm_fp32 && !properties.master_weights && !properties.scaler.dynamic);
    ck_assert_float_eq(properties.scaler.init_scale, 128.0f);
    ck_assert_int_eq(properties.cast_model_type, AMP_BFLOAT16);
}

TEST(what_is_split_is_bfloat16) {
    amp_config config = CONFIG(AMP_O2, .cast_model_type = AMP_BFLOAT16, .master_weights = AMP_SPLIT);
    amp_config resolved = AMP_CONFIG_INIT;
    ck_ok(amp_config_resolve(&config, &resolved));
    ck_assert_int_eq(resolved.master_weights, AMP_SPLIT);
    config = CONFIG(AMP_O5, .cast_model_type = AMP_FLOAT16, .master_weights = AMP_SPLIT);
    ck_refused(AMP_ERR_CONFLICT, "AMP_SPLIT", amp_config_resolve(&config, &resolved));
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

static const struct {
    const char *text;
    amp_level level; /* 0: there is none, and what is said instead */
    const char *says;
} names[] = {
    { "O0", AMP_O0, NULL }, { "O1", AMP_O1, NULL }, { "O2", AMP_O2, NULL }, { "O3", AMP_O3, NULL },
    { "O4", AMP_O4, NULL }, { "O5", AMP_O5, NULL }, { "02", 0, "letter O" }, { "", 0, "O1" }, { "O9", 0, "O1" },
    { "O", 0, "O1" },       { "o1", 0, "O1" },      { "O11", 0, "O1" },      { "fast", 0, "O1" },
};

TEST_TIMES(names_are_levels_or_refused, sizeof names / sizeof names[0]) {
    amp_level level = 77;
    const amp_status status = amp_level_from_name(names[_i].text, &level);
    ck_assert_int_eq(status, names[_i].says ? AMP_ERR_INVALID_ARGUMENT : AMP_OK);
    ck_assert_int_eq(level, names[_i].says ? 77 : names[_i].level);
    if (names[_i].says) ck_says(names[_i].says);
}

TEST_TIMES(levels_outside_the_table_are_refused, 4) {
    static const amp_level bad[] = { 0, -1, N_EACH_LEVEL + 1, 48 };
    struct amp__properties properties;
    const amp_config config = config_of(bad[_i]);
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "AMP_O1", amp__properties_resolve(&config, &properties));
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

TEST_TIMES(a_context_tells_its_configuration, 3) {
    const char *trace = "a name that is borrowed for initialize alone";
    amp_config config = config_of(_i == 1 ? AMP_O2 : AMP_O1), resolved = AMP_CONFIG_INIT, told = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    config.window = 3, config.growth = 4.0, config.num_losses = 7, config.scaler = AMP_SCALER_TORCH;
    if (_i == 2) config.enabled = AMP_OFF;
    ck_ok(amp_config_resolve(&config, &resolved));
    ck_ok(amp_initialize_many(NULL, 0, NULL, 0, &config, &context));
    told.trace = trace;
    ck_ok(amp_get_config(context, &told));
    ck_assert_mem_eq(&told, &resolved, sizeof told);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_config(context, NULL));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_get_config(NULL, &told));
    told.struct_size = 3;
    ck_fails(AMP_ERR_ABI_MISMATCH, amp_get_config(context, &told));
    ck_ok(amp_shutdown(context));
}
