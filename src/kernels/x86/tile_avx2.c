/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 6 x 16 sums: twelve registers, and the others for two of b and one of a. */
#include "kernels/x86/avx2.h"
#include "kernels/isa.h"

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
enum { ROWS = 6 };
static inline vf vf_add_product(vf sum, vf x, vf y) { return _mm256_fmadd_ps(x, y, sum); }

#include "kernels/vector/tile.inc"
