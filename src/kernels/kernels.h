/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel table: one function pointer per kernel and combination of types, filled by the scalar reference (ref/),
 * which is the specification; files for an instruction set overwrite the slots that they do better, with equal results.
 *
 * Contract of every kernel: any n from 0 on; pointers aligned for their element type, nothing more; no read or write
 * outside [0, n); no allocation, no global, no lock. dst may be exactly a source of the same type; no other overlap.
 * Casts depend on no bit of the floating-point environment and raise no flag. The arithmetic kernels expect the default
 * environment (fpenv.h): their callers set it once per list.
 */
#ifndef AMP_KERNELS_KERNELS_H
#define AMP_KERNELS_KERNELS_H

#include "common/common.h"
#include "kernels/cpu.h"

/* Tables are indexed by amp_dtype; index 0 (AMP_DTYPE_DEFAULT) stays NULL. */
#define AMP__TYPES (AMP_FLOAT64 + 1)

/* dst = src in dst's type: to nearest even, subnormals kept, overflow to infinity; a NaN becomes quiet and keeps its
 * sign and the upper bits of its payload. The same type: a copy of the bits. */
#define AMP__CAST(name) void name(void *dst, const void *src, size_t n)

/* dst = src * scale in float (in double if src is fp64), then as cast. *nonfinite |= 1 if an element of dst is infinite
 * or NaN afterwards, which the reference reads off dst's exponent bits. */
#define AMP__SCALE(name) void name(void *dst, const void *src, size_t n, float scale, uint32_t *nonfinite)

/* dst = a * x + b * y, each of the three operations rounded to float (to double if x or y is fp64), then as cast.
 * *nonfinite as above. */
#define AMP__AXPBY(name)                                                                                               \
    void name(void *dst, float a, const void *x, float b, const void *y, size_t n, uint32_t *nonfinite)

/*
 * The sum of squares of at most AMP__SUM_BLOCK elements, to the last bit:
 *     lane[j] = the sum in double, in rising order of i from +0, of (double)src[i] * (double)src[i] over i mod 16 = j
 *     for w = 8, 4, 2, 1:  lane[j] = lane[j] + lane[j + w], j < w;  the result is lane[0]
 * A tensor's sum adds, from 0 on and in order, the sums of its blocks of AMP__SUM_BLOCK elements; a list's sum adds
 * those of its tensors. So vectors of any width up to 16 and any number of threads reproduce it.
 */
#define AMP__SUM_LANES 16
#define AMP__SUM_BLOCK 65536
#define AMP__SUM_SQUARES(name) double name(const void *src, size_t n)

/* 1 if an element is infinite or NaN, else 0. */
#define AMP__NONFINITE(name) uint32_t name(const void *src, size_t n)

/* c[i * ld + j] += a[p * rows + i] * b[p * cols + j] in float, for p from 0 to depth - 1, for one tile of the size that
 * stands beside the kernel. Product and sum may be one operation. a and b are panels packed by matmul.c; nothing
 * overlaps. */
#define AMP__TILE_ROWS_MAX 16
#define AMP__TILE_COLS_MAX 64
#define AMP__TILE(name) void name(float *c, size_t ld, const float *a, const float *b, size_t depth)

typedef AMP__CAST(amp__cast_fn);
typedef AMP__SCALE(amp__scale_fn);
typedef AMP__AXPBY(amp__axpby_fn);
typedef AMP__SUM_SQUARES(amp__sum_squares_fn);
typedef AMP__NONFINITE(amp__nonfinite_fn);
typedef AMP__TILE(amp__tile_fn);

struct amp__tile {
    amp__tile_fn *fn;
    size_t rows, cols;
};

/* "Past the caches": the same, dst never src, for more than fits there. Stores need not read what they replace, and what
 * the caches hold stays; the caller must not want dst again soon. */
struct amp__kernels {
    amp__cast_fn *cast[AMP__TYPES][AMP__TYPES];               /* [dst][src] */
    amp__cast_fn *cast_stream[AMP__TYPES][AMP__TYPES];        /* cast past the caches */
    amp__scale_fn *scale[AMP__TYPES][AMP__TYPES];             /* [dst][src] */
    amp__scale_fn *scale_stream[AMP__TYPES][AMP__TYPES];      /* scale past the caches */
    amp__axpby_fn *axpby[AMP__TYPES][AMP__TYPES][AMP__TYPES]; /* [dst][x][y] */
    amp__sum_squares_fn *sum_squares[AMP__TYPES];
    amp__nonfinite_fn *nonfinite[AMP__TYPES];
    struct amp__tile tile;
};

/* Fills every slot with the best kernel that needs nothing beyond `cpu_flags`. Pure: flags in, table out. */
void amp__kernels_init(struct amp__kernels *k, uint32_t cpu_flags);

/* The process's table: for the sets of this machine within the mask (amp_set_cpu_mask). Never fails, never changes: a
 * call that asks once goes on with what it got. */
const struct amp__kernels *amp__kernels_get(void);

/* Bytes that the caches may hold for one thread. */
size_t amp__cache_bytes(void);

#endif
