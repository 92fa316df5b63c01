/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/x86/sse2.h"

#include "kernels/vector/vector.h"

#include "kernels/vector/update.inc"
