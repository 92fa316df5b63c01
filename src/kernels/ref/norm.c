/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of squares, and the search for non-finite elements. */
#include "kernels/ref/convert.h"
#include "kernels/ref/ref.h"

#include <string.h>

/* ---- sum of squares ---- */

#define ADD_SQUARES(type)                                                                                              \
    static void add_squares_##type(double lane[AMP__SUM_LANES], const type *src, size_t n) {                           \
        for (; n >= AMP__SUM_LANES; n -= AMP__SUM_LANES, src += AMP__SUM_LANES)                                        \
            for (size_t j = 0; j < AMP__SUM_LANES; j++) lane[j] += (double)src[j] * (double)src[j];                    \
        for (size_t j = 0; j < n; j++) lane[j] += (double)src[j] * (double)src[j];                                     \
    }

ADD_SQUARES(float)
ADD_SQUARES(double)

void amp__ref_add_squares(double lane[AMP__SUM_LANES], const float *src, size_t n) { add_squares_float(lane, src, n); }

double amp__ref_sum_lanes(double lane[AMP__SUM_LANES]) {
    for (size_t width = AMP__SUM_LANES / 2; width; width /= 2)
        for (size_t j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0];
}

static AMP__SUM_SQUARES(sum_squares_f32) {
    double lane[AMP__SUM_LANES] = { 0 };
    add_squares_float(lane, src, n);
    return amp__ref_sum_lanes(lane);
}

static AMP__SUM_SQUARES(sum_squares_f64) {
    double lane[AMP__SUM_LANES] = { 0 };
    add_squares_double(lane, src, n);
    return amp__ref_sum_lanes(lane);
}

/* Nothing but 0 and [2^-60, 2^60]. */
static bool is_tame(const float *x, size_t n) {
    uint32_t largest = 0, least = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = amp__f32_bits(x[i]) & 0x7fffffffu;
        if (magnitude > largest) largest = magnitude;
        if (magnitude && magnitude < least) least = magnitude;
    }
    return largest <= amp__f32_bits(0x1p60f) && least >= amp__f32_bits(0x1p-60f);
}

void amp__ref_add_stripe(double lane[AMP__SUM_LANES], const float x[AMP__SUM_STRIPE]) {
    for (size_t j = 0; j < AMP__SUM_LANES; j++) {
        float sums[2] = { x[j], x[AMP__SUM_LANES + j] };
        for (size_t row = 2; row < AMP__SUM_ROWS; row++) sums[row % 2] += x[row * AMP__SUM_LANES + j];
        lane[j] += (double)(sums[0] + sums[1]);
    }
}

static double sum_squares_low(const uint16_t *src, amp_dtype from, size_t n) {
    double lane[AMP__SUM_LANES] = { 0 };
    float work[AMP__SUM_STRETCH];
    for (size_t length; n; n -= length, src += length) {
        length = n < AMP__SUM_STRETCH ? n : AMP__SUM_STRETCH;
        memset(work, 0, sizeof work);
        amp__ref_cast[AMP_FLOAT32][from](work, src, length);
        if (!is_tame(work, length)) {
            add_squares_float(lane, work, length);
            continue;
        }
        for (size_t i = 0; i < AMP__SUM_STRETCH; i++) work[i] *= work[i];
        for (size_t at = 0; at < length; at += AMP__SUM_STRIPE) amp__ref_add_stripe(lane, work + at);
    }
    return amp__ref_sum_lanes(lane);
}

static AMP__SUM_SQUARES(sum_squares_f16) { return sum_squares_low(src, AMP_FLOAT16, n); }
static AMP__SUM_SQUARES(sum_squares_bf16) { return sum_squares_low(src, AMP_BFLOAT16, n); }

amp__sum_squares_fn *const amp__ref_sum_squares[AMP__TYPES] = {
    NULL, sum_squares_f32, sum_squares_f16, sum_squares_bf16, sum_squares_f64,
};

/* ---- the largest, and non-finite elements ---- */

#define LARGEST(type, word)                                                                                            \
    static AMP__LARGEST(largest_##type) {                                                                              \
        const amp__##type *s = src;                                                                                    \
        const word plus = (word)-1 >> 1;                                                                               \
        word largest = 0, magnitude;                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                                               \
            memcpy(&magnitude, s + i, sizeof magnitude);                                                               \
            magnitude &= plus;                                                                                         \
            largest = magnitude > largest ? magnitude : largest;                                                       \
        }                                                                                                              \
        return largest;                                                                                                \
    }                                                                                                                  \
    static AMP__NONFINITE(any_nonfinite_##type) {                                                                      \
        return largest_##type(src, n) >= amp__infinity(amp__format_##type());                                          \
    }

LARGEST(f32, uint32_t)
LARGEST(f16, uint16_t)
LARGEST(bf16, uint16_t)
LARGEST(f64, uint64_t)

amp__largest_fn *const amp__ref_largest[AMP__TYPES] = { NULL, largest_f32, largest_f16, largest_bf16, largest_f64 };
amp__nonfinite_fn *const amp__ref_nonfinite[AMP__TYPES] = {
    NULL, any_nonfinite_f32, any_nonfinite_f16, any_nonfinite_bf16, any_nonfinite_f64,
};

/* ---- both at once, of scaled elements ---- */

#define CHECK_IN(type, dtype)                                                                                          \
    static double check_in_##type(const char *src, amp_dtype from, size_t n, type scale, type factor,                  \
                                  uint32_t *nonfinite) {                                                               \
        type work[AMP__REF_BLOCK] = { 0 };                                                                             \
        double lane[AMP__SUM_LANES] = { 0 };                                                                           \
        const size_t width = amp__dtype_size(from);                                                                    \
        for (size_t at = 0, length; at < n; at += length) {                                                            \
            length = n - at < AMP__REF_BLOCK ? n - at : AMP__REF_BLOCK;                                                \
            amp__ref_cast[dtype][from](work, src + at * width, length);                                                \
            for (size_t i = 0; i < AMP__REF_BLOCK; i++) work[i] = work[i] * scale * factor;                            \
            *nonfinite |= amp__ref_nonfinite[dtype](work, length);                                                     \
            add_squares_##type(lane, work, length);                                                                    \
        }                                                                                                              \
        return amp__ref_sum_lanes(lane);                                                                               \
    }

CHECK_IN(float, AMP_FLOAT32)
CHECK_IN(double, AMP_FLOAT64)

static AMP__CHECK(check_f32) { return check_in_float(src, AMP_FLOAT32, n, scale, factor, nonfinite); }
static AMP__CHECK(check_f16) { return check_in_float(src, AMP_FLOAT16, n, scale, factor, nonfinite); }
static AMP__CHECK(check_bf16) { return check_in_float(src, AMP_BFLOAT16, n, scale, factor, nonfinite); }
static AMP__CHECK(check_f64) {
    return check_in_double(src, AMP_FLOAT64, n, (double)scale, (double)factor, nonfinite);
}

amp__check_fn *const amp__ref_check[AMP__TYPES] = { NULL, check_f32, check_f16, check_bf16, check_f64 };
