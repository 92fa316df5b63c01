/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear of mill on 16-bit memory: the same node, whose pointers to what it reads and what it overwrites show 16-bit
 * elements for the time of the call. What it adds to, gradients, is mill's own FP32 memory.
 */
#ifndef MILL_LOW_H
#define MILL_LOW_H

#include "mill.h"

mill_op mill_linear_fp16, mill_linear_bf16;

#endif
