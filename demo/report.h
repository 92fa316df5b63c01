/* SPDX-License-Identifier: Apache-2.0 */
/* What came out: the table for people, results.json for programs, what a level decided for each op. */
#ifndef REPORT_H
#define REPORT_H

#include "run.h"

#include <stdio.h>

/* One line per level. `results` holds the runs of each level (or of each cell of a sweep) in a row. */
void report_table(FILE *out, const struct run_result *results, size_t n);

/* An array with one object per run; numbers that are not finite are null. With `sweep`, the objects have the batch and
 * the rate too. */
void report_json(FILE *out, const struct run_result *results, size_t n, int sweep);

/* amp_explain, and the counters of each op. */
void report_ops(FILE *out, const char *label, amp_context *context);

/* How many of the results, from the first on, are runs of the same level. */
size_t report_group(const struct run_result *results, size_t n);

/* curves.c: curves.svg, the loss and the loss scale of every level against steps. The runs of each level in a row, all
 * of equally many steps. 0, or -1 without memory. */
int curves_write(FILE *out, const struct run_result *results, size_t n);

#endif
