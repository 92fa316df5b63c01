/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions of single values between the four types: rounded once, to nearest even. They use integer arithmetic on
 * bit patterns only, because conversions of the processor depend on the rounding mode and flush-to-zero bits of the
 * caller and leave exception flags.
 *
 * A number with M mantissa bits, without its sign, read as an integer is monotonic in its value, and one more in the
 * exponent is 1 << M more. So a change of the exponent bias is an addition, and a carry out of a rounded mantissa moves
 * to the next exponent, at the end to infinity, by itself.
 */
#ifndef AMP_KERNELS_REF_CONVERT_H
#define AMP_KERNELS_REF_CONVERT_H

#include <stdint.h>
#include <string.h>

/* Kernels of GPUs convert by the same functions. */
#ifdef __CUDACC__
#define AMP__CONVERT static __host__ __device__ __forceinline__
#else
#define AMP__CONVERT static inline
#endif

/* C types that hold each format: the 16-bit ones as bit patterns. */
typedef float amp__f32;
typedef uint16_t amp__f16, amp__bf16;
typedef double amp__f64;

/* Exponent and mantissa bits of a format. The sign is the bit above. */
struct amp__format {
    unsigned exponent, mantissa;
};
#define AMP__FORMAT(type, exponent, mantissa)                                                                          \
    AMP__CONVERT struct amp__format amp__format_##type(void) {                                                         \
        const struct amp__format format = { exponent, mantissa };                                                      \
        return format;                                                                                                 \
    }
AMP__FORMAT(f16, 5, 10)
AMP__FORMAT(bf16, 8, 7)
AMP__FORMAT(f32, 8, 23)
AMP__FORMAT(f64, 11, 52)

AMP__CONVERT uint32_t amp__f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

AMP__CONVERT float amp__f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

AMP__CONVERT uint64_t amp__f64_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

AMP__CONVERT double amp__f64_from_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- any format to any other; called with constants, so that each use becomes its own few instructions ---- */

/* The bits of +infinity, above which are the NaNs. */
AMP__CONVERT uint64_t amp__infinity(struct amp__format format) {
    return ((UINT64_C(1) << format.exponent) - 1) << format.mantissa;
}

AMP__CONVERT uint64_t amp__bias(struct amp__format format) { return (UINT64_C(1) << (format.exponent - 1)) - 1; }

/* bits / 2^shift, to nearest even, for shift from 1 on. */
AMP__CONVERT uint64_t amp__shift_right_even(uint64_t bits, unsigned shift) {
    const uint64_t odd = (bits >> shift) & 1;
    return (bits + (UINT64_C(1) << (shift - 1)) - 1 + odd) >> shift;
}

/* To a format with fewer mantissa and fewer exponent bits. */
AMP__CONVERT uint64_t amp__narrow(uint64_t bits, struct amp__format src, struct amp__format dst) {
    const uint64_t sign = bits >> (src.exponent + src.mantissa);
    const uint64_t minus = sign << (dst.exponent + dst.mantissa);
    const uint64_t magnitude = bits ^ (sign << (src.exponent + src.mantissa));
    const uint64_t one = UINT64_C(1) << src.mantissa; /* in the exponent */
    const uint64_t rebias = amp__bias(src) - amp__bias(dst);
    const uint64_t infinity = amp__infinity(dst), quiet = UINT64_C(1) << (dst.mantissa - 1);
    const unsigned drop = src.mantissa - dst.mantissa;

    if (magnitude > amp__infinity(src))
        return minus | infinity | quiet | ((magnitude & (one - 1)) >> drop);
    if (magnitude >= (rebias + 1) * one) { /* normal in dst, or beyond it */
        const uint64_t rounded = amp__shift_right_even(magnitude - rebias * one, drop);
        return minus | (rounded < infinity ? rounded : infinity);
    }
    /* Subnormal in dst: the significand is shifted to its unit. A subnormal src is far below half of that unit, as is a
     * significand shifted out with its leading one. */
    const uint64_t shift = drop + rebias + 1 - (magnitude >> src.mantissa);
    if (shift > src.mantissa + 1) return minus;
    return minus | amp__shift_right_even((magnitude & (one - 1)) | one, (unsigned)shift);
}

/* To a format with more mantissa and at least as many exponent bits: exact. */
AMP__CONVERT uint64_t amp__widen(uint64_t bits, struct amp__format src, struct amp__format dst) {
    const uint64_t sign = bits >> (src.exponent + src.mantissa);
    const uint64_t minus = sign << (dst.exponent + dst.mantissa);
    const uint64_t one = UINT64_C(1) << src.mantissa;
    const unsigned add = dst.mantissa - src.mantissa;
    uint64_t magnitude = bits ^ (sign << (src.exponent + src.mantissa));
    uint64_t rebias = amp__bias(dst) - amp__bias(src);

    if (magnitude >= amp__infinity(src)) {
        const uint64_t quiet = magnitude > amp__infinity(src) ? UINT64_C(1) << (dst.mantissa - 1) : 0;
        return minus | amp__infinity(dst) | quiet | ((magnitude & (one - 1)) << add);
    }
    if (magnitude == 0) return minus;
    if (magnitude < one) { /* subnormal: normal in dst, once its leading one has moved to the exponent's place */
        for (rebias++; magnitude < one; rebias--) magnitude <<= 1;
        magnitude -= one;
    }
    return minus | ((magnitude << add) + (rebias << dst.mantissa));
}

