/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of amp_statistics, one group at a time: a block counts in rows, and its threads hold the rest. */
#ifndef AMP_KERNELS_CUDA_STATISTICS_H
#define AMP_KERNELS_CUDA_STATISTICS_H

#include "kernels/cuda/lists.h"

#include "amp_kernels.h"

#include <cuda_runtime_api.h>

/* Four rows a binade: powers of two, most others, tops of bf16, and tops of fp16, which are tops of bf16 as well. */
enum {
    CUDA_CLASSES = 4,
    CUDA_ROW_ZERO = CUDA_CLASSES * AMP_BINADES,
    CUDA_ROW_NAN,
    CUDA_ROW_PLUS,
    CUDA_ROW_MINUS,
    CUDA_ROW_BELOW,
    CUDA_ROW_ABOVE,
    CUDA_ROWS
};

/* Results of a thread, or of a chunk. Extremes are bits of nonnegative doubles, which have the order of the doubles. */
struct cuda_seen {
    double sum, squares;
    uint64_t largest, least; /* 0 and UINT64_MAX: nothing finite but 0 */
};

#ifdef __CUDA_ARCH__
#define CUDA_INCREMENT(row) (void)atomicAdd(&(row), 1u)
#define CUDA_ADD(sum, by) (void)atomicAdd((unsigned long long *)&(sum), (unsigned long long)(by))
#else
#define CUDA_INCREMENT(row) (void)(row)++
#define CUDA_ADD(sum, by) (void)((sum) += (by))
#endif

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
    return (uint32_t)at * CUDA_CLASSES + kind;
}

CUDA_BOTH void cuda_see(struct cuda_seen *seen, uint32_t *rows, double x) {
    const uint64_t bits = amp__f64_bits(x), magnitude = bits & ~((uint64_t)1 << 63);
    const uint32_t row = cuda_row_of(bits);
    CUDA_INCREMENT(rows[row]);
    if (row >= CUDA_ROW_ZERO && row < CUDA_ROW_BELOW) return;
    if (magnitude > seen->largest) seen->largest = magnitude;
    if (magnitude < seen->least) seen->least = magnitude;
}

CUDA_BOTH void cuda_statistics_group(const struct cuda_tensor *t, const struct cuda_range *at, struct cuda_seen *seen,
                                     uint32_t *rows) {
    if (CUDA_TYPE(t->shape, 0) == AMP_FLOAT64) {
        double v[CUDA_GROUP];
        cuda_load_f64(v, t, 0, at);
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++) {
            if (i >= at->count) continue;
            cuda_see(seen, rows, v[i]);
            seen->sum = seen->sum + v[i];
            seen->squares = seen->squares + v[i] * v[i];
        }
        return;
    }
    float v[CUDA_GROUP];
    cuda_load_f32(v, t, 0, at);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++) {
        if (i >= at->count) continue;
        cuda_see(seen, rows, (double)v[i]);
        seen->sum = seen->sum + (double)v[i];
        seen->squares = cuda_add_square(seen->squares, v[i]);
    }
}

/* Adds the count of a block in one row. */
CUDA_BOTH void cuda_add_row(amp_statistics *s, uint32_t row, uint32_t count) {
    if (count == 0) return;
    if (row < CUDA_ROW_ZERO) {
        amp_binade *binade = &s->binades[row / CUDA_CLASSES];
        const uint32_t kind = row % CUDA_CLASSES;
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
