/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors (amp_pack.h). Packing takes a pair of neighbouring lanes of a group at a time, whose 16-bit elements
 * share a word, unpacking one lane: 16 rows, and the words of their codes. For nvcc and for C. `bits` is a constant
 * wherever these are called, so that rows and words stay in registers.
 */
#ifndef AMP_KERNELS_CUDA_PACK_H
#define AMP_KERNELS_CUDA_PACK_H

#include "kernels/cuda/group.h"
#include "kernels/pack.h"

#include <cuda_runtime_api.h>
#include <math.h>

enum { CUDA_PACK_GROUPS = CUDA_THREADS / AMP__PACK_LANES, CUDA_PACK_WORDS = 4 }; /* of a block; of a lane, at most */
enum { CUDA_PACK_PAIRS = AMP__PACK_LANES / 2, CUDA_PACK_ITEMS = 2 * AMP__PACK_ROWS }; /* of a group; of a pair */

/* src or dst: elements. */
struct cuda_pack {
    const unsigned char *src;
    unsigned char *dst;
    uint32_t *packed;
    uint64_t size, seed;
    uint32_t type, bits;
    float *found_inf, *inexact; /* may be 0 */
};

CUDA_BOTH uint64_t cuda_pack_groups(const struct cuda_pack *p) {
    return p->size / AMP__PACK_GROUP + (p->size % AMP__PACK_GROUP != 0);
}
CUDA_BOTH uint32_t *cuda_pack_codes(const struct cuda_pack *p, int bits, uint64_t group) {
    return p->packed + group * 8 * (uint32_t)bits;
}
CUDA_BOTH uint32_t *cuda_pack_header(const struct cuda_pack *p, int bits, uint64_t group) {
    return cuda_pack_codes(p, bits, cuda_pack_groups(p)) + group;
}

/* ---- packing: item i of a pair is row i / 2 of its lane i % 2 ---- */

/* Elements of a group that the tensor has. */
CUDA_BOTH uint32_t cuda_pack_left(const struct cuda_pack *p, uint64_t group) {
    const uint64_t left = group < cuda_pack_groups(p) ? p->size - group * AMP__PACK_GROUP : 0;
    return left < AMP__PACK_GROUP ? (uint32_t)left : (uint32_t)AMP__PACK_GROUP;
}

CUDA_BOTH bool cuda_pack_has(uint32_t left, uint32_t lane, uint32_t item) {
    return item / 2 * AMP__PACK_LANES + lane + item % 2 < left;
}

/* Words of two lanes, and two elements, move at once. */
CUDA_BOTH bool cuda_pack_aligned(const struct cuda_pack *p) {
    return (uintptr_t)p->src % (p->type == AMP_FLOAT32 ? 8 : 4) == 0 && (uintptr_t)p->packed % 8 == 0;
}

/* NaN if one of them is. */
CUDA_BOTH float cuda_pack_least(float a, float b) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
#else
    return a < b || a != a ? a : b;
#endif
}
CUDA_BOTH float cuda_pack_largest(float a, float b) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    float largest;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
    return largest;
#else
    return a > b || a != a ? a : b;
#endif
}

/* Extremes of a pair, or of a group. NaN: an element is. */
struct cuda_pack_seen {
    float min, max;
};

CUDA_BOTH struct cuda_pack_seen cuda_pack_nothing(void) {
    const struct cuda_pack_seen nothing = { 3.402823466e38f, -3.402823466e38f };
    return nothing;
}

CUDA_BOTH void cuda_pack_see(struct cuda_pack_seen *all, float min, float max) {
    all->min = cuda_pack_least(all->min, min);
    all->max = cuda_pack_largest(all->max, max);
}

CUDA_BOTH uint32_t cuda_pack_nonfinite(const struct cuda_pack_seen *seen) {
    return !(seen->min >= -3.402823466e38f) | !(seen->max <= 3.402823466e38f);
}

