/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments in 8 bits (amp_optim.h): a block has a scale, and an element the code of its multiple. In float, in the
 * default environment, one rounding an operation.
 */
#ifndef AMP_KERNELS_BYTES_H
#define AMP_KERNELS_BYTES_H

#include "kernels/random.h"

enum { AMP__BYTES_BLOCK = 256, AMP__BYTES_FRACTION = 16 };

/* Least scales. Of m: the inverse is finite. Of sqrt(v): the squares of all codes are exact enough in FP32 to find
 * the code again. */
#define AMP__BYTES_LEAST_M 0x1p-110f
#define AMP__BYTES_LEAST_V 0x1p-64f
/* 1 / 127 and 1 / 255, larger by 2^-22: with three roundings the largest element's multiple is not above 127, 255. */
#define AMP__BYTES_PART_M 0x1.02040ep-7f
#define AMP__BYTES_PART_V 0x1.010106p-8f
#define AMP__BYTES_MOST_V 0x1.fffffep127f /* of v */
#define AMP__BYTES_MOST_M 0x1.020406p+121f /* of m's scale */

AMP__CONVERT float amp__bytes_scale(float largest, float part, float least) {
    const float scale = largest * part;
    return scale > least ? scale : least;
}
AMP__CONVERT float amp__bytes_scale_m(float largest) {
    return amp__bytes_scale(largest, AMP__BYTES_PART_M, AMP__BYTES_LEAST_M);
}
AMP__CONVERT float amp__bytes_scale_v(float largest) {
    return amp__bytes_scale(largest, AMP__BYTES_PART_V, AMP__BYTES_LEAST_V);
}
/* As it is stored: 127 of it are finite. Codes are multiples of the scale before. */
AMP__CONVERT float amp__bytes_stored_m(float scale) { return scale > AMP__BYTES_MOST_M ? AMP__BYTES_MOST_M : scale; }
AMP__CONVERT float amp__bytes_inverse(float scale) { return 65536.0f / scale; }

/* To nearest even, |x| <= 2^24 * 255 / 256: the sum's unit is 1. */
AMP__CONVERT int32_t amp__bytes_nearest(float x) {
    const float shift = x < 0.0f ? -0x1p23f : 0x1p23f;
    return (x < 0x1p23f && x > -0x1p23f) ? (int32_t)((x + shift) - shift) : (int32_t)x;
}

/* A moment's code: its multiple of the scale in 2^-16, to nearest even, plus 16 random bits, rounded down. */
AMP__CONVERT uint8_t amp__bytes_code_m(float m, float inverse, uint32_t random) {
    const int32_t multiple = amp__bytes_nearest(m * inverse);
    return (uint8_t)(((uint32_t)(multiple + (128 << AMP__BYTES_FRACTION)) + (random & 0xffff)) >> AMP__BYTES_FRACTION ^
                     0x80);
}
/* At least 1 for a number that is not 0. */
AMP__CONVERT uint8_t amp__bytes_code_v(float z, float inverse, uint32_t random) {
    const float multiple = z * inverse, above = multiple > 65536.0f ? multiple : 65536.0f;
    const uint32_t sum = (uint32_t)amp__bytes_nearest(above) + (random >> 16);
    return z > 0.0f ? (uint8_t)(sum >> AMP__BYTES_FRACTION) : 0;
}

AMP__CONVERT float amp__bytes_m(uint8_t code, float scale) { return (float)((int32_t)(code ^ 0x80) - 0x80) * scale; }
AMP__CONVERT float amp__bytes_z(uint8_t code, float scale) { return (float)code * scale; }

/* Scales of a block that is lost. */
#define AMP__BYTES_LOST amp__f32_from_bits(AMP__PACK_NONFINITE)

#endif