/* ---- between float and the 16-bit types: the common ones, without branches where SSE2 can do without ---- */

AMP__CONVERT float amp__bf16_to_f32(amp__bf16 bits) {
    const uint32_t quiet = (bits & 0x7fffu) > 0x7f80u ? 0x00400000u : 0;
    return amp__f32_from_bits((uint32_t)bits << 16 | quiet);
}

AMP__CONVERT amp__bf16 amp__f32_to_bf16(float value) {
    const uint32_t bits = amp__f32_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (amp__bf16)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x0040u : rounded);
}

AMP__CONVERT float amp__f16_to_f32(amp__f16 bits) {
    const uint32_t magnitude = bits & 0x7fffu, minus = (uint32_t)(bits & 0x8000u) << 16;
    /* Infinity and NaN move to float's highest exponent by twice the difference of the biases. */
    const uint32_t rebias = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0;
    const uint32_t normal = ((magnitude << 13) + rebias) | quiet;
    /* A subnormal is a count of 2^-24. Floating-point arithmetic, but exact and on normal numbers alone: no mode
     * changes it and it raises no flag. */
    const uint32_t subnormal = amp__f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    const uint32_t is_normal = magnitude >= 0x0400u ? ~0u : 0; /* a mask: gcc does not vectorise a choice of floats */
    return amp__f32_from_bits(minus | (normal & is_normal) | (subnormal & ~is_normal));
}

AMP__CONVERT amp__f16 amp__f32_to_f16(float value) {
    return (amp__f16)amp__narrow(amp__f32_bits(value), amp__format_f32(), amp__format_f16());
}

/* ---- split masters: a float as the bf16 that it rounds to and the lower half of its bits ---- */

/* Half of the unit of bf16: the float was halfway between two. */
#define AMP__REST_TIE 0x8000u

/* Returns the master. `tie`: it was rounded down, to the even number. If low was overwritten, so that rest does not
 * belong to it, the float is low: no float is rounded up to 0, where the sign would change, and none halfway to an odd
 * number. */
AMP__CONVERT float amp__join(amp__bf16 low, uint16_t rest, uint32_t tie) {
    const uint32_t upper = (uint32_t)low << 16, odd = low & 1u;
    const uint32_t by_tie = (tie & ~odd ? 0x10000u : 0) + (odd ? AMP__REST_TIE : 0) - AMP__REST_TIE;
    const uint32_t by = rest == AMP__REST_TIE ? by_tie : (rest ^ AMP__REST_TIE) - AMP__REST_TIE;
    return amp__f32_from_bits(((upper + by) ^ upper) >> 31 ? upper : upper + by);
}

AMP__CONVERT uint16_t amp__rest(float value) { return (uint16_t)amp__f32_bits(value); }

/* Returns 1 if a float with rest AMP__REST_TIE was rounded down. */
AMP__CONVERT uint32_t amp__tie(float value) { return ~amp__f32_bits(value) >> 16 & 1; }

/* ---- the others; between the 16-bit types by way of float, which holds both exactly ---- */

AMP__CONVERT amp__bf16 amp__f16_to_bf16(amp__f16 bits) { return amp__f32_to_bf16(amp__f16_to_f32(bits)); }
AMP__CONVERT amp__f16 amp__bf16_to_f16(amp__bf16 bits) { return amp__f32_to_f16(amp__bf16_to_f32(bits)); }

AMP__CONVERT amp__f16 amp__f64_to_f16(double value) {
    return (amp__f16)amp__narrow(amp__f64_bits(value), amp__format_f64(), amp__format_f16());
}
AMP__CONVERT amp__bf16 amp__f64_to_bf16(double value) {
    return (amp__bf16)amp__narrow(amp__f64_bits(value), amp__format_f64(), amp__format_bf16());
}
AMP__CONVERT float amp__f64_to_f32(double value) {
    return amp__f32_from_bits((uint32_t)amp__narrow(amp__f64_bits(value), amp__format_f64(), amp__format_f32()));
}
AMP__CONVERT double amp__f16_to_f64(amp__f16 bits) {
    return amp__f64_from_bits(amp__widen(bits, amp__format_f16(), amp__format_f64()));
}
AMP__CONVERT double amp__bf16_to_f64(amp__bf16 bits) {
    return amp__f64_from_bits(amp__widen(bits, amp__format_bf16(), amp__format_f64()));
}
AMP__CONVERT double amp__f32_to_f64(float value) {
    return amp__f64_from_bits(amp__widen(amp__f32_bits(value), amp__format_f32(), amp__format_f64()));
}

#endif
