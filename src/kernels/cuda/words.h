/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements in registers: two of a 16-bit type to a word, the first in its lower half. For nvcc and for C.
 *
 * Conversions have the bits of ref/convert.h, but that a GPU, which uses its own instructions (to nearest even, with
 * subnormals), makes one NaN of every NaN.
 */
#ifndef AMP_KERNELS_CUDA_WORDS_H
#define AMP_KERNELS_CUDA_WORDS_H

#include "kernels/cuda/table.h"
#include "kernels/ref/convert.h"

#include "amp.h"

#define CUDA_BOTH AMP__CONVERT

/* For loops with an index that selects a register or a span: an array indexed at run time would be in memory. */
#ifdef __CUDA_ARCH__
#define CUDA_UNROLL _Pragma("unroll")
#define CUDA_ROLLED _Pragma("unroll 1") /* later iterations use the same registers */
#else
#define CUDA_UNROLL
#define CUDA_ROLLED
#endif

/* ---- two elements ---- */

CUDA_BOTH void cuda_unpack_f16(float v[2], uint32_t word) {
#ifdef __CUDA_ARCH__
    uint16_t low, high;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(word));
    asm("cvt.f32.f16 %0, %1;" : "=f"(v[0]) : "h"(low));
    asm("cvt.f32.f16 %0, %1;" : "=f"(v[1]) : "h"(high));
#else
    v[0] = amp__f16_to_f32((uint16_t)word), v[1] = amp__f16_to_f32((uint16_t)(word >> 16));
#endif
}

CUDA_BOTH void cuda_unpack_bf16(float v[2], uint32_t word) {
#ifdef __CUDA_ARCH__
    v[0] = amp__f32_from_bits(word << 16), v[1] = amp__f32_from_bits(word & 0xffff0000u);
#else
    v[0] = amp__bf16_to_f32((uint16_t)word), v[1] = amp__bf16_to_f32((uint16_t)(word >> 16));
#endif
}

CUDA_BOTH uint32_t cuda_pack_f16(float first, float second) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#elif defined __CUDA_ARCH__
    uint16_t low, high;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(first));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(second));
    return low | (uint32_t)high << 16;
#else
    return amp__f32_to_f16(first) | (uint32_t)amp__f32_to_f16(second) << 16;
#endif
}

CUDA_BOTH uint32_t cuda_pack_bf16(float first, float second) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#else
    return amp__f32_to_bf16(first) | (uint32_t)amp__f32_to_bf16(second) << 16;
#endif
}

/* ---- one ---- */

CUDA_BOTH float cuda_low_to_f32(uint32_t type, uint16_t bits) {
    float v[2];
    if (type == AMP_FLOAT16) cuda_unpack_f16(v, bits);
    else cuda_unpack_bf16(v, bits);
    return v[0];
}
CUDA_BOTH uint16_t cuda_f32_to_low(uint32_t type, float value) {
    return (uint16_t)(type == AMP_FLOAT16 ? cuda_pack_f16(value, 0.0f) : cuda_pack_bf16(value, 0.0f));
}
CUDA_BOTH uint16_t cuda_f64_to_low(uint32_t type, double value) {
    return type == AMP_FLOAT16 ? amp__f64_to_f16(value) : amp__f64_to_bf16(value);
}

/* Exponent bits that are all ones. */
CUDA_BOTH uint32_t cuda_nonfinite_low(uint32_t type, uint16_t bits) {
    const uint32_t exponent = type == AMP_FLOAT16 ? 0x7c00u : 0x7f80u;
    return (bits & exponent) == exponent;
}
CUDA_BOTH uint32_t cuda_nonfinite_f32(float value) { return (amp__f32_bits(value) & 0x7f800000u) == 0x7f800000u; }
CUDA_BOTH uint32_t cuda_nonfinite_f64(double value) {
    const uint64_t exponent = UINT64_C(0x7ff0000000000000);
    return (amp__f64_bits(value) & exponent) == exponent;
}

/* ---- n elements: CUDA_GROUP, or half of it ---- */

CUDA_BOTH void cuda_widen(float *v, const uint32_t *w, uint32_t type, int n) {
    if (type == AMP_FLOAT32) {
        CUDA_UNROLL
        for (int i = 0; i < n; i++) v[i] = amp__f32_from_bits(w[i]);
    } else if (type == AMP_FLOAT16) {
        CUDA_UNROLL
        for (int i = 0; i < n / 2; i++) cuda_unpack_f16(v + 2 * i, w[i]);
    } else {
        CUDA_UNROLL
        for (int i = 0; i < n / 2; i++) cuda_unpack_bf16(v + 2 * i, w[i]);
    }
}

CUDA_BOTH void cuda_narrow(uint32_t *w, const float *v, uint32_t type, int n) {
    if (type == AMP_FLOAT32) {
        CUDA_UNROLL
        for (int i = 0; i < n; i++) w[i] = amp__f32_bits(v[i]);
    } else if (type == AMP_FLOAT16) {
        CUDA_UNROLL
        for (int i = 0; i < n / 2; i++) w[i] = cuda_pack_f16(v[2 * i], v[2 * i + 1]);
    } else {
        CUDA_UNROLL
        for (int i = 0; i < n / 2; i++) w[i] = cuda_pack_bf16(v[2 * i], v[2 * i + 1]);
    }
}

/* Returns nonzero if an element is infinite or NaN. Adding one to an exponent carries into the sign only if it is all
 * ones. The carry out of the lower of two elements comes only with a carry of its own. */
CUDA_BOTH uint32_t cuda_nonfinite_words(const uint32_t w[CUDA_GROUP], uint32_t type) {
    const uint32_t one = type == AMP_FLOAT16 ? 0x04000400u : 0x00800080u;
    uint32_t changed = 0;
    if (type == AMP_FLOAT32) {
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) changed |= (w[i] + 0x00800000u) ^ w[i];
        return changed & 0x80000000u;
    }
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP / 2; i++) changed |= (w[i] + one) ^ w[i];
    return changed & 0x80008000u;
}

/* ---- memory ---- */

/* Loads 16 or 8 bytes at once from an address aligned to that. In PTX, since the compiler splits a store of bytes from
 * several values. */
CUDA_BOTH void cuda_load16(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    uint32_t w[4];
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(__cvta_generic_to_global(from)));
    memcpy(to, w, 16);
#else
    memcpy(to, from, 16);
#endif
}
CUDA_BOTH void cuda_load8(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    uint32_t w[2];
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1])
                 : "l"(__cvta_generic_to_global(from)));
    memcpy(to, w, 8);
#else
    memcpy(to, from, 8);
#endif
}
CUDA_BOTH void cuda_store16(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    uint32_t w[4];
    memcpy(w, from, 16);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
#else
    memcpy(to, from, 16);
#endif
}
CUDA_BOTH void cuda_store8(void *to, const void *from) {
#ifdef __CUDA_ARCH__
    uint32_t w[2];
    memcpy(w, from, 8);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1])
                 : "memory");
#else
    memcpy(to, from, 8);
#endif
}

#endif
