/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list functions, one group at a time: dst is span 0, sources are the spans after it. Names and results are those
 * of kernels.h. *_group does the whole work for any group, *_values the part after loading, for spans of at most 32
 * bits. Both return nonzero if an element became infinite or NaN.
 */
#ifndef AMP_KERNELS_CUDA_LISTS_H
#define AMP_KERNELS_CUDA_LISTS_H

#include "kernels/cuda/group.h"

#include <math.h>

/* ---- numbers that are on the device, or not ---- */

enum { CUDA_AS_IT_IS, CUDA_INVERSE, CUDA_CLIP };

struct cuda_factor {
    const float *pointer; /* in device memory, or 0: value */
    float value;
    /* CUDA_INVERSE: inverse of the number. CUDA_CLIP: the factor that brings this norm to `value`
     * (amp_clip_grad_norm) */
    uint32_t how;
};

CUDA_BOTH float cuda_factor_of(const struct cuda_factor *factor) {
    if (!factor->pointer) return factor->value;
    const float x = *factor->pointer;
    if (factor->how == CUDA_AS_IT_IS) return x;
    if (factor->how == CUDA_INVERSE) return 1.0f / x;
    const float clip = (float)((double)factor->value / ((double)x + 1e-6));
    return clip < 1.0f && x <= 3.402823466e38f ? clip : 1.0f;
}

/* Where kernels say that something was not finite; pointers may be 0. */
struct cuda_found {
    float *found_inf;
    uint32_t *first; /* the least base + tensor */
    uint32_t base;
};

/* ---- elementwise ---- */

CUDA_BOTH void cuda_copy_group(const struct cuda_tensor *t, const struct cuda_range *at, uint32_t width) {
    if (cuda_is_wide(t, 0, at) && cuda_is_wide(t, 1, at)) {
        unsigned char bytes[16];
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i += 16 / width) {
            cuda_load16(bytes, t->data[1] + cuda_element(at, i) * width);
            cuda_store16(t->data[0] + cuda_element(at, i) * width, bytes);
        }
        return;
    }
    for (uint32_t i = 0; i < at->count; i++) {
        const uint64_t e = cuda_element(at, i);
        if (width == 2) ((uint16_t *)t->data[0])[e] = ((const uint16_t *)t->data[1])[e];
        else if (width == 4) ((uint32_t *)t->data[0])[e] = ((const uint32_t *)t->data[1])[e];
        else ((uint64_t *)t->data[0])[e] = ((const uint64_t *)t->data[1])[e];
    }
}

CUDA_BOTH void cuda_cast_group(const struct cuda_tensor *t, const struct cuda_range *at) {
    const uint32_t to = CUDA_TYPE(t->shape, 0), from = CUDA_TYPE(t->shape, 1);
    if (to == from) {
        cuda_copy_group(t, at, to == AMP_FLOAT64 ? 8 : to == AMP_FLOAT32 ? 4 : 2);
    } else if (from == AMP_FLOAT64) {
        double v[CUDA_GROUP];
        cuda_load_f64(v, t, 1, at);
        (void)cuda_store_f64(v, t, 0, at);
    } else {
        float v[CUDA_GROUP];
        cuda_load_f32(v, t, 1, at);
        (void)cuda_store_f32(v, t, 0, at);
    }
}

CUDA_BOTH uint32_t cuda_scale_values(const struct cuda_tensor *t, const struct cuda_range *at, float v[CUDA_GROUP],
                                     float scale) {
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) v[i] = v[i] * scale;
    return cuda_store_f32(v, t, 0, at);
}

CUDA_BOTH uint32_t cuda_scale_group(const struct cuda_tensor *t, const struct cuda_range *at, float scale) {
    if (CUDA_TYPE(t->shape, 1) == AMP_FLOAT64) {
        double v[CUDA_GROUP];
        cuda_load_f64(v, t, 1, at);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) v[i] = v[i] * (double)scale;
        return cuda_store_f64(v, t, 0, at);
    }
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 1, at);
    return cuda_scale_values(t, at, v, scale);
}

CUDA_BOTH uint32_t cuda_axpby_values(const struct cuda_tensor *t, const struct cuda_range *at, float x[CUDA_GROUP],
                                     const float y[CUDA_GROUP], float a, float b) {
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) x[i] = a * x[i] + b * y[i];
    return cuda_store_f32(x, t, 0, at);
}

