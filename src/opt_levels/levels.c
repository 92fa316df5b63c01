/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The property table of the levels and the rules for overriding it, as data. Sources: apex/amp/frontend.py for O0..O3;
 * ROCm's fork of Apex for O4 and O5.
 */
#include "amp_diagnostics.h"
#include "opt_levels/levels.h"

#include <stdio.h>
#include <string.h>

static const struct amp__level levels[] = {
#define ROW(constant, value, text, ...) [constant] = { &#constant[4], __VA_ARGS__ }, /* "O1" of AMP_O1 */
    AMP_LEVEL_MAP(ROW)
#undef ROW
};
enum { FIRST = 1, LAST = AMP__LEVELS };
_Static_assert(AMP_COUNT(levels) == LAST + 1, "the values of AMP_LEVEL_MAP are 1, 2, 3, ...");

#define NAME(constant, ...) " " #constant
#define NAMES AMP_LEVEL_MAP(NAME)

const struct amp__level *amp__level_row(amp_level level) {
    return level >= FIRST && level <= LAST ? &levels[level] : NULL;
}

const char *amp__level_name(amp_level level) {
    const struct amp__level *row = amp__level_row(level);
    return row ? row->name : "unknown level";
}

AMP_API amp_status amp_level_from_name(const char *name, amp_level *level) {
    AMP_RETURN_IF(!name || !level, AMP_ERR_INVALID_ARGUMENT, "amp_level_from_name: an argument is NULL");
    for (amp_level i = FIRST; i <= LAST; i++)
        if (!strcmp(name, levels[i].name)) {
            *level = i;
            return AMP_OK;
        }
    const bool zero = name[0] == '0';
    return amp__fail(AMP_ERR_INVALID_ARGUMENT, "opt level \"%.20s\" does not exist: use one of" NAMES " without AMP_%s",
                     name, zero ? "; they are written with the letter O, not the digit zero" : "");
}

/* ---- overrides ---- */

#define BIT(level) (1u << (level))
enum field { PATCH_OPS, KEEP_BATCHNORM_FP32, MASTER_WEIGHTS, CAST_MODEL_TYPE, N_FIELDS };

enum levels_of_rule { CASTING, OTHERS, ALL };

/* Allowed values at a level: a field may take only values with a bit in `allowed`. Values are small for all four
 * fields. */
static const struct rule {
    enum levels_of_rule levels; /* that cast ops, that do not, all */
    enum field field;
    unsigned allowed;
    const char *text;
} rules[] = {
    { CASTING, CAST_MODEL_TYPE, BIT(AMP_DTYPE_DEFAULT) | BIT(AMP_FLOAT32) | BIT(AMP_DTYPE_UNCHANGED),
      "cast_model_type may only be FLOAT32 or UNCHANGED: this level keeps the weights FP32 and casts around ops. For a "
      "16-bit model use a level that re-types it, as O2, O3 and O5 do" },
    { CASTING, KEEP_BATCHNORM_FP32, BIT(AMP_DEFAULT),
      "keep_batchnorm_fp32 cannot be set: this level never re-types batch norm. Leave it AMP_DEFAULT" },
    { CASTING, MASTER_WEIGHTS, BIT(AMP_DEFAULT),
      "master_weights cannot be set: this level's weights are FP32 themselves. Leave it AMP_DEFAULT" },
    { OTHERS, PATCH_OPS, BIT(AMP_DEFAULT) | BIT(AMP_OFF),
      "patch_ops cannot be ON: use a level that casts around ops, as O1 and O4 do" },
    { ALL, CAST_MODEL_TYPE,
      BIT(AMP_DTYPE_DEFAULT) | BIT(AMP_FLOAT32) | BIT(AMP_FLOAT16) | BIT(AMP_BFLOAT16) | BIT(AMP_DTYPE_UNCHANGED),
      "cast_model_type must be FLOAT32, FLOAT16, BFLOAT16 or UNCHANGED" },
};

static bool holds_for(const struct rule *rule, const struct amp__level *level) {
    return rule->levels == ALL || level->patch_ops == (rule->levels == CASTING);
}

static amp_status check_overrides(const amp_config *config) {
    const int32_t values[N_FIELDS] = {
        [PATCH_OPS] = config->patch_ops,
        [KEEP_BATCHNORM_FP32] = config->keep_batchnorm_fp32,
        [MASTER_WEIGHTS] = config->master_weights,
        [CAST_MODEL_TYPE] = config->cast_model_type,
    };
    const struct amp__level *level = &levels[config->level];
    for (size_t i = 0; i < AMP_COUNT(rules); i++) {
        const int32_t value = values[rules[i].field];
        const bool allowed = value >= 0 && value < 32 && (rules[i].allowed & BIT(value));
        AMP_RETURN_IF(holds_for(&rules[i], level) && !allowed, AMP_ERR_CONFLICT, "level %s: %s", level->name,
                      rules[i].text);
    }
    return AMP_OK;
}

