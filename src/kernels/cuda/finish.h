/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work on a product after cuBLASLt: d = f(x + beta * c + bias), or backward d = f'(aux) * (x + beta * c), for sums
 * x, which may be in d. A group is eight elements of a row, moved 16 bytes at a time if the addresses allow it. The
 * names and the order of roundings are those of matmul_finish.c. For nvcc and for C.
 */
#ifndef AMP_KERNELS_CUDA_FINISH_H
#define AMP_KERNELS_CUDA_FINISH_H

#include "kernels/cuda/group.h"

#include "amp_kernels.h"

#include <math.h>

/* Spans of a row; CUDA_AUX is that of a GELU. */
enum { CUDA_SUMS, CUDA_D, CUDA_C, CUDA_ROW_BIAS, CUDA_AUX, CUDA_SIDES };

struct cuda_side {
    unsigned char *data;
    int64_t ld, stride; /* bytes from row to row and from product to product */
};

/* Division of 32-bit numbers by a constant of the launch, without a divide: Granlund and Montgomery 1994, figure
 * 4.1. */
struct cuda_divisor {
    uint32_t by, factor, first_shift, last_shift;
};

/* Groups, of all products together, fit 32 bits. */
struct cuda_finish {
    uint64_t rows, cols, batch;
    struct cuda_divisor groups_of_row, rows_of_item;
    struct cuda_side sides[CUDA_SIDES];
    struct cuda_side mask; /* of ReLU: bits, a byte a group (data 0: none) */
    uint32_t shape;        /* types and widths of the sides as in table.h (type 0: there is no such side) */
    float beta;
    int32_t activation, backward;
};

/* Sums over one of a matrix's dimensions: out[p] = the sum over q of x[p * step_p + q * step_q], for each product. */
struct cuda_sums {
    const unsigned char *x;
    unsigned char *out;
    uint64_t n_p, n_q, batch;
    int64_t step_p, step_q, stride_x, stride_out; /* elements; one of the steps is 1 */
    uint32_t shape, out_type;                     /* of x as in table.h: span 0 */
};

/* ---- which elements ---- */

static inline struct cuda_divisor cuda_divisor_of(uint32_t by) {
    uint32_t bits = 0;
    while ((UINT64_C(1) << bits) < by) bits++;
    const uint64_t rest = (UINT64_C(1) << bits) - by;
    return (struct cuda_divisor){ by, (uint32_t)((rest << 32) / by + 1), bits > 0, bits > 0 ? bits - 1 : 0 };
}

CUDA_BOTH uint32_t cuda_quotient(uint32_t n, const struct cuda_divisor *by) {
    const uint32_t high = (uint32_t)((uint64_t)n * by->factor >> 32);
    return (high + ((n - high) >> by->first_shift)) >> by->last_shift;
}

CUDA_BOTH uint64_t cuda_finish_groups(const struct cuda_finish *f) {
    return f->batch * f->rows * ((f->cols + CUDA_GROUP - 1) / CUDA_GROUP);
}

/* The group of x from element `at` on, of which `left` elements are summed: fewer than a group at an end, or none. */
CUDA_BOTH struct cuda_range cuda_sums_range(int64_t at, uint64_t left) {
    const uint64_t first = (uint64_t)at;
    const struct cuda_range place = { first, first + CUDA_GROUP / 2, left < CUDA_GROUP ? (uint32_t)left : CUDA_GROUP };
    return place;
}

/* ---- one element ---- */

CUDA_BOTH float cuda_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

CUDA_BOTH float cuda_gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

CUDA_BOTH float cuda_gelu_slope(float x) {
    const float density = 0.39894228040143268f * expf(-0.5f * x * x);
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + (density != 0.0f ? x * density : 0.0f);
}

/* Where the hyperbola is 0, far out, x * x may be infinite already. */
CUDA_BOTH float cuda_gelu_tanh_slope(float x) {
    const float t = tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)), rest = 1.0f - t * t;
    const float inner = 0.79788456080286536f * (1.0f + 0.134145f * x * x);
    return 0.5f * (1.0f + t) + (rest != 0.0f ? 0.5f * x * rest * inner : 0.0f);
}

