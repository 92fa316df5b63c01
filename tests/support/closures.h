/* SPDX-License-Identifier: Apache-2.0 */
/* Stubs are for the first AMP__STUBS signatures that fit into registers: after this all closures are libffi's. */
#ifndef TEST_CLOSURES_H
#define TEST_CLOSURES_H

#include "intercept/closure.h"
#include "intercept/registers.h"

static inline void use_up_stubs(void) {
    static struct amp__closure nobody;
    while (amp__stub_take(&nobody)) continue;
}

#endif
