/* SPDX-License-Identifier: Apache-2.0 */
/* The innermost part of matmul: one tile of sums, held in registers while the panels of a and b go by. */
#include "kernels/ref/ref.h"

#include <string.h>

/* Four floats that gcc and clang keep in one register of whatever machine they compile for. */
typedef float quad __attribute__((vector_size(16)));

static inline quad load_quad(const float *src) {
    quad q;
    memcpy(&q, src, sizeof q);
    return q;
}

static inline void store_quad(float *dst, quad q) { memcpy(dst, &q, sizeof q); }

/* Once per row of the tile: gcc unrolls no loop over rows at -O2, and then keeps the sums in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
enum { ROWS = 4, COLS = 8 }; /* EACH_ROW and two quads */

static AMP__TILE(tile) {
#define LOAD(i) quad left##i = load_quad(c + i * ld), right##i = load_quad(c + i * ld + 4);
    EACH_ROW(LOAD)
#undef LOAD
    for (; depth; depth--, a += ROWS, b += COLS) {
        const quad left = load_quad(b), right = load_quad(b + 4);
#define ADD(i)                                                                                                         \
        left##i += a[i] * left;                                                                                        \
        right##i += a[i] * right;
        EACH_ROW(ADD)
#undef ADD
    }
#define STORE(i)                                                                                                       \
    store_quad(c + i * ld, left##i);                                                                                   \
    store_quad(c + i * ld + 4, right##i);
    EACH_ROW(STORE)
#undef STORE
}

const struct amp__tile amp__ref_tile = { tile, ROWS, COLS };