/* The extremes of whole rows, whose words are w: of 16-bit types two elements at a time. */
CUDA_BOTH struct cuda_pack_seen cuda_pack_see_rows(const uint32_t w[CUDA_PACK_ITEMS], uint32_t type) {
    struct cuda_pack_seen seen = cuda_pack_nothing();
    float x[CUDA_PACK_ITEMS];
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    if (type != AMP_FLOAT32) {
        uint32_t least = w[0], largest = w[0];
        float v[4];
        CUDA_UNROLL
        for (uint32_t r = 1; r < AMP__PACK_ROWS; r++) {
            if (type == AMP_FLOAT16) {
                asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(least) : "r"(least), "r"(w[r]));
                asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(largest) : "r"(largest), "r"(w[r]));
            } else {
                asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(least), "r"(w[r]));
                asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(largest) : "r"(largest), "r"(w[r]));
            }
        }
        cuda_widen(v, &least, type, 2), cuda_widen(v + 2, &largest, type, 2);
        cuda_pack_see(&seen, v[0], v[2]), cuda_pack_see(&seen, v[1], v[3]);
        return seen;
    }
#endif
    cuda_widen(x, w, type, CUDA_PACK_ITEMS);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_PACK_ITEMS; i++) cuda_pack_see(&seen, x[i], x[i]);
    return seen;
}

/* x: 0 behind the last element. `type`, and `whole`, an aligned pair of a whole group, are constants. */
CUDA_BOTH struct cuda_pack_seen cuda_pack_load(float x[CUDA_PACK_ITEMS], const struct cuda_pack *p, uint32_t type,
                                               uint64_t group, uint32_t lane, uint32_t left, bool whole) {
    const uint64_t first = group * AMP__PACK_GROUP + lane;
    struct cuda_pack_seen seen = cuda_pack_nothing();
    uint32_t w[CUDA_PACK_ITEMS];
    if (whole) {
        CUDA_UNROLL
        for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
            const uint64_t at = first + r * AMP__PACK_LANES;
            if (type == AMP_FLOAT32) cuda_load8(w + 2 * r, p->src + 4 * at);
            else w[r] = ((const uint32_t *)(const void *)p->src)[at / 2];
        }
        seen = cuda_pack_see_rows(w, type);
        cuda_widen(x, w, type, CUDA_PACK_ITEMS);
        return seen;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_PACK_ITEMS; i++) {
        const bool has = cuda_pack_has(left, lane, i);
        x[i] = has ? cuda_load_one_f32(p->src, type, first + i / 2 * AMP__PACK_LANES + i % 2) : 0.0f;
        if (has) cuda_pack_see(&seen, x[i], x[i]);
    }
    return seen;
}

/* ---- 8, 4 or 2 bits ---- */

/* In its lower half what is below 2^16, to nearest even: the last bits of a sum with 2^23. zeros: one code more above
 * 0. */
CUDA_BOTH uint32_t cuda_pack_nearest(const struct amp__pack_plan *plan, float x, int bits, bool zeros) {
    const float one = zeros && x > 0.0f ? (float)(1 << (16 - bits)) : 0.0f;
    return amp__f32_bits((x - plan->least) * plan->inverse + (8388608.0f + one));
}

CUDA_BOTH uint32_t cuda_pack_halves(uint32_t low, uint32_t high) {
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, 0x5410);
#else
    return (low & 0xffffu) | high << 16;
#endif
}

/* The words of lane + k. Two rows, half a word of codes apart, are coded in the halves of a word, as their random bits
 * are (amp__pack_random): no sum leaves its half. `left`, of whole groups, and `zeros`, if false, are constants. */
