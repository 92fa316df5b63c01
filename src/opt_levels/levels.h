/* SPDX-License-Identifier: Apache-2.0 */
/* The properties of a level as data, and its allowed overrides. */
#ifndef AMP_LEVELS_H
#define AMP_LEVELS_H

#include "scaler/scaler.h"

struct amp__properties {
    amp_level level;
    bool enabled;
    bool patch_ops;
    bool keep_batchnorm_fp32;
    bool master_weights;
    bool split_masters; /* kept as a bfloat16 parameter and a remainder of 16 bits */
    bool stochastic; /* no masters: bfloat16 parameters are rounded at random */
    bool own_masters; /* all masters are FP32 blocks of the host itself, without copies */
    bool cache;
    bool emulate; /* the host knows FP32 only: values are rounded through the low type and stay FP32 */
    amp_switch gate; /* as amp_config has it */
    amp_dtype low;                /* the level's 16-bit type */
    amp_dtype cast_model_type;    /* AMP_DTYPE_UNCHANGED: the model is not touched */
    amp_dtype cast_model_outputs; /* AMP_DTYPE_UNCHANGED: outputs as they come */
    int32_t lists;
    bool low_params; /* AMP_MODEL_LOW_PARAMS */
    uint32_t num_losses, max_skips;
    int32_t log;
    amp_switch verify, observe;
    const char *trace; /* borrowed: for amp_initialize alone */
    struct amp__scaler_settings scaler;
    float unused_init_scale; /* amp_config.init_scale where the loss scale is static (0: not set) */
};

/* A row of AMP_LEVEL_MAP: the defaults of a level. Code tests these properties, not the names of levels. */
struct amp__level {
    const char *name; /* "O1" */
    amp_dtype low, cast_model_type;
    bool patch_ops, keep_batchnorm_fp32, master_weights;
    float loss_scale;
};
enum { AMP__LEVELS = 0 AMP_LEVEL_MAP(AMP__ONE_MORE) }; /* from 1 on */

const struct amp__level *amp__level_row(amp_level level); /* NULL: there is none */
const char *amp__level_name(amp_level level);             /* "O1" */

static inline bool amp__level_retypes(const struct amp__level *row) { return amp__is_low(row->cast_model_type); }
static inline bool amp__level_is_low(const struct amp__level *row) { return row->patch_ops || amp__level_retypes(row); }
static inline bool amp__level_is_dynamic(const struct amp__level *row) { return row->loss_scale == AMP_DYNAMIC; }

/* Checks the configuration against the level's rules and fills in every default. */
/* enabled = OFF: nothing is cast, scaled or wrapped, whatever the level says. */
void amp__properties_make_inert(struct amp__properties *properties);
amp_status amp__properties_resolve(const amp_config *given, struct amp__properties *out);
/* And back: a configuration in which no member is left to a default. */
amp_status amp__properties_tell(const struct amp__properties *properties, amp_config *out);

/* Does the model get another type at this level? */
static inline bool amp__retypes(const struct amp__properties *properties) {
    return amp__is_low(properties->cast_model_type);
}

/* Can there be 16-bit parameters? */
static inline bool amp__may_be_low(const struct amp__properties *properties) {
    return amp__retypes(properties) || properties->low_params;
}

/* Is a 16-bit model played on FP32 storage? Then every op of the model is rounded, not only those that a list names. */
static inline bool amp__emulates_model(const struct amp__properties *properties) {
    return properties->emulate && amp__retypes(properties);
}

/* Returns true for a constant scale of 1 without separate masters and without a check: gradients are those of FP32
 * training, and a bracket has no work. */
static inline bool amp__scaling_is_trivial(const struct amp__properties *properties) {
    return !amp__scaler_skips(&properties->scaler) && (!properties->master_weights || properties->own_masters);
}

#endif
