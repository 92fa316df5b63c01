/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 and bf16 as loom stores them: to nearest, ties to even, with subnormals and infinities. */
#include "loom.h"

#include <math.h>
#include <string.h>

size_t loom_width(loom_dtype dtype) { return dtype == LOOM_F16 || dtype == LOOM_BF16 ? 2 : 4; }

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint16_t to_half(float x) {
    const uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    const double magnitude = fabs((double)x);
    int exponent;
    if (isnan(x)) return sign | 0x7e00;
    if (magnitude >= 65520.0) return sign | 0x7c00;
    (void)frexp(magnitude, &exponent); /* magnitude < 2^exponent */
    const int biased = magnitude < 0x1p-14 ? 0 : exponent + 14;
    /* in units of the last place; a carry into the next power of two is the next exponent's smallest number */
    const int units = (int)nearbyint(ldexp(magnitude, (biased ? 11 - exponent : 24)));
    return (uint16_t)(sign | (biased ? ((biased - 1) << 10) + units : units));
}

static float from_half(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf((float)(mantissa + 1024), exponent - 25) : ldexpf((float)mantissa, -24));
}

static uint16_t to_bfloat16(float x) {
    const uint32_t bits = bits_of(x);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bfloat16(uint16_t b) {
    const uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void loom_load(float *dst, const void *src, loom_dtype dtype, int n) {
    const uint16_t *low = src;
    if (dtype == LOOM_F32) memcpy(dst, src, (size_t)n * sizeof *dst);
    for (int i = 0; i < n && dtype == LOOM_F16; i++) dst[i] = from_half(low[i]);
    for (int i = 0; i < n && dtype == LOOM_BF16; i++) dst[i] = from_bfloat16(low[i]);
}

void loom_store(void *dst, const float *src, loom_dtype dtype, int n) {
    uint16_t *low = dst;
    if (dtype == LOOM_F32) memcpy(dst, src, (size_t)n * sizeof *src);
    for (int i = 0; i < n && dtype == LOOM_F16; i++) low[i] = to_half(src[i]);
    for (int i = 0; i < n && dtype == LOOM_BF16; i++) low[i] = to_bfloat16(src[i]);
}
