/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an elementwise kernel over lengths, misalignments and in place, and compares it with expected results. */
#ifndef AMP_TESTS_ELEMENTWISE_H
#define AMP_TESTS_ELEMENTWISE_H

#include "support.h"

enum { LONGEST = 4097 };

/* A call of a kernel of two sources; those of one source get y NULL, those without a flag leave it. */
struct elementwise {
    const char *what;                        /* for messages: which kernel, pattern, instruction set */
    amp_dtype to, x_type, y_type;            /* y_type AMP_DTYPE_DEFAULT: no y */
    const void *x, *y, *expected;            /* `longest` elements */
    size_t longest;                          /* LONGEST at most */
    bool sets_flag;                          /* the kernel reports non-finite results */
    bool any_nan;                            /* any NaN equals any other, as it does where sets_flag is */
    bool never_over;                         /* dst may not be a source */
    void (*call)(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n, uint32_t *nonfinite);
    void (*kernel)(void);                    /* for call, as are a and b */
    float a, b;
};

void check_elementwise(const struct elementwise *e);

/* One infinity or NaN in x at each place among ones is reported, none is not; the flag is sticky. Uses e's types, call
 * and kernel alone. */
void check_flag(const struct elementwise *e);

#endif
