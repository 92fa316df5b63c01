/* SPDX-License-Identifier: Apache-2.0 */
/* The brackets of a context, and the memory that they share. Brackets and steps run on one thread at a time. */
#ifndef AMP_CONTEXT_BRACKETS_H
#define AMP_CONTEXT_BRACKETS_H

#include "master/param.h"

struct amp__brackets {
    struct amp__bracket *list;  /* by loss */
    uint32_t n;                 /* num_losses */
    struct amp__plan plan;      /* of the bracket that is ending */
    struct amp__param **listed; /* parameters of the bracket's optimizers, where there are several */
    size_t listed_capacity;
};

#endif
