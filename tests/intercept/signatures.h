/* SPDX-License-Identifier: Apache-2.0 */
/* What gen_signatures.py's output is written against. */
#ifndef TEST_INTERCEPT_SIGNATURES_H
#define TEST_INTERCEPT_SIGNATURES_H

#include "amp_all.h"

#include <string.h>

/* Bytes as they came, one value after the other. */
struct record {
    size_t n;
    unsigned char bytes[65536];
};

struct signature {
    const char *schema;
    amp_fn function;
    void (*call)(amp_fn slot, struct record *result); /* what the call returned goes into `result` */
};

extern const unsigned signature_seed;
extern const struct signature signatures[];
extern const size_t n_signatures;
extern const amp_struct signature_structs[]; /* what the schemas name */
extern const size_t n_signature_structs;

void record(struct record *record, const void *value, size_t bytes);
/* What the functions received. */
void see(const void *value, size_t bytes);
/* What the functions do to their copies of structs. */
void spoil(void *value, size_t bytes);
/* Random bytes, the same for the same seed; and whether they are still there. */
void fill(void *value, size_t bytes, uint64_t seed);
void intact(const void *value, size_t bytes, uint64_t seed);

/* Floats by their bits, so that NaN payloads take part. */
static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