CUDA_BOTH uint32_t cuda_axpby_group(const struct cuda_tensor *t, const struct cuda_range *at, float a, float b) {
    if (CUDA_TYPE(t->shape, 1) == AMP_FLOAT64 || CUDA_TYPE(t->shape, 2) == AMP_FLOAT64) {
        double x[CUDA_GROUP], y[CUDA_GROUP];
        cuda_load_f64(x, t, 1, at);
        cuda_load_f64(y, t, 2, at);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) x[i] = (double)a * x[i] + (double)b * y[i];
        return cuda_store_f64(x, t, 0, at);
    }
    float x[CUDA_GROUP], y[CUDA_GROUP];
    cuda_load_f32(x, t, 1, at);
    cuda_load_f32(y, t, 2, at);
    return cuda_axpby_values(t, at, x, y, a, b);
}

/* Adds without reporting y, which was reported before: reports if x times a is not finite, or if a sum of finite
 * numbers is not. Not for fp64. */
CUDA_BOTH uint32_t cuda_add_values(const struct cuda_tensor *t, const struct cuda_range *at, float x[CUDA_GROUP],
                                   const float y[CUDA_GROUP], float a, float b) {
    uint32_t w[CUDA_GROUP];
    float sum[CUDA_GROUP];
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++) {
        x[i] = a * x[i];
        sum[i] = x[i] + b * y[i];
    }
    if (!cuda_store_f32(sum, t, 0, at)) return 0;
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++)
        if (i >= at->count || (cuda_nonfinite_f32(y[i]) && !cuda_nonfinite_f32(x[i]))) sum[i] = 0.0f;
    cuda_narrow(w, sum, CUDA_TYPE(t->shape, 0), CUDA_GROUP);
    return cuda_nonfinite_words(w, CUDA_TYPE(t->shape, 0));
}

CUDA_BOTH uint32_t cuda_add_group(const struct cuda_tensor *t, const struct cuda_range *at, float a, float b) {
    float x[CUDA_GROUP], y[CUDA_GROUP];
    if (CUDA_TYPE(t->shape, 1) == AMP_FLOAT64 || CUDA_TYPE(t->shape, 2) == AMP_FLOAT64)
        return cuda_axpby_group(t, at, a, b);
    cuda_load_f32(x, t, 1, at);
    cuda_load_f32(y, t, 2, at);
    return cuda_add_values(t, at, x, y, a, b);
}

/* As kernels/ref/clamp.c: a NaN compares false and stays. */
CUDA_BOTH void cuda_clamp_values(const struct cuda_tensor *t, const struct cuda_range *at, float v[CUDA_GROUP],
                                 float limit) {
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) v[i] = v[i] > limit ? limit : v[i] < -limit ? -limit : v[i];
    (void)cuda_store_f32(v, t, 0, at);
}

CUDA_BOTH void cuda_clamp_group(const struct cuda_tensor *t, const struct cuda_range *at, float limit) {
    if (CUDA_TYPE(t->shape, 1) == AMP_FLOAT64) {
        double v[CUDA_GROUP];
        cuda_load_f64(v, t, 1, at);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++)
            v[i] = v[i] > (double)limit ? (double)limit : v[i] < -(double)limit ? -(double)limit : v[i];
        (void)cuda_store_f64(v, t, 0, at);
        return;
    }
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 1, at);
    cuda_clamp_values(t, at, v, limit);
}

/* v rounded through the 16-bit type `low`. */
CUDA_BOTH void cuda_round(float rounded[CUDA_GROUP], const float v[CUDA_GROUP], uint32_t low) {
    uint32_t w[CUDA_GROUP];
    cuda_narrow(w, v, low, CUDA_GROUP);
    cuda_widen(rounded, w, low, CUDA_GROUP);
}

CUDA_BOTH int cuda_same(float a, float b) {
    return amp__f32_bits(a) == amp__f32_bits(b) || (a != a && b != b);
}

/* Replaces elements of span 0 (FP32) that do not round to span 1 by those of span 1, or all elements if `all`. NaNs
 * count as equal. Span 1 has 16 bits, or FP32 with values of the type `low`. */
CUDA_BOTH void cuda_reconcile_values(const struct cuda_tensor *t, const struct cuda_range *at, float exact[CUDA_GROUP],
                                     const float shown[CUDA_GROUP], int all, uint32_t low) {
    float rounded[CUDA_GROUP];
    cuda_round(rounded, exact, CUDA_TYPE(t->shape, 1) == AMP_FLOAT32 ? low : CUDA_TYPE(t->shape, 1));
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++)
        if (all || !cuda_same(rounded[i], shown[i])) exact[i] = shown[i];
    (void)cuda_store_f32(exact, t, 0, at);
}

