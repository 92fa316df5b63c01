/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear of mill on 16-bit memory: the same node, whose pointers to values, and to gradients that are no parameter's,
 * show 16-bit elements for the time of the call. Gradients of parameters stay FP32 sums.
 */
#ifndef MILL_LOW_H
#define MILL_LOW_H

#include "mill.h"

mill_op mill_linear_fp16, mill_linear_bf16;

#endif
