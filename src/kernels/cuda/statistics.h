/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The counts of amp_statistics, one group at a time: a block counts in rows, and its threads hold the rest. In a group
 * of at most 32 bits whose elements are all normal or 0, rows and doubles come from the bits of floats.
 */
#ifndef AMP_KERNELS_CUDA_STATISTICS_H
#define AMP_KERNELS_CUDA_STATISTICS_H

#include "kernels/cuda/lists.h"

#include "amp_kernels.h"

#include <cuda_runtime_api.h>

/* Four rows a binade: powers of two, most others, tops of bf16, and tops of fp16, which are tops of bf16 as well.
 * Between fp32's subnormals and its exponent 1 lie four rows of its exponent 0, for all that has no binade. So the row
 * of a float that is normal or 0 follows from sums of its bits. */
enum {
    CUDA_CLASSES = 4,
    CUDA_SUBNORMALS = -126 - AMP_BINADE_LEAST, /* binades */
    CUDA_ROW_ZERO = CUDA_CLASSES * CUDA_SUBNORMALS,
    CUDA_ROW_NAN,
    CUDA_ROW_PLUS,
    CUDA_ROW_MINUS,
    CUDA_ROW_BELOW = CUDA_CLASSES * (AMP_BINADES + 1),
    CUDA_ROW_ABOVE,
    CUDA_ROWS,
    CUDA_ROWS_APART = 35 * 32 + 1 /* from copy to copy of the rows: a binade's row of each is in another bank */
};

/* Results of a thread, or of a chunk. Extremes are bits of nonnegative doubles, which have the order of the doubles. */
struct cuda_seen {
    double sum, squares;
    uint64_t largest, least; /* 0 and UINT64_MAX: nothing finite but 0 */
};

/* A thread's extremes of a type of at most 32 bits: bits of floats minus 1, so that 0 is neither. */
struct cuda_seen_bits {
    int32_t largest; /* -1 and UINT32_MAX: nothing finite but 0 */
    uint32_t least;
};

#ifdef __CUDA_ARCH__
#define CUDA_COUNT(row, by) (void)atomicAdd(&(row), by)
#define CUDA_ADD(sum, by) (void)atomicAdd((unsigned long long *)&(sum), (unsigned long long)(by))
#else
#define CUDA_COUNT(row, by) (void)((row) += (by))
#define CUDA_ADD(sum, by) (void)((sum) += (by))
#endif

/* ---- any number ---- */

CUDA_BOTH uint32_t cuda_row_of(uint64_t bits) {
    enum { MANTISSA = 52, BIAS = 1023 };
    const uint64_t one = (uint64_t)1 << MANTISSA, infinity = (uint64_t)0x7ff << MANTISSA;
    const uint64_t magnitude = bits & ~((uint64_t)1 << 63), mantissa = magnitude & (one - 1);
    const int at = (int)(magnitude >> MANTISSA) - BIAS - AMP_BINADE_LEAST;
    if (magnitude == 0) return CUDA_ROW_ZERO;
    if (magnitude >= infinity) return magnitude > infinity ? CUDA_ROW_NAN : bits >> 63 ? CUDA_ROW_MINUS : CUDA_ROW_PLUS;
    if (at < 0) return CUDA_ROW_BELOW;
    if (at >= AMP_BINADES) return CUDA_ROW_ABOVE;
    const uint32_t kind = mantissa == 0 ? 0u : 1u + (mantissa >= one - (one >> 8)) + (mantissa >= one - (one >> 11));
    return (uint32_t)(at + (at >= CUDA_SUBNORMALS)) * CUDA_CLASSES + kind;
}

/* Counts x. Returns nonzero if it is finite and not 0. */
CUDA_BOTH int cuda_count(struct cuda_seen *seen, uint32_t *rows, double x) {
    const uint32_t row = cuda_row_of(amp__f64_bits(x));
    CUDA_COUNT(rows[row], 1u);
    seen->sum = seen->sum + x;
    seen->squares = seen->squares + x * x;
    return row / CUDA_CLASSES != CUDA_ROW_ZERO / CUDA_CLASSES;
}

