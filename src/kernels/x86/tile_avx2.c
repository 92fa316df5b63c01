/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 6 x 16 sums: twelve registers, and the others for two of b and one of a. */
#include "kernels/isa.h"

#include <immintrin.h>

#define ISA avx2
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
enum { ROWS = 6, COLS = 16 };

static AMP__TILE(tile) {
#define LOAD(i) __m256 left##i = _mm256_loadu_ps(c + i * ld), right##i = _mm256_loadu_ps(c + i * ld + 8);
    EACH_ROW(LOAD)
    for (; depth; depth--, a += ROWS, b += COLS) {
        const __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + 8);
#define ADD(i)                                                                                                         \
        {                                                                                                              \
            const __m256 x = _mm256_broadcast_ss(a + i);                                                               \
            left##i = _mm256_fmadd_ps(x, left, left##i);                                                               \
            right##i = _mm256_fmadd_ps(x, right, right##i);                                                            \
        }
        EACH_ROW(ADD)
    }
#define STORE(i)                                                                                                       \
    _mm256_storeu_ps(c + i * ld, left##i);                                                                             \
    _mm256_storeu_ps(c + i * ld + 8, right##i);
    EACH_ROW(STORE)
}

const struct amp__tile AMP__TABLE(tile) = { tile, ROWS, COLS };
