/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of one group of a packed tensor (amp_pack.h) that has no vectors: its header from its extremes and
 * back, and the key of its random numbers. In float, in the default environment, one rounding an operation.
 */
#ifndef AMP_KERNELS_PACK_H
#define AMP_KERNELS_PACK_H

#include "kernels/ref/convert.h"

#include <stdbool.h>

enum { AMP__PACK_GROUP = 256, AMP__PACK_LANES = 16, AMP__PACK_ROWS = 16 };

/* The hash of place i is of the key's low half + i * this: an odd number near 2^32 / golden ratio. */
#define AMP__PACK_NEXT UINT32_C(0x9e3779b9)
/* Multipliers of the hash. Source: Wellons 2018, Prospecting for Hash Functions, as improved by TheIronBorn. */
#define AMP__PACK_MIX_1 UINT32_C(0x21f0aaad)
#define AMP__PACK_MIX_2 UINT32_C(0x735a2d97)

/* The header of a group with an infinity or a NaN: step is NaN. */
#define AMP__PACK_NONFINITE UINT32_C(0x7fc00000)
#define AMP__PACK_ZEROS UINT32_C(0x80000000)
#define AMP__PACK_LOWEST (-0x1.fep127f) /* bfloat16's */
/* Steps are not below: 2^14 / step is finite. */
#define AMP__PACK_LEAST_STEP 0x1p-110f

