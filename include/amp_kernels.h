/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp's kernels alone, for hosts that want no policy: casts, scaling with a check for overflow, norms, and matmul
 * over 16-bit operands. Lists of tensors, any number and any sizes from 0 on, in one call. CPU memory.
 *
 * Numbers. Conversions round to nearest even and keep subnormals; out-of-range values become infinity; a NaN becomes a
 * quiet NaN of the same sign (a cast to the same type copies the bits). Arithmetic is IEEE float, without contraction
 * of multiply and add, in the default rounding mode whatever the caller's is; the caller's floating-point environment
 * (rounding mode, flush-to-zero, traps, flags) is as it was afterwards. Results do not depend on the instruction set or
 * on the number of threads; matmul's do, within the bound of docs/reference/numerics.md.
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

/* dst = src, bit for bit: amp_cast_list where dst[i] and src[i] must be of one type. */
AMP_API AMP_MUST_CHECK amp_status amp_copy_list(const amp_span *dst, const amp_span *src, size_t n);

/* dst = +0 */
AMP_API AMP_MUST_CHECK amp_status amp_zero_list(const amp_span *dst, size_t n);

/* dst = src * scale; computed in float (fp64 sources: in double). Source: Apex multi_tensor_scale. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_list(const amp_span *dst, const amp_span *src, size_t n, float scale,
                                                 float *found_inf);

/* dst = a * x + b * y; products and sum each rounded to float (double if x or y is fp64). Apex multi_tensor_axpby. */
AMP_API AMP_MUST_CHECK amp_status amp_axpby_list(const amp_span *dst, float a, const amp_span *x, float b,
                                                 const amp_span *y, size_t n, float *found_inf);

/* *norm (may be NULL) = L2 norm over all elements; norms[i] (norms may be NULL) = L2 norm of src[i]. Squares are summed
 * in double in a fixed order and rounded once, so that a finite fp32 list has a finite sum. Apex multi_tensor_l2norm.
 */
AMP_API AMP_MUST_CHECK amp_status amp_l2norm_list(const amp_span *src, size_t n, float *norm, float *norms);

/* dst = src, with all of it scaled so that its L2 norm is at most max_norm (above 0, infinity too): by
 * max_norm / (norm + 1e-6) where that is below 1. *norm (may be NULL) = the norm of src. Where that is not finite,
 * nothing is scaled: dst is src as it is, and *norm says so. In place nothing is written then, nor where nothing needs
 * to be scaled. Sources: torch.nn.utils.clip_grad_norm_ (which writes NaNs if the norm is not finite), Apex
 * clip_grad_norm_. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_norm_list(const amp_span *dst, const amp_span *src, size_t n, float max_norm,
                                                     float *norm);

/* dst = each element of src brought into [-max_value, max_value] (above 0, infinity too), in float (fp64: in double),
 * then in dst's type; an infinity becomes a limit, a NaN stays one. Source: torch.nn.utils.clip_grad_value_. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_value_list(const amp_span *dst, const amp_span *src, size_t n,
                                                      float max_value);

/* *index = first entry with a non-finite element, or -1. */
AMP_API AMP_MUST_CHECK amp_status amp_first_nonfinite(const amp_span *src, size_t n, int64_t *index);

/*
 * What a tensor's values are like, by binades: binades[e - AMP_BINADE_LEAST] has those from 2^e on and below 2^(e + 1),
 * for all of fp32, which contains fp16 and bf16. Whole binades do not tell what a cast loses: 2^-25 becomes 0 in fp16
 * and what is just above does not; from (2 - 2^-11) * 2^15 on fp16 has infinity, bf16 from (2 - 2^-8) * 2^127 on. So
 * each binade counts these as well, which makes 9 KB for a tensor: what belongs to one binade lies together.
 */
#define AMP_BINADE_LEAST (-149)
#define AMP_BINADES 277
typedef struct amp_binade {
    uint64_t elements;  /* |x| in [2^e, 2^(e + 1)) */
    uint64_t powers;    /* of these: 2^e itself */
    uint64_t tops_bf16; /* of these: from (2 - 2^-8) * 2^e on, which bf16 rounds up to 2^(e + 1) */
    uint64_t tops_fp16; /* of these: from (2 - 2^-11) * 2^e on, which fp16 rounds up to 2^(e + 1) */
} amp_binade;

