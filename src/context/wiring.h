/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a context: by name, and in their slots. */
#ifndef AMP_CONTEXT_WIRING_H
#define AMP_CONTEXT_WIRING_H

#include "common/names.h"
#include "intercept/intercept.h"

struct amp__wiring {
    struct amp__names op_names; /* named.c: the models' ops; empty until the first lookup */
    struct amp__patch *patch;
    size_t n_wraps;
};

#endif
