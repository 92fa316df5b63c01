/* SPDX-License-Identifier: Apache-2.0 */
/* A tile of 8 x 12 sums: 24 registers, three for b and two for the eight of a, which are taken lane by lane. */
#include "kernels/isa.h"

#include <arm_neon.h>

#define ISA neon
#define EACH_ROW(X)                                                                                                    \
    X(0, low, 0) X(1, low, 1) X(2, low, 2) X(3, low, 3) X(4, high, 0) X(5, high, 1) X(6, high, 2) X(7, high, 3)
enum { ROWS = 8, COLS = 12 };

static AMP__TILE(tile) {
#define LOAD(i, half, lane)                                                                                            \
    float32x4_t left##i = vld1q_f32(c + i * ld), middle##i = vld1q_f32(c + i * ld + 4);                                \
    float32x4_t right##i = vld1q_f32(c + i * ld + 8);
    EACH_ROW(LOAD)
    for (; depth; depth--, a += ROWS, b += COLS) {
        const float32x4_t low = vld1q_f32(a), high = vld1q_f32(a + 4);
        const float32x4_t left = vld1q_f32(b), middle = vld1q_f32(b + 4), right = vld1q_f32(b + 8);
#define ADD(i, half, lane)                                                                                             \
    left##i = vfmaq_laneq_f32(left##i, left, half, lane);                                                              \
    middle##i = vfmaq_laneq_f32(middle##i, middle, half, lane);                                                        \
    right##i = vfmaq_laneq_f32(right##i, right, half, lane);
        EACH_ROW(ADD)
    }
#define STORE(i, half, lane)                                                                                           \
    vst1q_f32(c + i * ld, left##i);                                                                                    \
    vst1q_f32(c + i * ld + 4, middle##i);                                                                              \
    vst1q_f32(c + i * ld + 8, right##i);
    EACH_ROW(STORE)
}

const struct amp__tile AMP__TABLE(tile) = { tile, ROWS, COLS };
