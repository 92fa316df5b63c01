/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include "opt_levels/levels.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct overflows overflows_of(const struct run *run) {
    return (struct overflows){ .x = run->seed, .enter = run->enter, .stay = run->stay };
}

bool next_overflow(struct overflows *overflows) {
    overflows->x = overflows->x * 6364136223846793005u + 1442695040888963407u;
    overflows->last = (overflows->x >> 33) % 1000 < (overflows->last ? overflows->stay : overflows->enter);
    return overflows->last;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t number(char **at, int base) {
    char *end;
    const unsigned long long value = strtoull(*at, &end, base);
    ck_assert_msg(end != *at, "a number is missing before: %.40s", *at);
    *at = end;
    return value;
}

static float float_of(char **at) {
    const uint32_t bits = (uint32_t)number(at, 16);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double double_of(char **at) {
    const uint64_t bits = number(at, 16);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void parse_run(char *at, struct run *run) {
    run->seed = number(&at, 10);
    run->enter = (unsigned)number(&at, 10);
    run->stay = (unsigned)number(&at, 10);
    run->steps = (unsigned)number(&at, 10);
    run->config = (amp_config)AMP_CONFIG_INIT;
    run->config.init_scale = float_of(&at);
    run->config.min_scale = float_of(&at);
    run->config.max_scale = float_of(&at);
    run->config.growth = double_of(&at);
    run->config.backoff = double_of(&at);
    run->config.window = (uint32_t)number(&at, 10);
    run->config.hysteresis = (uint32_t)number(&at, 10);
    run->config.consecutive_hysteresis = (amp_switch)number(&at, 10);
    run->checksum = number(&at, 16);
    run->n_samples = run->steps / SAMPLE_EVERY;
    ck_assert_uint_le(run->n_samples, MAX_SAMPLES);
    for (unsigned i = 0; i < run->n_samples; i++) run->samples[i] = (uint32_t)number(&at, 16);
    ck_assert_str_eq(at, "\n");
}

/* What the mode has where nothing is set. */
static void check_defaults(char *at, int32_t mode) {
    const struct amp__scaler_settings s = settings_of((amp_config)AMP_CONFIG_INIT, mode);
    ck_assert_int_eq(s.mode, mode);
    ck_assert_float_eq(s.init_scale, float_of(&at));
    ck_assert_float_eq(s.min_scale, float_of(&at));
    ck_assert_float_eq(s.max_scale, float_of(&at));
    ck_assert_double_eq(s.growth, double_of(&at));
    ck_assert_double_eq(s.backoff, double_of(&at));
    ck_assert_uint_eq(s.window, number(&at, 10));
    ck_assert_uint_eq(s.hysteresis, number(&at, 10));
    ck_assert_uint_eq(s.consecutive_hysteresis, number(&at, 10));
    ck_assert_str_eq(at, "\n");
}

bool read_run(FILE *file, int32_t *mode, struct run *run) {
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *at = line;
        if (!strncmp(line, "mode ", 5)) {
            at += 5;
            *mode = (int32_t)number(&at, 10);
        } else if (!strncmp(line, "defaults ", 9)) {
            check_defaults(line + 9, *mode);
        } else if (!strncmp(line, "run ", 4)) {
            parse_run(line + 4, run);
            run->mode = *mode;
            return true;
        } else {
            ck_assert_msg(line[0] == '#', "not a line of a trace: %.40s", line);
        }
    }
    return false;
}

struct amp__scaler_settings settings_of(amp_config config, int32_t mode) {
    struct amp__properties properties;
    config.struct_size = (uint32_t)sizeof config;
    config.level = AMP_O1;
    config.loss_scale = AMP_DYNAMIC;
    config.scaler = mode;
    ck_assert_msg(amp__properties_resolve(&config, &properties) == AMP_OK, "%s", amp_last_error());
    return properties.scaler;
}

/* What each original's state shows besides its scale. */
static void observe(int32_t mode, const struct amp__scaler *state, uint32_t words[2]) {
    words[0] = mode == AMP_SCALER_DEEPSPEED ? (uint32_t)state->clean_run : state->unskipped;
    switch (mode) {
    case AMP_SCALER_TORCH:
    case AMP_SCALER_JMP: words[1] = 0; return;
    case AMP_SCALER_MXNET: words[1] = bits_of(state->next_scale); return;
    default: words[1] = state->hysteresis_left;
    }
}

void mix_state(uint64_t *checksum, int32_t mode, const struct amp__scaler *state) {
    uint32_t words[3] = { bits_of(state->scale) };
    observe(mode, state, words + 1);
    for (size_t i = 0; i < AMP_COUNT(words); i++) *checksum = (*checksum ^ words[i]) * 0x100000001b3u;
}