CUDA_BOTH void cuda_pack_codes_of(uint32_t w[CUDA_PACK_WORDS], const float x[CUDA_PACK_ITEMS],
                                  const struct amp__pack_plan *plan, bool zeros, uint64_t key, int bits, uint32_t left,
                                  uint32_t lane, uint32_t k) {
    const uint32_t per = 32 / (uint32_t)bits, half = per / 2, code = (UINT32_C(1) << bits) - 1;
    const uint32_t begin = amp__pack_hash(key, lane + k), step = amp__pack_hash(key, AMP__PACK_LANES + lane + k);
    CUDA_UNROLL
    for (uint32_t term = 0; term < AMP__PACK_ROWS / 2; term++) {
        const uint32_t at = term % half * (uint32_t)bits, low = 2 * (term / half * per + term % half) + k;
        const uint32_t high = low + 2 * half;
        const uint32_t random = (begin + term * step) >> bits & (UINT32_C(0xffff) >> bits) * 0x10001u;
        const uint32_t codes = cuda_pack_halves(cuda_pack_nearest(plan, x[low], bits, zeros),
                                                cuda_pack_nearest(plan, x[high], bits, zeros)) + random;
        const uint32_t there = (cuda_pack_has(left, lane, low) ? code << at : 0) |
                               (cuda_pack_has(left, lane, high) ? code << at << 16 : 0);
        w[term / half] |= codes >> (16 - (uint32_t)bits - at) & there;
    }
}

/* Stores the words of a pair in a group that has seen `all`, the first pair the header too. Of whole groups `left` is a
 * constant. x is lost. */
CUDA_BOTH void cuda_pack_pair(const struct cuda_pack *p, int bits, uint32_t left, uint64_t group, uint32_t lane,
                              float x[CUDA_PACK_ITEMS], const struct cuda_pack_seen *all) {
    const uint32_t nonfinite = cuda_pack_nonfinite(all), per = 32 / (uint32_t)bits;
    const struct cuda_pack_seen seen = nonfinite ? cuda_pack_nothing() : *all;
    const struct amp__pack_plan plan = amp__pack_plan(seen.min, seen.max, bits);
    const uint64_t key = amp__pack_key(p->seed, group);
    uint32_t *codes = cuda_pack_codes(p, bits, group) + lane, w[2][CUDA_PACK_WORDS] = { { 0 } };
    CUDA_UNROLL
    for (uint32_t i = 0; plan.huge && i < CUDA_PACK_ITEMS; i++) x[i] = amp__pack_quarter(x[i]);
    CUDA_UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        if (plan.zeros) cuda_pack_codes_of(w[k], x, &plan, true, key, bits, left, lane, k);
        else cuda_pack_codes_of(w[k], x, &plan, false, key, bits, left, lane, k);
    }
    CUDA_UNROLL
    for (uint32_t i = 0; nonfinite && i < AMP__PACK_ROWS / per; i++) w[0][i] = w[1][i] = 0;
    if (cuda_pack_aligned(p)) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < AMP__PACK_ROWS / per; i++) {
            const uint32_t both[2] = { w[0][i], w[1][i] };
            cuda_store8(codes + i * AMP__PACK_LANES, both);
        }
    } else {
        CUDA_UNROLL
        for (uint32_t i = 0; i < 2 * AMP__PACK_ROWS / per; i++)
            codes[i / 2 * AMP__PACK_LANES + i % 2] = w[i % 2][i / 2];
    }
    if (lane == 0) *cuda_pack_header(p, bits, group) = nonfinite ? AMP__PACK_NONFINITE : plan.header;
}

/* ---- 1 bit: two rows are a word, which no pair has alone ---- */

/* Bit i: item i is not 0. *least: of these items. Where it is the largest of the group, all of them are. */
CUDA_BOTH uint32_t cuda_pack_mask(const float x[CUDA_PACK_ITEMS], float *least) {
    uint32_t mask = 0;
    *least = 3.402823466e38f;
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_PACK_ITEMS; i++) {
        if (x[i] == 0.0f) continue;
        mask |= UINT32_C(1) << i;
        *least = cuda_pack_least(*least, x[i]);
    }
    return mask;
}

/* Returns word w of a group from the masks of its pairs. */
CUDA_BOTH uint32_t cuda_pack_gather(const uint32_t masks[CUDA_PACK_PAIRS], uint32_t w) {
    uint32_t word = 0;
    CUDA_UNROLL
    for (uint32_t pair = 0; pair < CUDA_PACK_PAIRS; pair++) {
        const uint32_t rows = masks[pair] >> 4 * w & 15;
        word |= (rows * 0x4001u & 0x30003u) << 2 * pair; /* the upper row's two bits go to bit 16 */
    }
    return word;
}

