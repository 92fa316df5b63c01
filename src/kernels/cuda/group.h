/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of a kernel does to one group of elements: which elements those are, and how they come from memory
 * and go there. For nvcc and for C: the tests walk through groups on the processor, with the very functions that a GPU
 * runs.
 *
 * Conversions have the bits of ref/convert.h. For fp16, where that is slow, a GPU uses its own instructions, which
 * round to nearest even and keep subnormals as well; only what they make of a NaN is put right.
 */
#ifndef AMP_KERNELS_CUDA_GROUP_H
#define AMP_KERNELS_CUDA_GROUP_H

#include "kernels/cuda/table.h"
#include "kernels/ref/convert.h"

#include "amp.h"

#define CUDA_BOTH AMP__CONVERT

/* Before loops whose index picks a register or a span: an array that is indexed at run time lies in memory. */
#ifdef __CUDA_ARCH__
#define CUDA_UNROLL _Pragma("unroll")
#else
#define CUDA_UNROLL
#endif

/* ---- which elements ---- */

/* CUDA_GROUP elements: four from `first` on and four from `second` on; or, if count is less, so many from
 * `first` on. */
struct cuda_place {
    uint64_t first, second;
    uint32_t count;
};

CUDA_BOTH uint32_t cuda_head(const struct cuda_chunk *chunk, uint32_t shape) {
    const uint32_t head = chunk->begin ? 0 : CUDA_HEAD(shape);
    return head < chunk->count ? head : chunk->count;
}

/* Groups of a chunk: whole ones, then what is left, then the head. */
CUDA_BOTH uint32_t cuda_groups(const struct cuda_chunk *chunk, uint32_t shape) {
    const uint32_t head = cuda_head(chunk, shape), body = chunk->count - head;
    return body / CUDA_GROUP + (body % CUDA_GROUP != 0) + (head != 0);
}

/* Group `index`. In a whole tile, thread after thread reads 16 bytes where 32 a thread would leave gaps between them:
 * without 16-bit spans, a thread's two quarters lie half a tile apart. */
CUDA_BOTH struct cuda_place cuda_place_of(const struct cuda_chunk *chunk, uint32_t shape, uint32_t index) {
    const uint32_t head = cuda_head(chunk, shape), body = chunk->count - head, whole = body / CUDA_GROUP;
    const uint64_t begin = chunk->begin + head;
    struct cuda_place at;
    if (index < whole) {
        const uint32_t tile = index / CUDA_THREADS;
        at.first = begin + (uint64_t)index * CUDA_GROUP;
        at.second = at.first + CUDA_GROUP / 2;
        at.count = CUDA_GROUP;
        if (CUDA_LONG(shape) && (tile + 1) * CUDA_TILE <= body) {
            at.first = begin + (uint64_t)tile * CUDA_TILE + (uint64_t)(index % CUDA_THREADS) * (CUDA_GROUP / 2);
            at.second = at.first + CUDA_TILE / 2;
        }
    } else {
        const int is_rest = index == whole && body % CUDA_GROUP != 0;
        at.first = is_rest ? begin + (uint64_t)whole * CUDA_GROUP : chunk->begin;
        at.second = at.first;
        at.count = is_rest ? body % CUDA_GROUP : head;
    }
    return at;
}

/* Element i of a group. */
CUDA_BOTH uint64_t cuda_element(const struct cuda_place *at, uint32_t i) {
    return i < CUDA_GROUP / 2 || at->count < CUDA_GROUP ? at->first + i : at->second + i - CUDA_GROUP / 2;
}

/* ---- a tensor, taken out of the table ---- */

struct cuda_tensor {
    unsigned char *data[CUDA_SPANS];
    uint32_t shape;
};

CUDA_BOTH struct cuda_tensor cuda_tensor_of(const struct cuda_table *table, uint32_t tensor, int n_spans) {
    struct cuda_tensor t;
    t.shape = table->shapes[tensor];
    CUDA_UNROLL
    for (int k = 0; k < CUDA_SPANS; k++) {
        t.data[k] = k < n_spans ? (unsigned char *)(uintptr_t)table->addresses[(uint64_t)k * table->n_tensors + tensor]
                                : 0;
#ifdef __CUDA_ARCH__
        if (k < n_spans) __builtin_assume(__isGlobal(t.data[k])); /* no other memory is tried at each access */
#endif
    }
    return t;
}

/* ---- conversions ---- */

CUDA_BOTH uint16_t cuda_nan_f32_to_f16(uint32_t bits) {
    return (uint16_t)(bits >> 16 & 0x8000u) | (uint16_t)(0x7e00u | (bits >> 13 & 0x03ffu));
}
CUDA_BOTH uint32_t cuda_nan_f16_to_f32(uint16_t bits) {
    return (uint32_t)(bits & 0x8000u) << 16 | 0x7fc00000u | (uint32_t)(bits & 0x03ffu) << 13;
}

CUDA_BOTH uint16_t cuda_f32_to_f16(float value) {
#ifdef __CUDA_ARCH__
    const uint32_t bits = amp__f32_bits(value);
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return (bits & 0x7fffffffu) > 0x7f800000u ? cuda_nan_f32_to_f16(bits) : half;
#else
    return amp__f32_to_f16(value);
#endif
}

CUDA_BOTH float cuda_f16_to_f32(uint16_t bits) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return (bits & 0x7fffu) > 0x7c00u ? amp__f32_from_bits(cuda_nan_f16_to_f32(bits)) : value;
#else
    return amp__f16_to_f32(bits);
#endif
}