static amp_status check_switches(const amp_config *config) {
    const struct {
        const char *name;
        int32_t value, max;
    } fields[] = {
        { "enabled", config->enabled, AMP_ON },
        { "patch_ops", config->patch_ops, AMP_ON },
        { "keep_batchnorm_fp32", config->keep_batchnorm_fp32, AMP_ON },
        { "master_weights", config->master_weights, AMP_STOCHASTIC },
        { "cache", config->cache, AMP_ON },
        { "lists", config->lists, AMP_LISTS_TORCH },
        { "scaler", config->scaler, AMP__SCALER_MODES },
        { "emulate", config->emulate, AMP_ON },
        { "consecutive_hysteresis", config->consecutive_hysteresis, AMP_ON },
        { "gate", config->gate, AMP_ON },
        { "check_finite", config->check_finite, AMP_ON },
        { "log", config->log, AMP_LOG_TRACE },
        { "verify", config->verify, AMP_ON },
        { "observe", config->observe, AMP_ON },
        { "cast_model_outputs", config->cast_model_outputs, AMP_FLOAT64 },
    };
    for (size_t i = 0; i < AMP_COUNT(fields); i++)
        AMP_RETURN_IF(fields[i].value < 0 || fields[i].value > fields[i].max, AMP_ERR_INVALID_ARGUMENT,
                      "amp_config.%s is %d; the largest value is %d", fields[i].name, (int)fields[i].value,
                      (int)fields[i].max);
    return AMP_OK;
}

/* ---- the scaler's settings ---- */

#define LARGEST 0x1.fffffep127f /* finite float */

static bool is_positive(double value) { return value > 0.0 && value <= (double)LARGEST; }

static float or_default(float value, float fallback) { return value != 0.0f ? value : fallback; }

static double factor(double value, double fallback, bool fp32) {
    if (value == 0.0) value = fallback;
    return fp32 ? (double)(float)value : value;
}

static amp_status check_factors(const amp_config *config, const struct amp__scaler_settings *s) {
    AMP_RETURN_IF(s->growth <= 1.0, AMP_ERR_INVALID_ARGUMENT,
                  "amp_config.growth is %.17g: a scale grows by a factor above 1%s", config->growth,
                  config->growth > 1.0 ? ", and this mode's is the nearest float, which is 1" : "");
    AMP_RETURN_IF(s->backoff >= 1.0, AMP_ERR_INVALID_ARGUMENT,
                  "amp_config.backoff is %.17g: a scale backs off by a factor below 1%s", config->backoff,
                  config->backoff < 1.0 ? ", and this mode's is the nearest float, which is 1" : "");
    AMP_RETURN_IF(config->backoff != 0.0 && config->backoff < 0x1p-149, AMP_ERR_INVALID_ARGUMENT,
                  "amp_config.backoff is %g, below 2^-149: no scale remains", config->backoff);
    return AMP_OK;
}

static amp_status check_scaler(const amp_config *config) {
    const float scale = config->loss_scale;
    AMP_RETURN_IF(scale != 0.0f && scale != AMP_DYNAMIC && !is_positive((double)scale), AMP_ERR_INVALID_ARGUMENT,
                  "amp_config.loss_scale is %g: use AMP_DYNAMIC, or a finite static scale above 0", (double)scale);
    const struct {
        const char *name;
        double value;
    } scales[] = { { "init_scale", (double)config->init_scale },
                   { "min_scale", (double)config->min_scale },
                   { "max_scale", (double)config->max_scale },
                   { "growth", config->growth },
                   { "backoff", config->backoff } };
    for (size_t i = 0; i < AMP_COUNT(scales); i++)
        AMP_RETURN_IF(scales[i].value != 0.0 && !is_positive(scales[i].value), AMP_ERR_INVALID_ARGUMENT,
                      "amp_config.%s is %g: it must be finite, in FP32 too, and above 0 (0: the default)",
                      scales[i].name, scales[i].value);
    const float least[] = { scale > 0.0f ? scale : 0.0f, config->init_scale, config->min_scale };
    for (size_t i = 0; i < AMP_COUNT(least); i++)
        AMP_RETURN_IF(least[i] != 0.0f && least[i] < 0x1p-126f, AMP_ERR_INVALID_ARGUMENT,
                      "amp_config.%s is %g, below 2^-126, where its inverse is not a finite float",
                      i == 0 ? "loss_scale" : i == 1 ? "init_scale" : "min_scale", (double)least[i]);
    return AMP_OK;
}