CUDA_BOTH uint32_t cuda_pack_mask_header(const struct cuda_pack_seen *all) {
    return cuda_pack_nonfinite(all) ? AMP__PACK_NONFINITE : all->max == 0.0f ? 0 : amp__f32_bits(all->max);
}

/* ---- unpacking ---- */

/* Rows of a lane that the tensor has: the last group may be short. */
CUDA_BOTH uint32_t cuda_pack_rows(const struct cuda_pack *p, uint64_t group, uint32_t lane) {
    const uint64_t left = p->size - group * AMP__PACK_GROUP;
    if (left >= AMP__PACK_GROUP) return AMP__PACK_ROWS;
    return left <= lane ? 0 : (uint32_t)(left - lane + AMP__PACK_LANES - 1) / AMP__PACK_LANES;
}

CUDA_BOTH struct amp__pack_range cuda_pack_range(uint32_t type) {
    return type == AMP_FLOAT16 ? amp__pack_range_f16() : type == AMP_BFLOAT16 ? amp__pack_range_bf16()
                                                                              : amp__pack_range_f32();
}

CUDA_BOTH void cuda_unpack_lane(float x[AMP__PACK_ROWS], const struct cuda_pack *p, uint32_t type, int bits,
                                uint64_t group, uint32_t lane) {
    const struct amp__unpack_plan plan =
        amp__unpack_plan(*cuda_pack_header(p, bits, group), bits, cuda_pack_range(type));
    const uint32_t per = 32 / (uint32_t)bits, mask = (UINT32_C(1) << bits) - 1;
    uint32_t w[CUDA_PACK_WORDS] = { 0, 0, 0, 0 };
    CUDA_UNROLL
    for (uint32_t k = 0; k < CUDA_PACK_WORDS; k++)
        if (k < AMP__PACK_ROWS / per) w[k] = cuda_pack_codes(p, bits, group)[k * AMP__PACK_LANES + lane];
    if (!plan.rare && !plan.zeros) { /* amp__pack_value, of most groups */
        CUDA_UNROLL
        for (uint32_t r = 0; r < AMP__PACK_ROWS; r++)
            x[r] = plan.least + (float)(w[r / per] >> r % per * (uint32_t)bits & mask) * plan.step;
        return;
    }
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++)
        x[r] = amp__pack_value(&plan, w[r / per] >> r % per * (uint32_t)bits & mask);
}

CUDA_BOTH void cuda_unpack_mask(float x[AMP__PACK_ROWS], const struct cuda_pack *p, uint32_t type, uint64_t group,
                                uint32_t lane) {
    const uint32_t *codes = cuda_pack_codes(p, 1, group);
    const float header = amp__f32_from_bits(*cuda_pack_header(p, 1, group));
    const float value = amp__pack_clamp(header, cuda_pack_range(type).limit);
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++)
        x[r] = codes[r / 2] >> (r % 2 * AMP__PACK_LANES + lane) & 1 ? value : 0.0f;
}

/* Of whole groups `rows` is a constant. */
CUDA_BOTH void cuda_unpack_store(const float x[AMP__PACK_ROWS], const struct cuda_pack *p, uint32_t type,
                                 uint64_t first, uint32_t rows) {
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
        const uint64_t e = first + r * AMP__PACK_LANES;
        if (r >= rows) continue;
        if (type == AMP_FLOAT32) ((float *)(void *)p->dst)[e] = x[r];
        else ((uint16_t *)(void *)p->dst)[e] = cuda_f32_to_low(type, x[r]);
    }
}

/* ---- pack.cu: one launch; of no element none ---- */

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t cuda_launch_pack(const struct cuda_pack *pack, cudaStream_t stream);
cudaError_t cuda_launch_unpack(const struct cuda_pack *pack, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
