/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of libamp alone, for hosts that want no policy: casts, scaling with a check for overflow, norms,
 * statistics, and matmul over 16-bit operands. One call works on a list of any number of tensors, each of any size from
 * 0. CPU memory.
 *
 * Numbers. Conversions round to nearest even and keep subnormals. Out-of-range values become infinity, and a NaN
 * becomes a quiet NaN of the same sign (a cast to the same type copies the bits). Arithmetic is IEEE float in the
 * default rounding mode, without contraction of multiply and add. The floating-point environment of the caller
 * (rounding mode, flush-to-zero, traps, flags) has no effect and is restored. Results do not depend on the instruction
 * set or the number of threads, except for matmul: docs/reference/numerics.md has its bound. "Non-finite" means:
 * infinite or NaN after the arithmetic and the conversion to the type of the destination.
 *
 * Threads. All functions may run on any number of threads at once, on different destinations.
 */
#ifndef AMP_KERNELS_H
#define AMP_KERNELS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of a list: `size` elements of the floating type `dtype` at `data`, aligned for their type. Borrowed. data
 * may be NULL only if size is 0. */
typedef struct amp_span {
    void *data;       /* the first element */
    uint64_t size;    /* number of elements */
    amp_dtype dtype;  /* AMP_FLOAT32, ... */
    int32_t reserved; /* 0 */
} amp_span;

/* Rules of the list functions. dst[i] and the sources at i have equal sizes, and types may differ from entry to entry.
 * dst[i] may be exactly the elements of a source of the same type (in place). Any other overlap is undefined. found_inf
 * (may be NULL) is set to 1.0f if an element of any dst is non-finite, and otherwise left alone, like
 * _amp_foreach_non_finite_check_and_unscale_ of PyTorch. All elements are written in either case.
 * AMP_ERR_INVALID_ARGUMENT, with nothing written: NULL lists with n > 0, unequal sizes, a type that is not floating,
 * data NULL with elements, a size beyond the address space, reserved not 0. */

/* Casts: dst = src in the type of dst. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_list(const amp_span *dst, const amp_span *src, size_t n);

/* Casts at random: dst (bf16) = src (fp32, fp16 or bf16), rounded up or down with probabilities that keep the mean to
 * 2^-16 of a unit, as AMP_TENSORS_STOCHASTIC rounds parameters (docs/reference/stochastic-rounding.md). The random bits
 * are a function of the seed, the entry i and the element, so every instruction set and number of threads gives the
 * same bytes. Infinities and NaNs are cast as by amp_cast_list. */
AMP_API AMP_MUST_CHECK amp_status amp_cast_random(const amp_span *dst, const amp_span *src, size_t n, uint64_t seed);

/* Copies: dst = src, bit for bit. dst[i] and src[i] must have the same type. */
AMP_API AMP_MUST_CHECK amp_status amp_copy_list(const amp_span *dst, const amp_span *src, size_t n);

/* Writes zeros: dst = +0. */
AMP_API AMP_MUST_CHECK amp_status amp_zero_list(const amp_span *dst, size_t n);

/* Scales: dst = src * scale, computed in float (fp64 sources: in double). Source: Apex multi_tensor_scale. */
AMP_API AMP_MUST_CHECK amp_status amp_scale_list(const amp_span *dst, const amp_span *src, size_t n, float scale,
                                                 float *found_inf);

/* Adds: dst = a * x + b * y. Products and sum are each rounded to float (to double if x or y is fp64). Source: Apex
 * multi_tensor_axpby. */
AMP_API AMP_MUST_CHECK amp_status amp_axpby_list(const amp_span *dst, float a, const amp_span *x, float b,
                                                 const amp_span *y, size_t n, float *found_inf);

/* Writes the L2 norm over all elements to *norm, and that of src[i] to norms[i] (each pointer may be NULL). Squares are
 * summed in a fixed order, and the root is rounded once, to infinity only if it is beyond fp32: fp32 in double, fp16
 * and bf16 in float by eights and then in double, which is less than 3 units in the last place off, for any values
 * (docs/reference/numerics.md). Source: Apex multi_tensor_l2norm. */
AMP_API AMP_MUST_CHECK amp_status amp_l2norm_list(const amp_span *src, size_t n, float *norm, float *norms);