/* Two halves: splitmix64's (seed + (group + 1) * its increment). Source: Steele, Lea, Flood 2014. */
AMP__CONVERT uint64_t amp__pack_key(uint64_t seed, uint64_t group) {
    uint64_t z = seed + (group + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

AMP__CONVERT uint32_t amp__pack_hash(uint64_t key, uint32_t place) {
    uint32_t x = (uint32_t)key + place * AMP__PACK_NEXT;
    x = (x ^ x >> 16) * AMP__PACK_MIX_1;
    x = (x ^ x >> 15 ^ (uint32_t)(key >> 32)) * AMP__PACK_MIX_2;
    return x ^ x >> 15;
}

/* 16 - bits random bits of an element. A lane has a progression of words, begin and step two hashes; a word's halves
 * are for two rows half a word of codes apart. Any two elements' numbers are independent
 * (docs/reference/numerics.md). */
AMP__CONVERT uint32_t amp__pack_random(uint64_t key, uint32_t row, uint32_t lane, int bits) {
    const uint32_t rows = 16 / (uint32_t)bits, term = row / rows / 2 * rows + row % rows; /* rows of half a word */
    const uint32_t x = amp__pack_hash(key, lane) + term * amp__pack_hash(key, AMP__PACK_LANES + lane);
    return (row / rows % 2 ? x >> 16 : x & UINT32_C(0xffff)) >> bits;
}

AMP__CONVERT bool amp__pack_finite(float x) {
    return (amp__f32_bits(x) & UINT32_C(0x7f800000)) != UINT32_C(0x7f800000);
}

/* ---- packing: 8, 4 or 2 bits ---- */

/* code = (to nearest even((x - least) * inverse) + 16 - bits random bits) >> 16 - bits, inverse being
 * 2^(16 - bits) / step: all fits 16 bits. zeros: 1 more where x > 0, else 0. */
struct amp__pack_plan {
    float least, inverse;
    uint32_t header;
    bool zeros, huge; /* huge: of elements * 1/4, AMP__PACK_LOWEST / 4 at least */
};

AMP__CONVERT float amp__pack_quarter(float x) {
    x *= 0.25f;
    return x < AMP__PACK_LOWEST / 4 ? AMP__PACK_LOWEST / 4 : x;
}

/* To bfloat16 toward -infinity, and away from 0. */
AMP__CONVERT float amp__pack_down(float x) {
    const uint32_t bits = amp__f32_bits(x), away = bits >> 31 ? UINT32_C(0xffff) : 0;
    return amp__f32_from_bits((bits + away) & UINT32_C(0xffff0000));
}
AMP__CONVERT float amp__pack_away(float x) {
    return amp__f32_from_bits((amp__f32_bits(x) + UINT32_C(0xffff)) & UINT32_C(0xffff0000));
}

/* Returns the plan of a group with these finite extremes. */
AMP__CONVERT struct amp__pack_plan amp__pack_plan(float min, float max, int bits) {
    struct amp__pack_plan p;
    float step = 0.0f, range, back = 1.0f;
    p.zeros = min == 0.0f;
    const int steps = (1 << bits) - (p.zeros ? 2 : 1);
    p.least = p.zeros ? 0.0f : amp__pack_down(min);
    range = max - p.least;
    p.huge = !(range <= 0x1.fffffep127f);
    if (p.huge) {
        p.least = amp__pack_down(amp__pack_quarter(min));
        range = amp__pack_quarter(max) - p.least;
        back = 4.0f;
    }
    if (range > 0.0f) {
        step = amp__pack_away(range / (float)steps);
        step = step < AMP__PACK_LEAST_STEP ? AMP__PACK_LEAST_STEP : step;
    }
    p.inverse = step > 0.0f ? (float)(1 << (16 - bits)) / step : 0.0f;
    p.header = amp__f32_bits(step * back) | amp__f32_bits(p.least * back) >> 16 | (p.zeros ? AMP__PACK_ZEROS : 0);
    return p;
}

/* ---- unpacking ---- */

/* The range of a type, and its least normal number. */
struct amp__pack_range {
    float limit, tiny;
};
AMP__CONVERT struct amp__pack_range amp__pack_range_f32(void) {
    const struct amp__pack_range range = { 0x1.fffffep127f, 0x1p-126f };
    return range;
}
AMP__CONVERT struct amp__pack_range amp__pack_range_f16(void) {
    const struct amp__pack_range range = { 65504.0f, 0x1p-14f };
    return range;
}
AMP__CONVERT struct amp__pack_range amp__pack_range_bf16(void) {
    const struct amp__pack_range range = { -AMP__PACK_LOWEST, 0x1p-126f };
    return range;
}

/* value = least + code * step; zeros: code ? the larger of (code - 1) * step and tiny : 0. rare: these would leave the
 * type, or are NaN, and amp__pack_rare has them. */
struct amp__unpack_plan {
    float least, step;
    struct amp__pack_range range;
    bool zeros, rare;
};

AMP__CONVERT struct amp__unpack_plan amp__unpack_plan(uint32_t header, int bits, struct amp__pack_range range) {
    struct amp__unpack_plan p;
    p.zeros = header >> 31;
    p.least = amp__f32_from_bits(header << 16);
    p.step = amp__f32_from_bits(header & UINT32_C(0x7fff0000));
    p.range = range;
    const float most = p.least + (float)((1 << bits) - (p.zeros ? 2 : 1)) * p.step;
    p.rare = !(most <= range.limit) || p.least < -range.limit;
    return p;
}

AMP__CONVERT float amp__pack_clamp(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

/* In quarters, so that nothing on the way is infinite. */
AMP__CONVERT float amp__pack_rare(const struct amp__unpack_plan *p, uint32_t code) {
    if (p->zeros && code == 0) return 0.0f;
    const float times = (float)(int32_t)code - (p->zeros ? 1.0f : 0.0f);
    const float quarter = p->least * 0.25f + times * (p->step * 0.25f);
    const float x = amp__pack_clamp(quarter, p->range.limit * 0.25f) * 4.0f;
    return p->zeros && x < p->range.tiny ? p->range.tiny : x;
}

AMP__CONVERT float amp__pack_value(const struct amp__unpack_plan *p, uint32_t code) {
    if (p->rare || (p->zeros && code == 0)) return amp__pack_rare(p, code);
    const float times = (float)(int32_t)code - (p->zeros ? 1.0f : 0.0f);
    const float x = p->least + times * p->step;
    return p->zeros && x < p->range.tiny ? p->range.tiny : x;
}

#endif
