/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed tensors (amp_pack.h), a lane of a group at a time: 16 rows, and the words that their codes are. For nvcc and
 * for C. `bits` is a constant wherever these are called, so that rows and words stay in registers.
 */
#ifndef AMP_KERNELS_CUDA_PACK_H
#define AMP_KERNELS_CUDA_PACK_H

#include "kernels/cuda/words.h"
#include "kernels/pack.h"

#include <cuda_runtime_api.h>
#include <math.h>

enum { CUDA_PACK_GROUPS = CUDA_THREADS / AMP__PACK_LANES, CUDA_PACK_WORDS = 4 }; /* of a block; of a lane, at most */

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

/* Rows of a lane that the tensor has: the last group may be short. */
CUDA_BOTH uint32_t cuda_pack_rows(const struct cuda_pack *p, uint64_t group, uint32_t lane) {
    const uint64_t left = p->size - group * AMP__PACK_GROUP;
    if (left >= AMP__PACK_GROUP) return AMP__PACK_ROWS;
    return left <= lane ? 0 : (uint32_t)(left - lane + AMP__PACK_LANES - 1) / AMP__PACK_LANES;
}

/* Results of a lane, or of a group. */
struct cuda_pack_seen {
    float min, max; /* infinite: an element is */
    uint32_t nan;
};

CUDA_BOTH struct cuda_pack_seen cuda_pack_nothing(void) {
    const struct cuda_pack_seen nothing = { 3.402823466e38f, -3.402823466e38f, 0 };
    return nothing;
}

CUDA_BOTH void cuda_pack_see(struct cuda_pack_seen *all, const struct cuda_pack_seen *more) {
    all->min = fminf(all->min, more->min);
    all->max = fmaxf(all->max, more->max);
    all->nan |= more->nan;
}

CUDA_BOTH uint32_t cuda_pack_nonfinite(const struct cuda_pack_seen *seen) {
    return seen->nan | (seen->min < -3.402823466e38f) | (seen->max > 3.402823466e38f);
}

/* x: 0 behind the last row. `type` and, of whole groups, `rows` are constants. */
CUDA_BOTH struct cuda_pack_seen cuda_pack_load(float x[AMP__PACK_ROWS], const struct cuda_pack *p, uint32_t type,
                                               uint64_t first, uint32_t rows) {
    struct cuda_pack_seen seen = cuda_pack_nothing();
    uint32_t w[AMP__PACK_ROWS];
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
        const uint64_t at = first + r * AMP__PACK_LANES;
        w[r] = r >= rows              ? 0
            : type == AMP_FLOAT32 ? ((const uint32_t *)(const void *)p->src)[at]
                                  : ((const uint16_t *)(const void *)p->src)[at];
    }
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
        x[r] = type == AMP_FLOAT32 ? amp__f32_from_bits(w[r]) : cuda_low_to_f32(type, (uint16_t)w[r]);
        if (r >= rows) continue;
        seen.min = fminf(seen.min, x[r]); /* not a NaN */
        seen.max = fmaxf(seen.max, x[r]);
        seen.nan |= x[r] != x[r];
    }
    return seen;
}

/* ---- 8, 4 or 2 bits ---- */

/* Below 2^16, to nearest even: the last bits of a sum with 2^23. */
CUDA_BOTH uint32_t cuda_pack_nearest(float x) { return amp__f32_bits(x + 8388608.0f) & 0x1ffffu; }

CUDA_BOTH uint32_t cuda_pack_code(const struct amp__pack_plan *plan, float x, uint32_t random, int bits) {
    const uint32_t code = (cuda_pack_nearest((x - plan->least) * plan->inverse) + random) >> (16 - bits);
    return !plan->zeros ? code : x > 0.0f ? code + 1 : 0;
}

/* The lane's words of a group that has seen `all`, stored; by lane 0 the header too. Of whole groups `rows` is a
 * constant. x is lost. */
CUDA_BOTH void cuda_pack_lane(const struct cuda_pack *p, int bits, uint32_t rows, uint64_t group, uint32_t lane,
                              float x[AMP__PACK_ROWS], const struct cuda_pack_seen *all) {
    const uint32_t nonfinite = cuda_pack_nonfinite(all), per = 32 / (uint32_t)bits;
    const struct cuda_pack_seen seen = nonfinite ? cuda_pack_nothing() : *all;
    const struct amp__pack_plan plan = amp__pack_plan(seen.min, seen.max, bits);
    const uint64_t key = amp__pack_key(p->seed, group);
    uint32_t w[CUDA_PACK_WORDS] = { 0, 0, 0, 0 };
    CUDA_UNROLL
    for (uint32_t r = 0; plan.huge && r < AMP__PACK_ROWS; r++) x[r] = amp__pack_quarter(x[r]);
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
        const uint32_t random = amp__pack_random(key, r, lane, bits);
        if (r < rows) w[r / per] |= cuda_pack_code(&plan, x[r], random, bits) << r % per * (uint32_t)bits;
    }
    CUDA_UNROLL
    for (uint32_t k = 0; k < CUDA_PACK_WORDS; k++)
        if (k < AMP__PACK_ROWS / per)
            cuda_pack_codes(p, bits, group)[k * AMP__PACK_LANES + lane] = nonfinite ? 0 : w[k];
    if (lane == 0) *cuda_pack_header(p, bits, group) = nonfinite ? AMP__PACK_NONFINITE : plan.header;
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

/* ---- 1 bit: two rows are a word, which no lane has alone ---- */

/* Bit r: row r is not 0. *inexact: one of them is not `max`. */
CUDA_BOTH uint32_t cuda_pack_mask(const float x[AMP__PACK_ROWS], float max, uint32_t *inexact) {
    uint32_t mask = 0;
    CUDA_UNROLL
    for (uint32_t r = 0; r < AMP__PACK_ROWS; r++) {
        if (x[r] == 0.0f) continue;
        mask |= UINT32_C(1) << r;
        *inexact |= x[r] != max;
    }
    return mask;
}

/* Returns word w of a group from the masks of its lanes. */
CUDA_BOTH uint32_t cuda_pack_gather(const uint32_t masks[AMP__PACK_LANES], uint32_t w) {
    uint32_t word = 0;
    CUDA_UNROLL
    for (uint32_t lane = 0; lane < AMP__PACK_LANES; lane++) {
        const uint32_t rows = masks[lane] >> 2 * w;
        word |= (rows & 1) << lane | (rows >> 1 & 1) << (AMP__PACK_LANES + lane);
    }
    return word;
}

CUDA_BOTH uint32_t cuda_pack_mask_header(const struct cuda_pack_seen *all) {
    return cuda_pack_nonfinite(all) ? AMP__PACK_NONFINITE : all->max == 0.0f ? 0 : amp__f32_bits(all->max);
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