CUDA_BOTH void cuda_count_f64(const struct cuda_tensor *t, const struct cuda_range *at, struct cuda_seen *seen,
                              uint32_t *rows) {
    double v[CUDA_GROUP];
    cuda_load_f64(v, t, 0, at);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++) {
        const uint64_t magnitude = amp__f64_bits(v[i]) & ~((uint64_t)1 << 63);
        if (i >= at->count || !cuda_count(seen, rows, v[i])) continue;
        if (magnitude > seen->largest) seen->largest = magnitude;
        if (magnitude < seen->least) seen->least = magnitude;
    }
}

/* ---- types of at most 32 bits ---- */

/* The bits of |x| minus 1: of 0 the largest unsigned number, and the least signed one. */
CUDA_BOTH uint32_t cuda_less(float x) { return (amp__f32_bits(x) & 0x7fffffffu) - 1; }

CUDA_BOTH void cuda_see(struct cuda_seen_bits *extremes, uint32_t less) {
    if ((int32_t)less > extremes->largest) extremes->largest = (int32_t)less;
    if (less < extremes->least) extremes->least = less;
}

/* Any group, one element after the other, loaded once more: the code is short, since few groups need it. */
CUDA_BOTH void cuda_count_each(const struct cuda_tensor *t, const struct cuda_range *at, struct cuda_seen *seen,
                               struct cuda_seen_bits *extremes, uint32_t *rows) {
    CUDA_ROLLED
    for (uint32_t i = 0; i < at->count; i++) {
        const float x = cuda_load_one_f32(t->data[0], CUDA_TYPE(t->shape, 0), cuda_element(at, i));
        if (cuda_count(seen, rows, (double)x)) cuda_see(extremes, cuda_less(x));
    }
}

/* The row of a float that is normal or 0 of the type `type`, from its bits minus 1. Four copies of the exponent are
 * added. Of a power of two the 1 that is missing makes one copy less, of a top a half of the last place of bf16 or fp16
 * makes one more. A 16-bit type has no tops of its own precision or a higher one. */
CUDA_BOTH uint32_t cuda_normal_row(uint32_t less, uint32_t type) {
    enum { MANTISSA = 23 };
    const uint32_t before = (uint32_t)((int32_t)less >> MANTISSA), exponent = (less + 1) >> MANTISSA; /* of 0: -1, 0 */
    const uint32_t bf16 = (less + 1 + (1u << (MANTISSA - 8))) >> MANTISSA;
    const uint32_t fp16 = (less + 1 + (1u << (MANTISSA - 11))) >> MANTISSA;
    const uint32_t tops = bf16 + (type == AMP_FLOAT32 ? fp16 : exponent);
    return CUDA_ROW_ZERO + 1 + before + (type == AMP_BFLOAT16 ? 3 * exponent : exponent + tops);
}

/* Adds a float that is normal or 0, and its square, as cuda_add_square_by_bits does. Both terms are exact. */
CUDA_BOTH void cuda_add_normal(struct cuda_seen *seen, uint32_t bits, uint32_t type) {
    const uint32_t high = (uint32_t)((int32_t)bits >> 3) & 0x8fffffffu;
    const uint32_t low = type == AMP_FLOAT32 ? bits << 29 : 0u;
    const double small = amp__f64_from_bits((uint64_t)high << 32 | low);
    const double large = amp__f64_from_bits((uint64_t)(high | 0x70000000u) << 32 | low);
    const double unit = amp__f64_from_bits((uint64_t)(1023 + 896) << 52);
#ifdef __CUDA_ARCH__
    seen->sum = __fma_rn(small, unit, seen->sum);
    seen->squares = __fma_rn(small, large, seen->squares);
#else
    seen->sum = seen->sum + small * unit;
    seen->squares = seen->squares + small * large;
#endif
}

