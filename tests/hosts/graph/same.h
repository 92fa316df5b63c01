/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing trainings. Equal means as numbers: zeros of either sign are one. */
#ifndef SAME_H
#define SAME_H

#include "problem.h"

#include "test.h"

static inline void ck_same(const float *a, const float *b, int n, const char *what) {
    for (int i = 0; i < n; i++) ck_assert_msg(a[i] == b[i], "%s[%d]: %a, not %a", what, i, (double)a[i], (double)b[i]);
}

static inline void ck_same_curves(const struct curve *a, const struct curve *b) {
    ck_same(a->loss, b->loss, STEPS, "loss");
    ck_same(a->params, b->params, PARAM_FLOATS, "params");
}

#endif