CUDA_BOTH float cuda_activated(int32_t activation, float x) {
    if (activation == AMP_ACTIVATION_RELU) return x < 0.0f ? 0.0f : x; /* a NaN is not below 0 and stays */
    if (activation == AMP_ACTIVATION_GELU) return cuda_gelu(x);
    return activation == AMP_ACTIVATION_GELU_TANH ? cuda_gelu_tanh(x) : x;
}

/* ---- a group ---- */

/* 0 where there is no such side. */
CUDA_BOTH unsigned char *cuda_side_row(const struct cuda_side *side, uint64_t item, uint64_t row) {
    if (!side->data) return 0;
    unsigned char *data = side->data + (int64_t)item * side->stride + (int64_t)row * side->ld;
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(data)); /* no other memory is tried at each access */
#endif
    return data;
}

/* Multiplies the sums by the derivative in backward. */
CUDA_BOTH void cuda_finish_backward(float x[CUDA_GROUP], const struct cuda_finish *f, const struct cuda_tensor *t,
                                    const struct cuda_range *at, uint32_t mask) {
    float aux[CUDA_GROUP];
    if (f->activation == AMP_ACTIVATION_RELU) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++) x[i] = mask >> i & 1 ? x[i] : 0.0f;
    } else if (f->activation != AMP_ACTIVATION_NONE) {
        cuda_load_f32(aux, t, CUDA_AUX, at);
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            x[i] = x[i] *
                (f->activation == AMP_ACTIVATION_GELU ? cuda_gelu_slope(aux[i]) : cuda_gelu_tanh_slope(aux[i]));
    }
}

/* Stores the values for backward in forward. */
CUDA_BOTH uint32_t cuda_finish_forward(float x[CUDA_GROUP], const struct cuda_finish *f, const struct cuda_tensor *t,
                                       const struct cuda_range *at) {
    uint32_t mask = 0;
    if (CUDA_TYPE(t->shape, CUDA_AUX)) (void)cuda_store_f32(x, t, CUDA_AUX, at);
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++) {
        mask |= (uint32_t)(x[i] > 0.0f) << i;
        x[i] = cuda_activated(f->activation, x[i]);
    }
    return mask;
}

CUDA_BOTH void cuda_finish_group(const struct cuda_finish *f, uint32_t group) {
    const uint32_t line = cuda_quotient(group, &f->groups_of_row), item = cuda_quotient(line, &f->rows_of_item);
    const uint32_t row = line - item * f->rows_of_item.by;
    const uint64_t col = (uint64_t)(group - line * f->groups_of_row.by) * CUDA_GROUP, left = f->cols - col;
    const struct cuda_range at = { col, col + CUDA_GROUP / 2, left < CUDA_GROUP ? (uint32_t)left : CUDA_GROUP };
    struct cuda_tensor t;
    float x[CUDA_GROUP] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f }, y[CUDA_GROUP];
    t.shape = f->shape;
    CUDA_UNROLL
    for (int k = 0; k < CUDA_SIDES; k++) t.data[k] = cuda_side_row(&f->sides[k], item, row);
    if (CUDA_TYPE(f->shape, CUDA_SUMS)) cuda_load_f32(x, &t, CUDA_SUMS, &at);
    if (CUDA_TYPE(f->shape, CUDA_C)) {
        cuda_load_f32(y, &t, CUDA_C, &at);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) x[i] = x[i] + f->beta * y[i];
    }
    if (CUDA_TYPE(f->shape, CUDA_ROW_BIAS)) {
        cuda_load_f32(y, &t, CUDA_ROW_BIAS, &at);
        CUDA_UNROLL
        for (int i = 0; i < CUDA_GROUP; i++) x[i] = x[i] + y[i];
    }
    if (f->backward) {
        cuda_finish_backward(x, f, &t, &at, f->mask.data ? cuda_side_row(&f->mask, item, row)[col / 8] : 0u);
    } else {
        const uint32_t bits = cuda_finish_forward(x, f, &t, &at);
        const uint32_t kept = at.count < CUDA_GROUP ? bits & ((1u << at.count) - 1) : bits;
        if (f->mask.data) cuda_side_row(&f->mask, item, row)[col / 8] = (unsigned char)kept;
    }
    (void)cuda_store_f32(x, &t, CUDA_D, &at);
}

#endif
