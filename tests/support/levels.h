/* SPDX-License-Identifier: Apache-2.0 */
/* The levels and what they do by default, from AMP_LEVEL_MAP: a test of every level is one of those to come too. What
 * the list itself must say is in tests/levels/test_properties.c. */
#ifndef TEST_LEVELS_H
#define TEST_LEVELS_H

#include "amp.h"
#include "amp_kernels.h"

#include <stdbool.h>

#define LEVEL_OF_LIST(level, ...) level,
#define EACH_LEVEL AMP_LEVEL_MAP(LEVEL_OF_LIST)
static const amp_level each_level[] = { EACH_LEVEL };
#define LEVEL_OF_COUNT(...) +1
enum { N_EACH_LEVEL = 0 AMP_LEVEL_MAP(LEVEL_OF_COUNT) }; /* from 1 to N_EACH_LEVEL */

/* One row of the list. */
struct level_row {
    amp_dtype low, model_type; /* its 16-bit type; AMP_DTYPE_UNCHANGED: does not touch the model */
    int casts_ops, keeps_batch_norm, has_masters;
    float loss_scale;
};

static inline struct level_row find_level_row(amp_level level) {
    static const struct level_row none = { 0, 0, 0, 0, 0, 0.0f }, rows[] = {
#define LEVEL_OF_ROW(level, value, text, ...) { __VA_ARGS__ },
        AMP_LEVEL_MAP(LEVEL_OF_ROW)
#undef LEVEL_OF_ROW
    };
    return level >= 1 && level <= N_EACH_LEVEL ? rows[level - 1] : none;
}

static inline bool level_casts_ops(amp_level level) { return find_level_row(level).casts_ops; }
static inline bool level_has_masters(amp_level level) { return find_level_row(level).has_masters; }
static inline bool level_is_dynamic(amp_level level) { return find_level_row(level).loss_scale == AMP_DYNAMIC; }

static inline bool level_retypes(amp_level level) {
    const amp_dtype type = find_level_row(level).model_type;
    return type == AMP_FLOAT16 || type == AMP_BFLOAT16;
}

/* 16-bit parameters and nothing wider behind them, as at O3. */
static inline bool level_loses_fp32(amp_level level) { return level_retypes(level) && !level_has_masters(level); }

/* The type that its ops or its model get: AMP_DTYPE_DEFAULT at O0, where there is none. */
static inline amp_dtype level_low(amp_level level) {
    return level_casts_ops(level) || level_retypes(level) ? find_level_row(level).low : (amp_dtype)AMP_DTYPE_DEFAULT;
}

/* What the level's 16-bit type keeps of it. */
static inline float level_through(amp_level level, float x) {
    return level_low(level) == AMP_BFLOAT16 ? amp_bfloat16_to_float(amp_float_to_bfloat16(x))
                                            : amp_half_to_float(amp_float_to_half(x));
}

/* The levels of a kind, for loops: TEST_TIMES(name, N_CASTING_LEVELS) { level_where(level_casts_ops, _i) ... }. */
#define LEVEL_OF_CASTING(level, value, text, low, model, casts, ...) +((casts) != 0)
#define LEVEL_OF_RETYPING(level, value, text, low, model, ...) +((model) == (low))
#define LEVEL_OF_MASTERS(level, value, text, low, model, casts, norm, masters, ...) +((masters) != 0)
#define LEVEL_OF_LOSING(level, value, text, low, model, casts, norm, masters, ...) +((model) == (low) && !(masters))
#define LEVEL_OF_LOW(level, value, text, low, model, casts, ...) +((casts) || (model) == (low))
enum {
    N_CASTING_LEVELS = 0 AMP_LEVEL_MAP(LEVEL_OF_CASTING),
    N_RETYPING_LEVELS = 0 AMP_LEVEL_MAP(LEVEL_OF_RETYPING),
    N_MASTER_LEVELS = 0 AMP_LEVEL_MAP(LEVEL_OF_MASTERS),
    N_FP32_LEVELS = N_EACH_LEVEL - (0 AMP_LEVEL_MAP(LEVEL_OF_LOSING)),
    N_LOW_LEVELS = 0 AMP_LEVEL_MAP(LEVEL_OF_LOW)
};

static inline bool level_has_fp32(amp_level level) { return !level_loses_fp32(level); }
static inline bool level_is_low(amp_level level) { return level_casts_ops(level) || level_retypes(level); }

/* The one of number `i` among those; 0: there are not so many. */
static inline amp_level level_where(bool (*holds)(amp_level), int i) {
    for (amp_level level = 1; level <= N_EACH_LEVEL; level++)
        if (holds(level) && i-- == 0) return level;
    return 0;
}

#endif
