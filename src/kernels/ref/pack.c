/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors, element by element: amp_pack.h has the format, pack.h a group's header,
 * docs/reference/numerics.md the formulas and bounds. Source: ActNN, Chen et al. 2021. Proofs of the bounds:
 *
 * - Error. `x - least`, the quotient and the product are each off by 2^-24 of themselves, so x' = t / F, before its
 * rounding, by 2^-22 L at most. F L 2^-22 is below a half: t is at most F L, and t + r has 16 bits. `code` is one of
 * the two integers beside it. `code * step` is exact (8 bits by 8), the sum is rounded once: |value - x| <= (1 + 2^-22
 * L) step + 2^-24 |value|, and half a unit of dst's type.
 * - Bias. The mean of floor((t + r) / F) over the F values of r is t / F to the last bit. So the mean of the unpacked
 * values differs from x by (1 / (2 F) + 2^-22 L) step + 2^-24 |value| at most, before it is rounded to dst's type. 1 /
 * (2 F) is 2^-9 with 8 bits, 2^-13 with 4, 2^-15 with 2. An integer x' is not rounded: values equal to codes are exact.
 * - Variance. With f the fraction of x': f (1 - f) step^2, a quarter of step^2 at most.
 * - Random numbers. Each of the 16 lanes of a group has a progression of 32-bit words, h, h + d, ... h + 7 d. h and d
 * are hashed from the lane and a key for the group (splitmix64 of seed and group). A row's r is the upper 16 - bits
 * bits of a half of a word. For each place the hash is a bijection of the key's lower half: over all keys each r is
 * exactly uniform. With h and d as independent uniform words any two r are independent. By Dietzfelbinger 1996 the
 * upper l bits of a w-bit h + i d are pairwise independent for i < 2^u if w >= u + l - 1. Here u = 3, w = 16, l <= 14,
 * and the upper half's w = 32. The variance of any weighted sum of rounding errors is therefore that of independent
 * ones. Three or more of a lane are not independent.
 */
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* ---- one group ---- */

static uint32_t code_of(const struct amp__pack_plan *plan, float x, uint32_t random, int bits) {
    if (plan->zeros && !(x > 0.0f)) return 0;
    const float place = ((plan->huge ? amp__pack_quarter(x) : x) - plan->least) * plan->inverse;
    return (((uint32_t)lrintf(place) + random) >> (16 - bits)) + plan->zeros;
}

static void pack_codes(const float *x, size_t n, const struct amp__pack_plan *plan, int bits, uint64_t key,
                       uint32_t *codes) {
    const unsigned rows = 32 / (unsigned)bits; /* of a word */
    for (unsigned e = 0; e < n; e++) {
        const unsigned lane = e % AMP__PACK_LANES, row = e / AMP__PACK_LANES;
        const uint32_t code = code_of(plan, x[e], amp__pack_random(key, row, lane, bits), bits);
        codes[row / rows * AMP__PACK_LANES + lane] |= code << row % rows * (unsigned)bits;
    }
}

static uint32_t pack_bits(const float *x, size_t n, float max, uint32_t *codes) {
    uint32_t seen = 0;
    for (size_t e = 0; e < n; e++)
        if (x[e] != 0.0f) {
            codes[e / 32] |= UINT32_C(1) << e % 32;
            if (x[e] != max) seen |= AMP__PACK_INEXACT;
        }
    return seen;
}

static uint32_t pack_group(const float *x, size_t n, const struct amp__pack *p, uint64_t group) {
    uint32_t *codes = amp__pack_codes(p->packed, p->bits, group);
    uint32_t *header = amp__pack_headers(p->packed, p->bits, p->size) + group, seen = 0;
    float min = x[0], max = x[0];
    memset(codes, 0, (size_t)p->bits * 32);
    for (size_t e = 0; e < n; e++) {
        min = x[e] < min ? x[e] : min;
        max = x[e] > max ? x[e] : max;
        if (!amp__pack_finite(x[e])) seen = AMP__PACK_NONFINITE_SEEN;
    }
    if (p->bits == 1) seen |= pack_bits(x, n, max, codes);
    if (seen & AMP__PACK_NONFINITE_SEEN) {
        *header = AMP__PACK_NONFINITE;
        return seen | AMP__PACK_INEXACT;
    }
    if (p->bits == 1) {
        *header = max == 0.0f ? 0 : amp__f32_bits(max);
    } else {
        const struct amp__pack_plan plan = amp__pack_plan(min, max, p->bits);
        pack_codes(x, n, &plan, p->bits, amp__pack_key(p->seed, group), codes);
        *header = plan.header;
    }
    return seen;
}

static AMP__PACK(pack) {
    float work[AMP__PACK_GROUP];
    uint32_t seen = 0;
    for (size_t at = begin; at < end; at += AMP__PACK_GROUP) {
        const size_t n = end - at < AMP__PACK_GROUP ? end - at : AMP__PACK_GROUP;
        amp__ref_cast[AMP_FLOAT32][p->type](work, (const char *)p->src + at * amp__dtype_size(p->type), n);
        seen |= pack_group(work, n, p, at / AMP__PACK_GROUP);
    }
    return seen;
}

/* ---- and back ---- */

static struct amp__pack_range range_of(amp_dtype type) {
    return type == AMP_FLOAT16 ? amp__pack_range_f16() : type == AMP_BFLOAT16 ? amp__pack_range_bf16()
                                                                              : amp__pack_range_f32();
}

static void unpack_group(float *x, size_t n, const struct amp__unpack *u, uint64_t group) {
    const uint32_t *codes = amp__pack_codes((void *)(uintptr_t)u->packed, u->bits, group);
    const uint32_t header = amp__pack_headers((void *)(uintptr_t)u->packed, u->bits, u->size)[group];
    const struct amp__pack_range range = range_of(u->type);
    const struct amp__unpack_plan plan = amp__unpack_plan(header, u->bits, range);
    const unsigned bits = (unsigned)u->bits, rows = 32 / bits;
    for (unsigned e = 0; e < n; e++) {
        const unsigned lane = e % AMP__PACK_LANES, row = e / AMP__PACK_LANES;
        if (bits == 1)
            x[e] = codes[e / 32] >> e % 32 & 1 ? amp__pack_clamp(amp__f32_from_bits(header), range.limit) : 0.0f;
        else
            x[e] = amp__pack_value(&plan, codes[row / rows * AMP__PACK_LANES + lane] >> row % rows * bits &
                                              ((UINT32_C(1) << bits) - 1));
    }
}

static AMP__UNPACK(unpack) {
    float work[AMP__PACK_GROUP];
    for (size_t at = begin; at < end; at += AMP__PACK_GROUP) {
        const size_t n = end - at < AMP__PACK_GROUP ? end - at : AMP__PACK_GROUP;
        unpack_group(work, n, u, at / AMP__PACK_GROUP);
        amp__ref_cast[u->type][AMP_FLOAT32]((char *)u->dst + at * amp__dtype_size(u->type), work, n);
    }
}

amp__pack_fn *const amp__ref_pack = pack;
amp__unpack_fn *const amp__ref_unpack = unpack;