/* A group with 0 behind its last element. */
CUDA_BOTH void cuda_count_values(const float v[CUDA_GROUP], const struct cuda_tensor *t, const struct cuda_range *at,
                                 struct cuda_seen *seen, struct cuda_seen_bits *extremes, uint32_t *rows) {
    struct cuda_seen_bits here = { -1, UINT32_MAX };
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) cuda_see(&here, cuda_less(v[i]));
    if (here.largest >= 0x7f7fffff || here.least < 0x007fffffu) { /* not finite, or subnormal */
        cuda_count_each(t, at, seen, extremes, rows);
        return;
    }
    if (here.largest > extremes->largest) extremes->largest = here.largest;
    if (here.least < extremes->least) extremes->least = here.least;
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) {
        CUDA_COUNT(rows[cuda_normal_row(cuda_less(v[i]), CUDA_TYPE(t->shape, 0))], 1u);
        cuda_add_normal(seen, amp__f32_bits(v[i]), CUDA_TYPE(t->shape, 0));
    }
    if (at->count < CUDA_GROUP) CUDA_COUNT(rows[CUDA_ROW_ZERO], at->count - CUDA_GROUP);
}

/* ---- a group of any type ---- */

CUDA_BOTH void cuda_statistics_group(const struct cuda_tensor *t, const struct cuda_range *at, struct cuda_seen *seen,
                                     struct cuda_seen_bits *extremes, uint32_t *rows) {
    if (CUDA_TYPE(t->shape, 0) == AMP_FLOAT64) {
        cuda_count_f64(t, at, seen, rows);
        return;
    }
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 0, at);
    cuda_count_values(v, t, at, seen, extremes, rows);
}

/* The extremes of a type of at most 32 bits as results. */
CUDA_BOTH void cuda_see_extremes(struct cuda_seen *seen, const struct cuda_seen_bits *extremes) {
    if (extremes->largest < 0) return;
    seen->largest = amp__f64_bits((double)amp__f32_from_bits((uint32_t)extremes->largest + 1));
    seen->least = amp__f64_bits((double)amp__f32_from_bits(extremes->least + 1));
}

/* Adds the count of a block in one row. */
CUDA_BOTH void cuda_add_row(amp_statistics *s, uint32_t row, uint32_t count) {
    const uint32_t four = row / CUDA_CLASSES, kind = row % CUDA_CLASSES;
    if (count == 0) return;
    if (four != CUDA_SUBNORMALS && row < CUDA_ROW_BELOW) {
        amp_binade *binade = &s->binades[four - (four > CUDA_SUBNORMALS)];
        CUDA_ADD(binade->elements, count);
        if (kind == 0) CUDA_ADD(binade->powers, count);
        if (kind >= 2) CUDA_ADD(binade->tops_bf16, count);
        if (kind == 3) CUDA_ADD(binade->tops_fp16, count);
        return;
    }
    switch (row) {
    case CUDA_ROW_ZERO: CUDA_ADD(s->zeros, count); break;
    case CUDA_ROW_NAN: CUDA_ADD(s->nans, count); break;
    case CUDA_ROW_PLUS: CUDA_ADD(s->plus_infinities, count); break;
    case CUDA_ROW_MINUS: CUDA_ADD(s->minus_infinities, count); break;
    case CUDA_ROW_BELOW: CUDA_ADD(s->below, count); break;
    default: CUDA_ADD(s->above, count); break;
    }
}

CUDA_BOTH void cuda_merge_seen(struct cuda_seen *into, const struct cuda_seen *from) {
    into->sum = into->sum + from->sum;
    into->squares = into->squares + from->squares;
    if (from->largest > into->largest) into->largest = from->largest;
    if (from->least < into->least) into->least = from->least;
}

/* Adds the results of all chunks of a tensor. */
CUDA_BOTH void cuda_add_seen(amp_statistics *s, const struct cuda_seen *seen, uint64_t elements) {
    s->elements = s->elements + elements;
    s->sum = s->sum + seen->sum;
    s->sum_squares = s->sum_squares + seen->squares;
    if (!seen->largest) return;
    const double largest = amp__f64_from_bits(seen->largest), least = amp__f64_from_bits(seen->least);
    if (largest > s->largest) s->largest = largest;
    if (!(s->least > 0.0 && s->least < least)) s->least = least;
}

/* ---- statistics.cu ---- */

#ifdef __cplusplus
extern "C" {
#endif
/* Counts src. seen: one a chunk, written. statistics: one a tensor, added to. Two launches. */
cudaError_t cuda_launch_statistics(const struct cuda_table *table, struct cuda_seen *seen, amp_statistics *statistics,
                                   cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