/* Of one tensor, or of several. */
typedef struct amp_statistics {
    uint32_t struct_size;
    int32_t reserved;              /* 0 */
    uint64_t elements;             /* of all kinds: those counted next, and those in binades */
    uint64_t zeros;                /* +0 and -0 */
    uint64_t nans;                 /* of any sign */
    uint64_t plus_infinities, minus_infinities; /* only fp32 and others that came as such: nothing is rounded */
    uint64_t below, above;         /* fp64 alone: finite beyond the binades, not 0 */
    double largest;                /* greatest finite |x|; 0: none */
    double least;                  /* least |x| that is not 0; 0: none that is finite */
    double sum, sum_squares;       /* over all elements: infinite or NaN if one is */
    amp_binade binades[AMP_BINADES]; /* from 2^AMP_BINADE_LEAST on */
} amp_statistics;

#define AMP_STATISTICS_INIT \
    { (uint32_t)sizeof(amp_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, { { 0, 0, 0, 0 } } }

/* Adds to statistics[i] those of src[i], in one pass; statistics begin as AMP_STATISTICS_INIT, are the caller's and
 * may be added to again. Everything but the two sums is exact; these are taken in double in a fixed order from 0 on,
 * as amp_l2norm_list's, and added to what is there: the same bits on every instruction set and number of threads.
 * AMP_ERR_INVALID_ARGUMENT: as above, statistics NULL. AMP_ERR_ABI_MISMATCH: a struct_size. Nothing is written then.
 * Source: the exponents' histograms of Micikevicius et al. 2017, Mixed Precision Training, figures 2 and 3. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_list(const amp_span *src, size_t n, amp_statistics *statistics);

/* Adds `from` to `into`, as if the tensors of both had been added there: counts are exact, sums are added. Errors as
 * amp_statistics_list's. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_merge(amp_statistics *into, const amp_statistics *from);

/* Elements that a cast of x * scale to a 16-bit type would lose; zeros, infinities and NaN are none of them. */
typedef struct amp_losses {
    uint64_t zeros;      /* become 0 */
    uint64_t subnormals; /* |x * scale| is below the type's least normal number, but does not become 0: less precise */
    uint64_t infinities; /* finite, and become infinite */
} amp_losses;

/* *losses = those of the elements that were added to `statistics`, exactly: x * scale is not rounded, then cast to
 * `type`, AMP_FLOAT16 or AMP_BFLOAT16. Scales are powers of two, as loss scales are: other scales, and another type,
 * are AMP_ERR_INVALID_ARGUMENT. AMP_ERR_UNSUPPORTED: elements of fp64 beyond the binades, of which this scale brings
 * some into the type's range, or may: how many is not known. AMP_ERR_ABI_MISMATCH: struct_size. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_losses(const amp_statistics *statistics, amp_dtype type, float scale,
                                                        amp_losses *losses);

/* What amp_matmul does to each element before it is rounded to d's type. */
enum {
    AMP_ACTIVATION_NONE = 0,     /* nothing */
    AMP_ACTIVATION_RELU = 1,     /* max(x, 0); a NaN stays one */
    AMP_ACTIVATION_GELU = 2,     /* x / 2 * (1 + erf(x / sqrt 2)) */
    AMP_ACTIVATION_GELU_TANH = 3 /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
};

/* Who computes a matmul. */
enum {
    AMP_MATMUL_AUTO = 0,    /* what the environment variable AMP_MATMUL_BACKEND says, else whoever is faster */
    AMP_MATMUL_BUILTIN = 1, /* libamp itself */
    AMP_MATMUL_ONEDNN = 2   /* libamp_onednn.so; an error where it cannot be had, or cannot do it */
};

/* amp_matmul_args.flags: what a product on a device may do for the sake of speed. CPUs do neither. */
enum {
    /* fp32 operands are rounded to tf32, 11 significant bits, where there are units for it */
    AMP_MATMUL_TF32 = 1 << 0,
    /* ReLU is cuBLASLt's, which does not promise to keep a NaN: an overflow may stay unseen */
    AMP_MATMUL_FAST_RELU = 1 << 1
};

/*
 * d = activation(alpha * op(a) * op(b) + beta * c + bias), row-major: op(a) is [m, k], op(b) [k, n], c and d [m, n],
 * bias [n] or NULL. op transposes where transpose_x is 1: then a is stored [k, m] and b [n, k]. ld_x is the distance
 * between rows in elements, 0 for compact. c NULL: beta is ignored; c may be d. Operands are widened to float and
 * accumulated in float; the result is rounded once to d's type. fp32, fp16, bf16 in any mixture. beta 0 does not read
 * c, alpha 0 does not read a and b (BLAS). k = 0 gives beta * c + bias.
 *
 * batch: so many products with the same sizes; 0 is 1. stride_x is the distance between the operands of one product and
 * those of the next, in elements; 0 for a, b, c: one for all. d's must not overlap: one after the other, or side by
 * side in longer rows (stride_d >= n, ld_d >= batch of them). The bias is one for all.
 *
 * b_id: weights that are used again may be kept packed. A name of the caller's for the numbers of b, 0 for none;
 * b_version changes whenever they do. Equal pairs promise equal op(b), at whatever address; packs of the id's other
 * versions are dropped. Backends that do not pack ignore it.
 *
 * device: where all operands are, as an amp_tensor_view says it: type 0 or 1 the CPU, 2 CUDA. On CUDA the product is
 * started on `stream`, which is the host's, and nothing waits for it: so one implementation of an op serves tensors on
 * either. The rules are those of amp_device_matmul (amp_device.h), which has backward forms, workspaces and measuring
 * beyond this.
 *
 * AMP_ERR_INVALID_ARGUMENT: negative dimensions, rows longer than their ld, other types, transpose_x other than 0 and
 * 1, pointers that are needed and NULL, c == d with another type, ld or stride, overlapping d, unknown activation or
 * backend. AMP_ERR_ABI_MISMATCH: struct_size. AMP_ERR_NO_MEMORY: at most 1.1 MiB of scratch a thread (a backend that
 * needs more falls back to the built-in code). AMP_ERR_BACKEND, AMP_ERR_NO_DEVICE, AMP_ERR_UNSUPPORTED: only where a
 * backend is asked for by name, or on a device. Nothing is written on an error.
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
    int64_t batch; /* products of this size; 0 is 1 */
    int64_t stride_a, stride_b, stride_c, stride_d; /* elements from product to product; 0 for a, b, c: one for all */
    int32_t activation; /* AMP_ACTIVATION_... */
    int32_t backend; /* AMP_MATMUL_... */
    uint64_t b_id, b_version; /* weights that may be kept packed; b_id 0: none */
    amp_device device; /* where the operands are; type 0 or 1: the CPU */
    void *stream;      /* on a device: the stream, never NULL; else ignored */
    uint32_t flags;    /* AMP_MATMUL_TF32, AMP_MATMUL_FAST_RELU */
    int32_t reserved;  /* 0 */
} amp_matmul_args;