static amp_status resolve_scaler(const amp_config *config, float loss_scale, struct amp__scaler_settings *out) {
    AMP_TRY(check_scaler(config));
    const int32_t mode = config->scaler ? config->scaler : AMP_SCALER_APEX;
    const struct amp__scaler_mode *defaults = amp__scaler_mode(mode);
    struct amp__scaler_settings s = {
        .mode = mode,
        .dynamic = loss_scale == AMP_DYNAMIC,
        .min_scale = or_default(config->min_scale, defaults->min_scale),
        .max_scale = or_default(config->max_scale, defaults->max_scale),
        .growth = factor(config->growth, defaults->growth, defaults->fp32_factors),
        .backoff = factor(config->backoff, defaults->backoff, defaults->fp32_factors),
        .window = config->window ? config->window : defaults->window,
        .hysteresis = config->hysteresis ? config->hysteresis : defaults->hysteresis,
        .consecutive_hysteresis = config->consecutive_hysteresis ? config->consecutive_hysteresis == AMP_ON
                                                                 : defaults->consecutive_hysteresis,
    };
    AMP_TRY(check_factors(config, &s));
    AMP_RETURN_IF(s.min_scale > s.max_scale, AMP_ERR_CONFLICT, "amp_config: min_scale %g is above max_scale %g",
                  (double)s.min_scale, (double)s.max_scale);
    const float wanted = or_default(config->init_scale, defaults->init_scale);
    AMP_RETURN_IF(s.dynamic && config->init_scale != 0.0f && (wanted < s.min_scale || wanted > s.max_scale),
                  AMP_ERR_CONFLICT, "amp_config: init_scale %g is not between min_scale %g and max_scale %g",
                  (double)wanted, (double)s.min_scale, (double)s.max_scale);
    s.init_scale = wanted < s.max_scale ? wanted : s.max_scale;
    if (s.init_scale < s.min_scale) s.init_scale = s.min_scale;
    if (!s.dynamic) s.init_scale = loss_scale;
    s.check_finite = config->check_finite == AMP_ON;
    *out = s;
    return AMP_OK;
}

/* ---- resolve ---- */

void amp__properties_make_inert(struct amp__properties *p) {
    p->patch_ops = p->keep_batchnorm_fp32 = p->master_weights = p->split_masters = p->stochastic = false;
    p->cast_model_type = p->cast_model_outputs = AMP_DTYPE_UNCHANGED;
    p->scaler.dynamic = false;
    p->scaler.init_scale = 1.0f;
    p->scaler.check_finite = false;
}

static bool resolve_switch(amp_switch value, bool level_default) {
    return value == AMP_DEFAULT ? level_default : value == AMP_ON || value == AMP_SPLIT;
}

/* FP32 is a bfloat16 and 16 bits more: no other type is the upper half of it. */
static amp_status check_bfloat16(const struct amp__properties *p) {
    if (!p->split_masters && !p->stochastic) return AMP_OK;
    AMP_RETURN_IF(p->low != AMP_BFLOAT16 || (p->stochastic && p->cast_model_type != AMP_BFLOAT16), AMP_ERR_CONFLICT,
                  "level %s: master_weights is %s; here parameters are %s: use O5, or cast_model_type = AMP_BFLOAT16",
                  amp__level_name(p->level),
                  p->stochastic ? "AMP_STOCHASTIC, which rounds bfloat16 parameters at random"
                                : "AMP_SPLIT, which makes a master of a bfloat16 parameter and the 16 bits that it "
                                  "lacks",
                  amp__dtype_name(p->cast_model_type == AMP_DTYPE_UNCHANGED ? AMP_FLOAT32 : p->cast_model_type));
    AMP_RETURN_IF(p->emulate, AMP_ERR_CONFLICT, "level %s: master_weights is %s and emulate is ON, which keeps "
                  "parameters in FP32: leave one of them at its default", amp__level_name(p->level),
                  p->stochastic ? "AMP_STOCHASTIC" : "AMP_SPLIT");
    return AMP_OK;
}

