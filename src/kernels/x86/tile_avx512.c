/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 14 x 32 sums: 28 registers, two for b; a is broadcast from memory. */
#include "kernels/x86/avx512.h"
#include "kernels/isa.h"

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
enum { ROWS = 14 };
static inline vf vf_add_product(vf sum, vf x, vf y) { return _mm512_fmadd_ps(x, y, sum); }

#include "kernels/vector/tile.inc"