/* Clips by norm: dst = src * min(1, max_norm / (norm + 1e-6)), so that the L2 norm over all elements is at most
 * max_norm (above 0, may be infinity). *norm (may be NULL): the norm of src. If the norm is not finite, dst is a copy
 * of src. In place, nothing is written if the factor is 1. Sources: torch.nn.utils.clip_grad_norm_ (which writes NaNs
 * if the norm is not finite), Apex clip_grad_norm_. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_norm_list(const amp_span *dst, const amp_span *src, size_t n, float max_norm,
                                                     float *norm);

/* Clamps each element to [-max_value, max_value] (above 0, may be infinity) in float (fp64: in double), and converts it
 * to the type of dst. An infinity becomes the limit, a NaN stays NaN. Source: torch.nn.utils.clip_grad_value_. */
AMP_API AMP_MUST_CHECK amp_status amp_clip_value_list(const amp_span *dst, const amp_span *src, size_t n,
                                                      float max_value);

/* Writes the index of the first entry with a non-finite element to *index, or -1 if there is none. */
AMP_API AMP_MUST_CHECK amp_status amp_first_nonfinite(const amp_span *src, size_t n, int64_t *index);

/*
 * The values of a tensor in one binade: binades[e - AMP_BINADE_LEAST] counts 2^e <= |x| < 2^(e + 1), for all of fp32,
 * which includes fp16 and bf16. The losses of a cast need finer counts: 2^-25 becomes 0 in fp16 but the next larger
 * value does not, and fp16 has infinity from (2 - 2^-11) * 2^15, bf16 from (2 - 2^-8) * 2^127. So each binade has four
 * counts, 9 KB for a tensor. They lie together, since one element changes several of them.
 */
#define AMP_BINADE_LEAST (-149)
#define AMP_BINADES 277
typedef struct amp_binade {
    uint64_t elements;  /* |x| in [2^e, 2^(e + 1)) */
    uint64_t powers;    /* the elements with |x| = 2^e */
    uint64_t tops_bf16; /* the elements from (2 - 2^-8) * 2^e, which bf16 rounds up to 2^(e + 1) */
    uint64_t tops_fp16; /* the elements from (2 - 2^-11) * 2^e, which fp16 rounds up to 2^(e + 1) */
} amp_binade;

/* Statistics of one or several tensors. */
typedef struct amp_statistics {
    uint32_t struct_size;
    int32_t reserved;              /* 0 */
    uint64_t elements;             /* number of elements of any kind */
    uint64_t zeros;                /* +0 and -0 */
    uint64_t nans;                 /* NaNs of either sign */
    uint64_t plus_infinities, minus_infinities; /* infinities in the source (values are not rounded) */
    uint64_t below, above;         /* fp64 only: finite elements below and above the binades, without 0 */
    double largest;                /* largest finite |x| (0: none) */
    double least;                  /* least finite |x| above 0 (0: none) */
    double sum, sum_squares;       /* over all elements (not finite if an element is not) */
    amp_binade binades[AMP_BINADES]; /* counts from 2^AMP_BINADE_LEAST on */
} amp_statistics;

