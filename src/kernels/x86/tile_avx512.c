/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 14 x 32 sums: 28 registers, two for b; a is broadcast from memory. */
#include "kernels/isa.h"

#include <immintrin.h>

#define ISA avx512
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
enum { ROWS = 14, COLS = 32 };

static AMP__TILE(tile) {
#define LOAD(i) __m512 left##i = _mm512_loadu_ps(c + i * ld), right##i = _mm512_loadu_ps(c + i * ld + 16);
    EACH_ROW(LOAD)
    for (; depth; depth--, a += ROWS, b += COLS) {
        const __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#define ADD(i)                                                                                                         \
        {                                                                                                              \
            const __m512 x = _mm512_set1_ps(a[i]);                                                                     \
            left##i = _mm512_fmadd_ps(x, left, left##i);                                                               \
            right##i = _mm512_fmadd_ps(x, right, right##i);                                                            \
        }
        EACH_ROW(ADD)
    }
#define STORE(i)                                                                                                       \
    _mm512_storeu_ps(c + i * ld, left##i);                                                                             \
    _mm512_storeu_ps(c + i * ld + 16, right##i);
    EACH_ROW(STORE)
}

const struct amp__tile AMP__TABLE(tile) = { tile, ROWS, COLS };
