/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/x86/avx512.h"

#include "kernels/vector/vector.h"

#include "kernels/vector/norm.inc"
#include "kernels/vector/check.inc"
