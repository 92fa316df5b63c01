/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors worked by hand, ten a mode. */
#ifndef TEST_PARITY_VECTORS_H
#define TEST_PARITY_VECTORS_H

#include "amp_all.h"

enum { VECTORS = 10, MAX_TICKS = 10 };

struct vector {
    const char *what;
    amp_config config;       /* what is 0 is the mode's default */
    const char *ticks;       /* '.' a clean bracket, 'x' an overflow */
    float scales[MAX_TICKS]; /* after each tick */
};

#define VECTORS_OF(constant, value, text, name, ...) extern const struct vector vectors_##name[VECTORS];
AMP_SCALER_MAP(VECTORS_OF)
#undef VECTORS_OF

#endif
