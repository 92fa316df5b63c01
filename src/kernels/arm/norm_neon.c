/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/arm/neon.h"

#include "kernels/vector/vector.h"

#include "kernels/vector/norm.inc"
#include "kernels/vector/check.inc"