CUDA_BOTH void cuda_reconcile_group(const struct cuda_tensor *t, const struct cuda_range *at, int all, uint32_t low) {
    float exact[CUDA_GROUP], shown[CUDA_GROUP];
    cuda_load_f32(exact, t, 0, at);
    cuda_load_f32(shown, t, 1, at);
    cuda_reconcile_values(t, at, exact, shown, all, low);
}

/* Rounds src to the 16-bit type `low` into dst, both FP32. Returns nonzero if a finite element overflows. */
CUDA_BOTH uint32_t cuda_round_values(const struct cuda_tensor *t, const struct cuda_range *at,
                                     const float v[CUDA_GROUP], uint32_t low) {
    uint32_t nonfinite = 0;
    float rounded[CUDA_GROUP];
    cuda_round(rounded, v, low);
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) nonfinite |= cuda_nonfinite_f32(rounded[i]) & ~cuda_nonfinite_f32(v[i]);
    (void)cuda_store_f32(rounded, t, 0, at);
    return nonfinite;
}

CUDA_BOTH uint32_t cuda_round_group(const struct cuda_tensor *t, const struct cuda_range *at, uint32_t low) {
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 1, at);
    return cuda_round_values(t, at, v, low);
}

/* +0 has no bit set in any type. */
CUDA_BOTH void cuda_zero_group(const struct cuda_tensor *t, const struct cuda_range *at) {
    const float zeros[CUDA_GROUP] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
    (void)cuda_store_f32(zeros, t, 0, at);
}

/* ---- sums of squares ---- */

/* sum + x * x in double. A float's square is exact there, so that a fused operation rounds no differently. */
CUDA_BOTH double cuda_add_square(double sum, double x) {
#ifdef __CUDA_ARCH__
    return __fma_rn(x, x, sum);
#else
    return sum + x * x;
#endif
}

/* Adds the square of a float that is not negative, or NaN, by its bits. GPUs convert to double slowly, some at 1/64 of
 * the rate. But the bits of a float, moved to their position in a double, are a double 2^896 times as small, for zeros
 * and subnormal floats too. With 2 * 896 more in the exponent it is 2^896 times as large, and infinity and NaN stay.
 * The product of both is the square, except that it is too large for a subnormal, by up to 2^-252. */
CUDA_BOTH double cuda_add_square_by_bits(double sum, float x) {
    const uint64_t bits = (uint64_t)amp__f32_bits(x) << 29;
    const double small = amp__f64_from_bits(bits), large = amp__f64_from_bits(bits | (UINT64_C(1792) << 52));
#ifdef __CUDA_ARCH__
    return __fma_rn(small, large, sum);
#else
    return sum + small * large;
#endif
}

/* Of floats that are not negative, or NaNs. */
CUDA_BOTH double cuda_squares(const float x[CUDA_GROUP]) {
    double sum = 0.0;
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) sum = cuda_add_square_by_bits(sum, x[i]);
    const uint32_t high = (uint32_t)(amp__f64_bits(sum) >> 32);
    if (high - 1 < 0x35000000u) { /* above 0 and below 2^-174, where the error for subnormals would count */
        sum = 0.0;
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) sum = cuda_add_square(sum, (double)x[i]);
    }
    return sum;
}

/* Adds the squares of v's elements times scale times factor to *sum. It stays finite if they are. */
CUDA_BOTH void cuda_check_values(const struct cuda_range *at, float v[CUDA_GROUP], float scale, float factor,
                                 double *sum) {
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++) v[i] = i < at->count ? fabsf(v[i]) * fabsf(scale) : 0.0f;
    if (factor != 1.0f) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++) v[i] = i < at->count ? v[i] * fabsf(factor) : 0.0f;
    }
    *sum = *sum + cuda_squares(v);
}

CUDA_BOTH uint32_t cuda_check_group(const struct cuda_tensor *t, const struct cuda_range *at, float scale, float factor,
                                    double *sum) {
    if (CUDA_TYPE(t->shape, 0) == AMP_FLOAT64) {
        uint32_t nonfinite = 0;
        double v[CUDA_GROUP];
        cuda_load_f64(v, t, 0, at);
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++) {
            const double x = i < at->count ? v[i] * (double)scale * (double)factor : 0.0;
            nonfinite |= cuda_nonfinite_f64(x);
            *sum = *sum + x * x;
        }
        return nonfinite;
    }
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 0, at);
    cuda_check_values(at, v, scale, factor, sum);
    return cuda_nonfinite_f64(*sum);
}

#endif