CUDA_BOTH float cuda_low_to_f32(uint32_t type, uint16_t bits) {
    return type == AMP_FLOAT16 ? cuda_f16_to_f32(bits) : amp__bf16_to_f32(bits);
}
CUDA_BOTH uint16_t cuda_f32_to_low(uint32_t type, float value) {
    return type == AMP_FLOAT16 ? cuda_f32_to_f16(value) : amp__f32_to_bf16(value);
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

/* ---- memory ---- */

/* 16 bytes at once; the address of memory is a multiple of 16. In PTX's words: the compiler takes a store apart whose
 * bytes come from several values. */
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

CUDA_BOTH int cuda_is_wide(const struct cuda_tensor *t, int k, const struct cuda_place *at) {
    return CUDA_WIDE(t->shape, k) && at->count == CUDA_GROUP;
}

/* Span k's elements as floats or doubles; 0 behind the last one. The loops have constant lengths, so that a group stays
 * in registers. No float is asked of a span of doubles. */
CUDA_BOTH float cuda_load_one_f32(const unsigned char *data, uint32_t type, uint64_t i) {
    return type == AMP_FLOAT32 ? ((const float *)data)[i] : cuda_low_to_f32(type, ((const uint16_t *)data)[i]);
}

CUDA_BOTH double cuda_load_one_f64(const unsigned char *data, uint32_t type, uint64_t i) {
    return type == AMP_FLOAT64 ? ((const double *)data)[i] : amp__f32_to_f64(cuda_load_one_f32(data, type, i));
}

CUDA_BOTH void cuda_load_f32(float v[CUDA_GROUP], const struct cuda_tensor *t, int k, const struct cuda_place *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    const unsigned char *data = t->data[k];
    if (!cuda_is_wide(t, k, at)) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            v[i] = i < at->count ? cuda_load_one_f32(data, type, cuda_element(at, i)) : 0.0f;
    } else if (type == AMP_FLOAT32) {
        cuda_load16(v, (const float *)data + at->first);
        cuda_load16(v + 4, (const float *)data + at->second);
    } else {
        uint16_t low[CUDA_GROUP];
        cuda_load16(low, (const uint16_t *)data + at->first);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) v[i] = cuda_low_to_f32(type, low[i]);
    }
}

CUDA_BOTH void cuda_load_f64(double v[CUDA_GROUP], const struct cuda_tensor *t, int k, const struct cuda_place *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    const unsigned char *data = t->data[k];
    if (!cuda_is_wide(t, k, at) || type != AMP_FLOAT64) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            v[i] = i < at->count ? cuda_load_one_f64(data, type, cuda_element(at, i)) : 0.0;
        return;
    }
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i += 2) cuda_load16(v + i, (const double *)data + cuda_element(at, (uint32_t)i));
}

/* 1 if what an element became in the span's type is infinite or NaN. */
CUDA_BOTH uint32_t cuda_store_one_f32(unsigned char *data, uint32_t type, uint64_t i, float value) {
    if (type == AMP_FLOAT32) {
        ((float *)data)[i] = value;
    } else if (type == AMP_FLOAT64) {
        ((double *)data)[i] = amp__f32_to_f64(value);
    } else {
        const uint16_t low = cuda_f32_to_low(type, value);
        ((uint16_t *)data)[i] = low;
        return cuda_nonfinite_low(type, low);
    }
    return cuda_nonfinite_f32(value);
}

CUDA_BOTH uint32_t cuda_store_f32(const float v[CUDA_GROUP], const struct cuda_tensor *t, int k,
                                  const struct cuda_place *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    unsigned char *data = t->data[k];
    uint32_t nonfinite = 0;
    if (!cuda_is_wide(t, k, at) || type == AMP_FLOAT64) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            if (i < at->count) nonfinite |= cuda_store_one_f32(data, type, cuda_element(at, i), v[i]);
    } else if (type == AMP_FLOAT32) {
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) nonfinite |= cuda_nonfinite_f32(v[i]);
        cuda_store16((float *)data + at->first, v);
        cuda_store16((float *)data + at->second, v + 4);
    } else {
        uint16_t low[CUDA_GROUP];
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) {
            low[i] = cuda_f32_to_low(type, v[i]);
            nonfinite |= cuda_nonfinite_low(type, low[i]);
        }
        cuda_store16((uint16_t *)data + at->first, low);
    }
    return nonfinite;
}

CUDA_BOTH uint32_t cuda_store_one_f64(unsigned char *data, uint32_t type, uint64_t i, double value) {
    if (type == AMP_FLOAT64) {
        ((double *)data)[i] = value;
        return cuda_nonfinite_f64(value);
    }
    if (type == AMP_FLOAT32) return cuda_store_one_f32(data, type, i, amp__f64_to_f32(value));
    const uint16_t low = cuda_f64_to_low(type, value);
    ((uint16_t *)data)[i] = low;
    return cuda_nonfinite_low(type, low);
}

CUDA_BOTH uint32_t cuda_store_f64(const double v[CUDA_GROUP], const struct cuda_tensor *t, int k,
                                  const struct cuda_place *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    unsigned char *data = t->data[k];
    uint32_t nonfinite = 0;
    if (!cuda_is_wide(t, k, at) || type != AMP_FLOAT64) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            if (i < at->count) nonfinite |= cuda_store_one_f64(data, type, cuda_element(at, i), v[i]);
        return nonfinite;
    }
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i += 2) cuda_store16((double *)data + cuda_element(at, (uint32_t)i), v + i);
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) nonfinite |= cuda_nonfinite_f64(v[i]);
    return nonfinite;
}

#endif