#define AMP_MATMUL_ARGS_INIT                                                                                           \
    { (uint32_t)sizeof(amp_matmul_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1.0f, \
      0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0 }, NULL, 0, 0 }

/* The product that amp_matmul_args describes. */
AMP_API AMP_MUST_CHECK amp_status amp_matmul(const amp_matmul_args *args);

/* Who would compute this product, how, and why, in words: "onednn (oneDNN 2.6.3): bf16, brg:avx512_core_bf16, 1
 * thread". Computes nothing, but loads what amp_matmul would load. text, capacity and length as in amp_explain; errors
 * as amp_matmul's. */
AMP_API AMP_MUST_CHECK amp_status amp_matmul_explain(const amp_matmul_args *args, char *text, size_t capacity,
                                                     size_t *length);

/*
 * Backends: libraries beside libamp that do some work faster or on other devices. One is loaded when it is first
 * needed, or by amp_backend_load, once in the life of the process, and never unloaded. The file libamp_<name>.so is
 * looked for in the folders of the environment variable AMP_BACKEND_PATH (absolute, separated by ':'), then beside
 * libamp itself and in the folder libamp there; the first one that is there decides. What cannot be used leaves libamp
 * as it is, and says why. See docs/internals/backends.md.
 */
typedef int32_t amp_backend_state;
enum {
    AMP_BACKEND_NOT_TRIED = 0, /* nobody needed it yet */
    AMP_BACKEND_READY = 1,       /* loaded, and used where it is the better choice */
    AMP_BACKEND_NOT_FOUND = 2,   /* there is no such file where we look */
    /* the file is broken, foreign, too old or too new, or needs a library that is missing */
    AMP_BACKEND_CANNOT_LOAD = 3,
    AMP_BACKEND_NO_DEVICE = 4    /* it loads, but has nothing to work with on this machine */
};

