/* SPDX-License-Identifier: Apache-2.0 */
/* curves.svg: the loss and the loss scale of every level against steps. */
#ifndef CURVES_H
#define CURVES_H

#include "run.h"

#include <stdio.h>

/* The runs of each level in a row, all of equally many steps. 0, or -1 without memory. */
int curves_write(FILE *out, const struct run_result *results, size_t n);

#endif
