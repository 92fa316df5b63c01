/* SPDX-License-Identifier: Apache-2.0 */
/* Batch sizes x rates x ways of training, the ResNet-50 experiments' main table in small. */
#ifndef SWEEP_H
#define SWEEP_H

#include "options.h"

#include <stdio.h>

#define SWEEP_BATCHES 3
#define SWEEP_RATES 3
#define SWEEP_WAYS 5
#define SWEEP_RUNS (SWEEP_BATCHES * SWEEP_RATES * SWEEP_WAYS)

/* The n-th run, 0 to SWEEP_RUNS - 1. */
struct run_setup sweep_setup(const struct options *options, int n);

/* Test accuracies of all runs, in the order of their numbers; NaN and collapse are marked. */
void sweep_table(FILE *out, const struct run_result results[SWEEP_RUNS]);

#endif
