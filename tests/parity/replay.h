/* SPDX-License-Identifier: Apache-2.0 */
/* Trace files: reading, making a run's overflows, observing a state. The format is described in traces.py. */
#ifndef TEST_PARITY_REPLAY_H
#define TEST_PARITY_REPLAY_H

#include "scaler/scaler.h"

#include <stdio.h>

enum { SAMPLE_EVERY = 100, MAX_SAMPLES = 50 };

struct run {
    int32_t mode;
    uint64_t seed;
    unsigned enter, stay, steps;
    amp_config config;
    uint64_t checksum;
    unsigned n_samples;
    uint32_t samples[MAX_SAMPLES];
};

/* A generator of overflows. */
struct overflows {
    uint64_t x;
    unsigned enter, stay;
    bool last;
};

struct overflows overflows_of(const struct run *run);
bool next_overflow(struct overflows *overflows);

uint32_t bits_of(float value);

/* The next run of a file; *mode is kept between calls. False at the end; a malformed line fails the test. */
bool read_run(FILE *file, int32_t *mode, struct run *run);

/* The configuration's settings, as amp_initialize_many would resolve them. */
struct amp__scaler_settings settings_of(amp_config config, int32_t mode);

#define CHECKSUM_INIT 0xcbf29ce484222325u
void mix_state(uint64_t *checksum, int32_t mode, const struct amp__scaler *state);

#endif