/* The texts are static, and never change once state is not NOT_TRIED; "" where there is nothing to say. */
typedef struct amp_backend_info {
    uint32_t struct_size;
    amp_backend_state state; /* AMP_BACKEND_* */
    const char *name;    /* "onednn" */
    const char *version; /* of what is behind it: "oneDNN 2.6.3" */
    const char *file;    /* that was tried */
    const char *text;    /* why it is not ready, what to do, and warnings */
} amp_backend_info;

#define AMP_BACKEND_INFO_INIT \
    { (uint32_t)sizeof(amp_backend_info), 0, NULL, NULL, NULL, NULL }

/* Loads the backend "onednn" or "cuda" now, so that no later call has to. AMP_ERR_NOT_FOUND: libamp knows no backend of
 * this name. AMP_ERR_BACKEND: NOT_FOUND and CANNOT_LOAD. AMP_ERR_NO_DEVICE. Asking again gives the same answer. */
AMP_API AMP_MUST_CHECK amp_status amp_backend_load(const char *name);

/* Every backend that libamp knows, and what became of it. Fills at most `capacity` entries, whose first one's
 * struct_size holds for all; *count: how many there are. Loads nothing. */
AMP_API AMP_MUST_CHECK amp_status amp_get_backends(amp_backend_info *infos, size_t capacity, size_t *count);

/* Single values, bit patterns in and out; usable to check a host's own conversions. */
AMP_API uint16_t amp_float_to_half(float value);
AMP_API float amp_half_to_float(uint16_t bits);
AMP_API uint16_t amp_float_to_bfloat16(float value);
AMP_API float amp_bfloat16_to_float(uint16_t bits);

/*
 * Instruction sets that there are kernels for, as flags. Beyond them there is scalar code for any machine. Which set is
 * used changes no bit of any result but matmul's.
 */
#define AMP_CPU_SSE2 UINT32_C(0x4)   /* x86-64, every one */
#define AMP_CPU_AVX2 UINT32_C(0x1)   /* x86-64: AVX2, F16C and FMA */
#define AMP_CPU_AVX512 UINT32_C(0x2) /* x86-64: these and AVX-512 F, BW, DQ and VL */
#define AMP_CPU_NEON UINT32_C(0x100) /* arm64, every one */

/* The sets that are in use: those of this machine within the mask. */
AMP_API uint32_t amp_cpu_flags(void);

/*
 * Lowers the choice to sets within `mask`, for the whole process, from each thread's next call of a kernel on;
 * UINT32_MAX lifts it. For bug hunting and comparisons. Until it is called, the mask is what the environment variable
 * AMP_CPU_MASK says at libamp's first need: a number ("0x1") or names ("sse2", "sse2,avx2", "neon", "none"), in small
 * letters and without blanks; not set, or anything else: no limit. amp_cpu_flags says what came of it. Any thread.
 */
AMP_API void amp_set_cpu_mask(uint32_t mask);

/*
 * Threads that work on one call: the calling one and up to n - 1 of libamp's own; 1, the default, is the calling one
 * alone. For lists, matmul and fused optimizers, for the whole process, from each thread's next call on. 0: as many as
 * there are processors that the calling thread may run on now. At most 256. Until it is called, the number is what the
 * environment variable AMP_NUM_THREADS says at libamp's first need, by the same rules; not set, or not a number: 1.
 *
 * Libamp starts a thread when a call first has use for it: a list of less than some 200,000 elements, or a small
 * product, has none. Its threads sleep between calls, run none of the host's code, take none of its signals and inherit
 * the processors that the thread may run on which made the call. One call at a time has them; one that comes meanwhile
 * from another thread does its work alone. Where threads cannot be started, calls do with fewer. A forked child starts
 * its own.
 *
 * Threads beyond n - 1 have ended when amp_set_num_threads returns, which waits for a call that is using them: with 1
 * there is none left. No result but oneDNN's matmul's depends on their number. Any thread. AMP_ERR_INVALID_ARGUMENT: n
 * below 0.
 */
AMP_API AMP_MUST_CHECK amp_status amp_set_num_threads(int32_t n);

/* What amp_set_num_threads, or the environment, asked for: 1 to 256. */
AMP_API int32_t amp_get_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* AMP_KERNELS_H */
