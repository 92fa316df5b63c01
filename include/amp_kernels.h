/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp's kernels alone, for hosts that want no policy: casts, scaling with a check for overflow, norms, and matmul
 * over 16-bit operands. Lists of tensors, any number and any sizes from 0 on, in one call. CPU memory.
 *
 * Numbers. Conversions round to nearest even and keep subnormals; out-of-range values become infinity; a NaN becomes a
 * quiet NaN of the same sign (a cast to the same type copies the bits). Arithmetic is IEEE float, without contraction of
 * multiply and add, in the default rounding mode whatever the caller's is; the caller's floating-point environment
 * (rounding mode, flush-to-zero, traps, flags) is as it was afterwards. Results do not depend on the instruction set or
 * on the number of threads; matmul's do, within the bound of docs/numerics.md.
 * Non-finite means: non-finite after the arithmetic and the conversion to the destination's type.
 *
 * All functions may run on any number of threads at once, on different destinations.
 */
#ifndef AMP_KERNELS_H
#define AMP_KERNELS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `size` elements of type `dtype` (a floating type) at `data`, aligned for their type; borrowed. data may be NULL only
 * if size is 0. */
typedef struct amp_span {
    void *data;       /* the first element */
    uint64_t size;    /* elements */
    amp_dtype dtype;  /* their type */
    int32_t reserved; /* 0 */
} amp_span;

/* In the list functions dst[i] and the sources at i have equal sizes; types may differ from entry to entry. dst[i] may
 * be the very same elements as a source of the same type (in place); any other overlap is undefined.
 * found_inf (may be NULL): set to 1.0f if any element of any dst is non-finite afterwards, else left as it is, as
 * torch's _amp_foreach_non_finite_check_and_unscale_ does; all elements are written in any case.
 * AMP_ERR_INVALID_ARGUMENT, with nothing written: NULL lists with n > 0, unequal sizes, types that are not floating,
 * data NULL with elements, sizes that no memory has, reserved not 0. */

/* dst = src in dst's type */
AMP_API AMP_MUST_CHECK amp_status amp_cast_list(const amp_span *dst, const amp_span *src, size_t n);

/* dst = src * scale; computed in float (fp64 sources: in double). Source: Apex multi_tensor_scale. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_list(const amp_span *dst, const amp_span *src, size_t n, float scale,
                                                 float *found_inf);

/* dst = a * x + b * y; products and sum each rounded to float (double if x or y is fp64). Apex multi_tensor_axpby. */
AMP_API AMP_MUST_CHECK amp_status amp_axpby_list(const amp_span *dst, float a, const amp_span *x, float b,
                                                 const amp_span *y, size_t n, float *found_inf);

/* *norm (may be NULL) = L2 norm over all elements; norms[i] (norms may be NULL) = L2 norm of src[i]. Squares are summed
 * in double in a fixed order and rounded once, so that a finite fp32 list has a finite sum. Apex multi_tensor_l2norm. */
AMP_API AMP_MUST_CHECK amp_status amp_l2norm_list(const amp_span *src, size_t n, float *norm, float *norms);

/* *index = first entry with a non-finite element, or -1. */
AMP_API AMP_MUST_CHECK amp_status amp_first_nonfinite(const amp_span *src, size_t n, int64_t *index);

/*
 * d = alpha * op(a) * op(b) + beta * c + bias, row-major: op(a) is [m, k], op(b) [k, n], c and d [m, n], bias [n] or
 * NULL. op transposes where transpose_x is 1: then a is stored [k, m] and b [n, k]. ld_x is the distance between rows
 * in elements, 0 for compact. c NULL: beta is ignored; c may be d. Operands are widened to float and accumulated in
 * float; the result is rounded once to d's type. fp32, fp16, bf16 in any mixture. beta 0 does not read c, alpha 0 does
 * not read a and b (BLAS). k = 0 gives beta * c + bias.
 * AMP_ERR_INVALID_ARGUMENT: negative dimensions, rows longer than their ld, other types, transpose_x other than 0 and 1,
 * pointers that are needed and NULL, c == d with another type or ld. AMP_ERR_ABI_MISMATCH: struct_size.
 * AMP_ERR_NO_MEMORY: at most 512 KiB of scratch. Nothing is written on an error.
 */
typedef struct amp_matmul_args {
    uint32_t struct_size;
    int32_t transpose_a, transpose_b; /* 0 or 1 */
    amp_dtype a_dtype, b_dtype, c_dtype, d_dtype, bias_dtype; /* of what is not NULL */
    int64_t m, n, k; /* extents of op(a), op(b) and d */
    const void *a, *b, *c, *bias; /* the operands; borrowed */
    void *d; /* the result */
    int64_t ld_a, ld_b, ld_c, ld_d; /* elements from row to row; 0: compact */
    float alpha, beta; /* factors of the product and of c */
} amp_matmul_args;

#define AMP_MATMUL_ARGS_INIT                                                                                           \
    { (uint32_t)sizeof(amp_matmul_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1.0f, \
      0.0f }

/* The product that amp_matmul_args describes. */
AMP_API AMP_MUST_CHECK amp_status amp_matmul(const amp_matmul_args *args);

/* Single values, bit patterns in and out; usable to check a host's own conversions. */
AMP_API uint16_t amp_float_to_half(float value);
AMP_API float amp_half_to_float(uint16_t bits);
AMP_API uint16_t amp_float_to_bfloat16(float value);
AMP_API float amp_bfloat16_to_float(uint16_t bits);

/*
 * Instruction sets that there are kernels for, as flags. Beyond them there is scalar code for any machine. Which set is
 * used changes no bit of any result but matmul's.
 */
#define AMP_CPU_AVX2 UINT32_C(0x1)   /* x86-64: AVX2, F16C and FMA */
#define AMP_CPU_AVX512 UINT32_C(0x2) /* x86-64: these and AVX-512 F, BW, DQ and VL */
#define AMP_CPU_NEON UINT32_C(0x100) /* arm64 */

/* The sets that are in use: those of this machine within the mask. */
AMP_API uint32_t amp_cpu_flags(void);

/*
 * Lowers the choice to sets within `mask`, for the whole process, from each thread's next call of a kernel on; UINT32_MAX
 * lifts it. For bug hunting and comparisons. Until it is called, the mask is what the environment variable AMP_CPU_MASK
 * says at libamp's first need: a number ("0x1") or names ("avx2", "avx2,avx512", "none"); not set, or anything else:
 * no limit. Any thread.
 */
AMP_API void amp_set_cpu_mask(uint32_t mask);

#ifdef __cplusplus
}
#endif

#endif /* AMP_KERNELS_H */