amp_status amp__properties_resolve(const amp_config *given, struct amp__properties *out) {
    AMP_RETURN_IF(!given, AMP_ERR_INVALID_ARGUMENT, "config is NULL: start from AMP_CONFIG_INIT and set its level");
    amp_config config;
    AMP_TRY(amp__copy_struct(&config, sizeof config, sizeof(amp_config), given, given->struct_size, "amp_config"));
    if (config.enabled == AMP_OFF && !config.level) config.level = AMP_O0; /* no level is meant, and none is needed */
    AMP_RETURN_IF(config.level < FIRST || config.level > LAST, AMP_ERR_INVALID_ARGUMENT,
                  "opt level %d does not exist: use" NAMES
                  " (values 1 to %d), or amp_level_from_name with the letter O",
                  (int)config.level, LAST);
    AMP_TRY(check_switches(&config));
    AMP_TRY(check_overrides(&config));
    const struct amp__level *level = &levels[config.level];
    struct amp__properties p = {
        .level = config.level,
        .enabled = config.enabled != AMP_OFF,
        .patch_ops = resolve_switch(config.patch_ops, level->patch_ops),
        .keep_batchnorm_fp32 = resolve_switch(config.keep_batchnorm_fp32, level->keep_batchnorm_fp32),
        .master_weights = resolve_switch(config.master_weights, level->master_weights),
        .split_masters = config.master_weights == AMP_SPLIT,
        .stochastic = config.master_weights == AMP_STOCHASTIC,
        .cache = resolve_switch(config.cache, true),
        .emulate = config.emulate == AMP_ON,
        .gate = config.gate,
        .cast_model_type = config.cast_model_type ? config.cast_model_type : level->cast_model_type,
        .cast_model_outputs = config.cast_model_outputs,
        .lists = config.lists ? config.lists : AMP_LISTS_APEX,
        .num_losses = config.num_losses ? config.num_losses : 1,
        .max_skips = config.max_skips ? config.max_skips : 100,
        .log = config.log,
        .verify = config.verify,
        .observe = config.observe,
        .trace = config.trace,
    };
    p.low = amp__is_low(p.cast_model_type) ? p.cast_model_type : level->low;
    AMP_TRY(check_bfloat16(&p));
    if (!p.cast_model_outputs) /* Apex: a model that was given a type returns FP32 */
        p.cast_model_outputs = p.cast_model_type == AMP_DTYPE_UNCHANGED ? AMP_DTYPE_UNCHANGED : AMP_FLOAT32;
    AMP_RETURN_IF(p.num_losses > 65536, AMP_ERR_INVALID_ARGUMENT, "amp_config.num_losses is %u; 65536 is the limit",
                  (unsigned)p.num_losses);
    AMP_TRY(resolve_scaler(&config, config.loss_scale != 0.0f ? config.loss_scale : level->loss_scale, &p.scaler));
    const bool starts = p.scaler.dynamic || config.init_scale == p.scaler.init_scale; /* a resolved one has both */
    p.unused_init_scale = p.enabled && !starts ? config.init_scale : 0.0f;
    if (!p.enabled) amp__properties_make_inert(&p);
    *out = p;
    return AMP_OK;
}

static amp_switch as_switch(bool on) { return on ? AMP_ON : AMP_OFF; }

amp_status amp__properties_tell(const struct amp__properties *p, amp_config *out) {
    const amp_config filled = {
        .struct_size = sizeof filled, .level = p->level, .enabled = as_switch(p->enabled),
        .patch_ops = as_switch(p->patch_ops), .keep_batchnorm_fp32 = as_switch(p->keep_batchnorm_fp32),
        .master_weights = p->split_masters ? AMP_SPLIT : p->stochastic ? AMP_STOCHASTIC : as_switch(p->master_weights),
        .cache = as_switch(p->cache),
        .cast_model_type = p->cast_model_type, .cast_model_outputs = p->cast_model_outputs, .lists = p->lists,
        .scaler = p->scaler.mode, .num_losses = p->num_losses, .window = p->scaler.window,
        .hysteresis = p->scaler.hysteresis, .max_skips = p->max_skips,
        .loss_scale = p->scaler.dynamic ? AMP_DYNAMIC : p->scaler.init_scale, .init_scale = p->scaler.init_scale,
        .min_scale = p->scaler.min_scale, .max_scale = p->scaler.max_scale, .growth = p->scaler.growth,
        .backoff = p->scaler.backoff, .consecutive_hysteresis = as_switch(p->scaler.consecutive_hysteresis),
        .emulate = as_switch(p->emulate), .gate = p->gate,
        .check_finite = as_switch(p->scaler.check_finite), .log = p->log, .verify = p->verify, .observe = p->observe,
        .trace = p->trace,
    };
    return amp__fill_struct(out, out->struct_size, sizeof filled, &filled, sizeof filled, "amp_config");
}

AMP_API amp_status amp_config_resolve(const amp_config *config, amp_config *resolved) {
    struct amp__properties p;
    AMP_RETURN_IF(!resolved, AMP_ERR_INVALID_ARGUMENT, "amp_config_resolve: resolved is NULL");
    AMP_TRY(amp__check_struct(resolved->struct_size, sizeof *resolved, "amp_config"));
    AMP_TRY(amp__properties_resolve(config, &p));
    return amp__properties_tell(&p, resolved);
}