#define AMP_STATISTICS_INIT \
    { (uint32_t)sizeof(amp_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, { { 0, 0, 0, 0 } } }

/* Adds the statistics of src[i] to statistics[i], in one pass. The caller owns `statistics`, which starts as
 * AMP_STATISTICS_INIT and may be added to again. Counts and extremes are exact. The two sums are taken in a fixed
 * order, fp32 and 16 bits in float by eights and then in double, from 0, and then added: the same bits on every
 * instruction set and number of threads, within 2^-21 of the sum of magnitudes (docs/reference/numerics.md).
 * AMP_ERR_INVALID_ARGUMENT: as above, or statistics is NULL. AMP_ERR_ABI_MISMATCH: a wrong struct_size. Nothing is
 * written on an error. Source: the histograms of exponents in Micikevicius et al. 2017, Mixed Precision Training,
 * figures 2 and 3. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_list(const amp_span *src, size_t n, amp_statistics *statistics);

/* The largest `every` of amp_statistics_sample. */
#define AMP_SAMPLE_MOST 1024

/*
 * Estimates the statistics of src[i] in little more time than a check for infinities, and adds them to statistics[i].
 * Of every whole block of 65,536 elements whose elements are all finite, one cache line (64 bytes from the block's
 * start) of each `every` consecutive lines is counted, and each of its elements counts as `every`. Exact: elements,
 * nans, both infinities and `largest`, and everything of other blocks, of lines behind the last `every` of a block, and
 * of shorter tensors. So at every 1 (AMP_SAMPLE_MOST at most) it is amp_statistics_list. `seed` selects the lines, the
 * same on every instruction set and number of threads.
 *
 * Error: over all seeds, an estimated count of any set of values (a binade, zeros, losses) has the exact count as its
 * mean, and so do the sums. It differs from it by more than a share t of all elements with a probability of at most
 * 2 exp(-2 t^2 g), where g is the number of counted lines (Hoeffding 1963): with every 16, of 16 million fp32 elements,
 * more than 1.1 % in one of a million cases. `least` is the least of the counted elements.
 *
 * AMP_ERR_INVALID_ARGUMENT: every is 0 or above AMP_SAMPLE_MOST. Others as amp_statistics_list.
 */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_sample(const amp_span *src, size_t n, uint32_t every, uint64_t seed,
                                                        amp_statistics *statistics);

/* Adds `from` to `into`, as if the tensors of both had been added to `into`. Counts and extremes are exact, sums are
 * added. Errors as amp_statistics_list. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_merge(amp_statistics *into, const amp_statistics *from);

/* Elements that lose precision or range in a cast of x * scale to a 16-bit type. Zeros, infinities and NaN are not
 * counted. */
typedef struct amp_losses {
    uint64_t zeros;      /* elements that become 0 */
    uint64_t subnormals; /* elements below the least normal number of the type that do not become 0: less precise */
    uint64_t infinities; /* finite elements that become infinite */
} amp_losses;

/* Writes to *losses the losses of a cast of x * scale to `type` (AMP_FLOAT16 or AMP_BFLOAT16), over the elements that
 * were added to `statistics`. Counts are exact: x * scale is not rounded before the cast. AMP_ERR_INVALID_ARGUMENT:
 * another type, or a scale that is not a power of two. AMP_ERR_UNSUPPORTED: fp64 elements beyond the binades may come
 * into the range of the type with this scale, so that the counts are unknown. AMP_ERR_ABI_MISMATCH: a wrong
 * struct_size. */
AMP_API AMP_MUST_CHECK amp_status amp_statistics_losses(const amp_statistics *statistics, amp_dtype type, float scale,
                                                        amp_losses *losses);

/* The activation of amp_matmul, applied to each element before it is rounded to the type of d. */
enum {
    AMP_ACTIVATION_NONE = 0,     /* identity */
    AMP_ACTIVATION_RELU = 1,     /* max(x, 0), NaN for NaN */
    AMP_ACTIVATION_GELU = 2,     /* x / 2 * (1 + erf(x / sqrt 2)) */
    AMP_ACTIVATION_GELU_TANH = 3 /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
};

/* The implementation of a matmul. */
enum {
    AMP_MATMUL_AUTO = 0,    /* the value of the environment variable AMP_MATMUL_BACKEND, or else the fastest */
    AMP_MATMUL_BUILTIN = 1, /* the kernels of libamp */
    AMP_MATMUL_ONEDNN = 2   /* libamp_onednn.so, or an error if it is missing or cannot compute the product */
};

/* Flags of amp_matmul_args: inexact but faster products on a device. No effect on CPUs. */
enum {
    /* fp32 operands are rounded to tf32, with 11 significant bits, if the device has units for it */
    AMP_MATMUL_TF32 = 1 << 0,
    /* ReLU of cuBLASLt, which may turn a NaN into 0, so that an overflow can go unseen */
    AMP_MATMUL_FAST_RELU = 1 << 1
};

/*
 * One matmul: d = activation(alpha * op(a) * op(b) + beta * c + bias), row-major, with op(a) [m, k], op(b) [k, n], c
 * and d [m, n], bias [n] or NULL. With transpose_x = 1 op transposes: a is stored as [k, m], b as [n, k]. ld_x is the
 * distance between rows in elements (0: compact). c NULL: beta is ignored. c may be d. Types are fp32, fp16 and bf16 in
 * any mixture. Operands are widened to float, sums are float, and the result is rounded once to the type of d. With
 * beta 0, c is not read, with alpha 0, a and b are not (as in BLAS). k = 0 gives beta * c + bias.
 *
 * batch: the number of products of these sizes (0 means 1). stride_x: the distance between an operand of one product
 * and that of the next, in elements (0 for a, b, c: shared by all). Destinations must not overlap: d's lie one after
 * the other, or side by side in longer rows (stride_d >= n, ld_d >= batch of them). All products share the bias.
 *
 * b_id: allows a backend to keep weights packed. It is a number of the caller that names the values of b (0: none), and
 * b_version changes whenever they change. Equal pairs promise equal op(b), at any address. Packs of other versions of
 * the id are dropped. Backends that do not pack ignore it.
 *
 * device: the device of all operands, as in amp_tensor_view: type 0 or 1 is the CPU, 2 CUDA. On CUDA the product is
 * started on `stream`, a stream of the host, and the call returns without waiting, so that one implementation of an op
 * serves tensors on either. The rules are those of amp_device_matmul (amp_device.h), which also has backward forms,
 * workspaces and measuring.
 *
 * AMP_ERR_INVALID_ARGUMENT: negative dimensions, rows longer than their ld, other types, transpose_x other than 0 and
 * 1, NULL for a needed pointer, c == d with another type, ld or stride, overlapping d, unknown activation or backend.
 * AMP_ERR_ABI_MISMATCH: a wrong struct_size. AMP_ERR_NO_MEMORY: no scratch memory, at most 1.1 MiB a thread (a backend
 * that needs more falls back to the built-in code). AMP_ERR_BACKEND, AMP_ERR_NO_DEVICE, AMP_ERR_UNSUPPORTED: only if
 * `backend` names one, or on a device. Nothing is written on an error.
 */
typedef struct amp_matmul_args {
    uint32_t struct_size;
    int32_t transpose_a, transpose_b; /* 0 or 1 */
    amp_dtype a_dtype, b_dtype, c_dtype, d_dtype, bias_dtype; /* types, of c and bias only if they are not NULL */
    int64_t m, n, k; /* extents of op(a), op(b) and d */
    const void *a, *b, *c, *bias; /* the operands, borrowed */
    void *d; /* the result, written */
    int64_t ld_a, ld_b, ld_c, ld_d; /* elements from row to row (0: compact) */
    float alpha, beta; /* factors of the product and of c */
    int64_t batch; /* number of products of this size (0 means 1) */
    int64_t stride_a, stride_b, stride_c, stride_d; /* elements from product to product (0 for a, b, c: shared) */
    int32_t activation; /* AMP_ACTIVATION_* */
    int32_t backend; /* AMP_MATMUL_AUTO, AMP_MATMUL_BUILTIN or AMP_MATMUL_ONEDNN */
    uint64_t b_id, b_version; /* identity of weights that may be kept packed (b_id 0: none) */
    amp_device device; /* device of the operands (type 0 or 1: the CPU) */
    void *stream;      /* stream (on a device never NULL, on the CPU ignored) */
    uint32_t flags;    /* AMP_MATMUL_TF32, AMP_MATMUL_FAST_RELU */
    int32_t reserved;  /* 0 */
} amp_matmul_args;

#define AMP_MATMUL_ARGS_INIT                                                                                           \
    { (uint32_t)sizeof(amp_matmul_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 1.0f, \
      0.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0, 0 }, NULL, 0, 0 }

/* Computes the product that `args` describes. */
AMP_API AMP_MUST_CHECK amp_status amp_matmul(const amp_matmul_args *args);

/* Describes in words the implementation that amp_matmul would use, and the reason: "onednn (oneDNN 2.6.3): bf16,
 * brg:avx512_core_bf16, 1 thread". It computes nothing, but loads the backend that amp_matmul would load. text,
 * capacity and length as in amp_explain. Errors as amp_matmul. */
AMP_API AMP_MUST_CHECK amp_status amp_matmul_explain(const amp_matmul_args *args, char *text, size_t capacity,
                                                     size_t *length);

/*
 * The state of a backend: a library beside libamp that does some work faster or on other devices. It is loaded once in
 * the life of the process, at the first need or by amp_backend_load, and never unloaded. libamp_<name>.so is searched
 * in the folders of the environment variable AMP_BACKEND_PATH (absolute, separated by ':'), then beside libamp, then in
 * the folder libamp there. The first file found is used. If it is unusable, libamp works without it and reports the
 * reason. See docs/internals/backends.md.
 */
typedef int32_t amp_backend_state;
enum {
    AMP_BACKEND_NOT_TRIED = 0, /* not needed yet */
    AMP_BACKEND_READY = 1,       /* loaded, and used where it is faster */
    AMP_BACKEND_NOT_FOUND = 2,   /* no such file in the searched folders */
    /* the file is broken, foreign, too old or too new, or a library that it needs is missing */
    AMP_BACKEND_CANNOT_LOAD = 3,
    AMP_BACKEND_NO_DEVICE = 4    /* loaded, but this machine has no device for it */
};

/* A backend. Texts are static, constant once state is not NOT_TRIED, and "" if there is nothing to report. */
typedef struct amp_backend_info {
    uint32_t struct_size;
    amp_backend_state state; /* AMP_BACKEND_* */
    const char *name;    /* its name: "onednn" */
    const char *version; /* version of the library behind it: "oneDNN 2.6.3" */
    const char *file;    /* path of the file that was tried */
    const char *text;    /* why it is not ready, the remedy, and warnings */
} amp_backend_info;

#define AMP_BACKEND_INFO_INIT \
    { (uint32_t)sizeof(amp_backend_info), 0, NULL, NULL, NULL, NULL }

/* Loads the backend "onednn" or "cuda" now, instead of at its first use. Later calls return the same status.
 * AMP_ERR_NOT_FOUND: unknown name. AMP_ERR_BACKEND: AMP_BACKEND_NOT_FOUND or AMP_BACKEND_CANNOT_LOAD.
 * AMP_ERR_NO_DEVICE: AMP_BACKEND_NO_DEVICE. */
AMP_API AMP_MUST_CHECK amp_status amp_backend_load(const char *name);

/* Lists every backend that libamp knows, with its state. Fills at most `capacity` entries, with the struct_size of the
 * first as their stride, and writes the number of backends to *count. Loads nothing. */
AMP_API AMP_MUST_CHECK amp_status amp_get_backends(amp_backend_info *infos, size_t capacity, size_t *count);

/* Convert one value to or from its bit pattern. Hosts can check their own conversions with them. */
AMP_API uint16_t amp_float_to_half(float value);
AMP_API float amp_half_to_float(uint16_t bits);
AMP_API uint16_t amp_float_to_bfloat16(float value);
AMP_API float amp_bfloat16_to_float(uint16_t bits);

/*
 * Instruction sets with kernels of their own, as flags. Any other machine runs scalar code. Only matmul results depend
 * on the set in use.
 */
#define AMP_CPU_SSE2 UINT32_C(0x4)   /* every x86-64 */
#define AMP_CPU_AVX2 UINT32_C(0x1)   /* x86-64: AVX2, F16C and FMA */
#define AMP_CPU_AVX512 UINT32_C(0x2) /* x86-64: AVX2, F16C, FMA and AVX-512 F, BW, DQ and VL */
#define AMP_CPU_NEON UINT32_C(0x100) /* every arm64 */

/* Returns the instruction sets in use: those of this machine within the mask. */
AMP_API uint32_t amp_cpu_flags(void);

/*
 * Limits the instruction sets to those in `mask` (UINT32_MAX: no limit), for the whole process, from the next kernel
 * call of each thread on. It helps to find bugs and to compare. Before the first call the mask is the value of the
 * environment variable AMP_CPU_MASK at the first use of libamp: a number ("0x1") or names ("sse2", "sse2,avx2", "neon",
 * "none") in lower case without blanks. Unset, or anything else: no limit. amp_cpu_flags returns the result. Any
 * thread.
 */
AMP_API void amp_set_cpu_mask(uint32_t mask);

/*
 * Sets the number of threads that work on one call of a list function, a matmul or a fused optimizer: the calling
 * thread and up to n - 1 threads of libamp. For the whole process, from the next call of each thread on. 1 (the
 * default): the calling thread alone. 0: as many as there are processors that the calling thread may run on now. More
 * than 256 means 256. Before the first call the number is the value of the environment variable AMP_NUM_THREADS at the
 * first use of libamp, by the same rules. Unset, or not a number: 1.
 *
 * libamp starts a thread at the first call that can use it, which a list below some 200,000 elements or a small product
 * cannot. The threads sleep between calls, run no code of the host, take none of its signals and inherit the processors
 * that the calling thread may run on. One call at a time uses them, and a concurrent call from another thread works
 * alone. If threads cannot be started, calls use fewer. A forked child starts its own.
 *
 * The function waits for a call that uses the threads. When it returns, threads beyond n - 1 have ended, with 1 all of
 * them. Only oneDNN matmul results depend on the number. Any thread. AMP_ERR_INVALID_ARGUMENT: n below 0.
 */
AMP_API AMP_MUST_CHECK amp_status amp_set_num_threads(int32_t n);

/* Returns the number set by amp_set_num_threads or the environment: 1 to 256. */
AMP_API int32_t amp_get_num_threads(void);

#ifdef __cplusplus
}
#endif

#endif /* AMP_KERNELS_H */
