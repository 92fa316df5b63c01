/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list functions of amp_kernels.h and amp_optim.h for tensors in device memory. For CUDA the backend "cuda" has
 * them, which the first amp_device_list_open loads. Other devices are served by the host (amp_serve.h).
 *
 * Calls are asynchronous on the stream of the caller: they never wait for the device, and no result is copied to the
 * host. Scales, norms, found_inf and step counts are in device memory too, so that one call uses the results of another
 * and a whole iteration can be captured in a CUDA graph. A call is one kernel launch for any number of tensors of any
 * types and sizes. Norms and statistics take two launches, a step of an optimizer two, of LAMB four, plus two for each
 * list of norms that the rule needs and the caller did not pass (gradient norms for LAMB, NovoGrad and LARC, parameter
 * norms for LARC). A call reads its lists from a table in device memory, which is rewritten only if an address, a size
 * or a type differs from the call before.
 *
 *     amp_device_list *list;
 *     amp_device_list_open((amp_device){ 2, 0 }, &list);
 *     amp_factor unscale = { scale_on_device, 0.0f, AMP_FACTOR_INVERSE };
 *     amp_device_scale(list, stream, grads, grads, n, &unscale, found_inf_on_device);
 *
 * Numbers. Elementwise results have the bits of the CPU functions. The order of sums depends on the lists alone, so
 * that every run and every device gives the same bits, within the bound of docs/reference/numerics.md of the CPU
 * results.
 *
 * Captured graphs. A captured call keeps its table and its scratch memory unchanged until the list is closed, and later
 * calls with other lists get new ones. Close a list only after the last run of every graph that uses it.
 */
#ifndef AMP_DEVICE_H
#define AMP_DEVICE_H

#include "amp_optim.h"
#include "amp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tables for one call site of a program: one list for the casts of a step, another one for its unscaling. One
 * thread at a time may use a list. Its calls must reach the device in order: on one stream, or on streams that wait for
 * each other. */
typedef struct amp_device_list amp_device_list;

/* Opens a list for a device: type 2 (kDLCUDA) with the CUDA device number as id, or AMP_DEVICE_SERVED. The caller
 * closes it with amp_device_list_close. No function here changes the current device of the caller. AMP_ERR_BACKEND: no
 * backend. AMP_ERR_NO_DEVICE: no such device, or the backend has no code for it. AMP_ERR_UNSUPPORTED: another type of
 * device. AMP_ERR_NO_MEMORY. */
AMP_API AMP_MUST_CHECK amp_status amp_device_list_open(amp_device device, amp_device_list **list);

/* Waits for the work on the stream of the last call, which must still exist and not be captured, and frees the list.
 * NULL: no effect. */
AMP_API void amp_device_list_close(amp_device_list *list);

/* The meaning of the number at amp_factor.pointer. */
enum {
    AMP_FACTOR_AS_IT_IS = 0, /* the factor itself */
    AMP_FACTOR_INVERSE = 1,  /* the inverse of the factor, such as the loss scale */
    AMP_FACTOR_CLIP = 2      /* a norm: the factor is the one of amp_clip_norm_list that brings it down to `value`, at
                                most 1 */
};

/* A factor, which may be in device memory. */
typedef struct amp_factor {
    const float *pointer; /* device memory, read when the kernel runs (NULL: `value` is the factor) */
    float value;          /* the factor if pointer is NULL, or the limit of AMP_FACTOR_CLIP */
    int32_t how; /* AMP_FACTOR_AS_IT_IS, AMP_FACTOR_INVERSE or AMP_FACTOR_CLIP */
} amp_factor;

/*
 * Rules of the functions below. `stream` is a cudaStream_t of the caller on the device of the list. NULL, the legacy
 * default stream on which all work waits for all other work, is an error. Spans, found_inf and norms are as in the CPU
 * functions, in memory that the device can reach. found_inf, norm and norms may be NULL. AMP_ERR_INVALID_ARGUMENT: as
 * there, or an address that is not aligned for its type. AMP_ERR_NO_MEMORY: no host or device memory.
 * AMP_ERR_UNSUPPORTED: more than 2^31 - 1 tensors or chunks of 16,384 elements. AMP_ERR_BACKEND: an error of CUDA, in
 * words, possibly of earlier work on the device. On all other errors nothing was started.
 */

/* Casts, as amp_cast_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_cast(amp_device_list *list, void *stream, const amp_span *dst,
                                                  const amp_span *src, size_t n);

/* Writes +0 to every element of dst. */
AMP_API AMP_MUST_CHECK amp_status amp_device_zero(amp_device_list *list, void *stream, const amp_span *dst, size_t n);

/* Scales, as amp_scale_list. With AMP_FACTOR_CLIP dst and src must be the same, and nothing is written if the factor is
 * 1. */
AMP_API AMP_MUST_CHECK amp_status amp_device_scale(amp_device_list *list, void *stream, const amp_span *dst,
                                                   const amp_span *src, size_t n, const amp_factor *scale,
                                                   float *found_inf);

/* Adds, as amp_axpby_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_axpby(amp_device_list *list, void *stream, const amp_span *dst,
                                                   const amp_factor *a, const amp_span *x, const amp_factor *b,
                                                   const amp_span *y, size_t n, float *found_inf);

/* Checks gradients, as amp_check_list. scale and factor may be NULL, which means 1. With both NULL it is
 * amp_l2norm_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_check(amp_device_list *list, void *stream, const amp_span *src, size_t n,
                                                   const amp_factor *scale, const amp_factor *factor, float *norm,
                                                   float *norms, float *found_inf);

/* Adds statistics, as amp_statistics_list, in two launches. The n `statistics` are in device memory too, initialized by
 * the caller with copies of AMP_STATISTICS_INIT. Their struct_size is not checked. Counts and extremes equal those of
 * the CPU, the sums are added in another order. */
AMP_API AMP_MUST_CHECK amp_status amp_device_statistics(amp_device_list *list, void *stream, const amp_span *src,
                                                        size_t n, amp_statistics *statistics);

/* Steps an optimizer, as amp_optim_list. The lists of `tensors` are in host memory, everything else that it points to
 * is in device memory: steps, found_inf, inv_scale, grad_norm, grad_norms. The device itself reads found_inf and steps
 * or skips. */
AMP_API AMP_MUST_CHECK amp_status amp_device_optim(amp_device_list *list, void *stream, const amp_optim *rule,
                                                   const amp_optim_tensors *tensors);

/* Splits FP32 values, as amp_split_list, in one launch. The list `remainders` is in host memory, the remainders in
 * device memory. The tie bit of an element that is no tie is not written. */
AMP_API AMP_MUST_CHECK amp_status amp_device_split(amp_device_list *list, void *stream, const amp_span *dst,
                                                   void *const *remainders, const amp_span *src, size_t n);

/* Joins split values, as amp_join_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_join(amp_device_list *list, void *stream, const amp_span *dst,
                                                  const amp_span *src, void *const *remainders, size_t n);

/* Packs one tensor, as amp_pack, into the same bytes, in one launch. All that `args` points to is in device memory. */
AMP_API AMP_MUST_CHECK amp_status amp_device_pack(amp_device_list *list, void *stream, const amp_pack_args *args);

/* Unpacks one tensor, as amp_unpack. */
AMP_API AMP_MUST_CHECK amp_status amp_device_unpack(amp_device_list *list, void *stream, const amp_unpack_args *args);

/*
 * Products on a device, by cuBLASLt, which is loaded for the first of them (docs/internals/backends.md). Sums are FP32,
 * and fp32 operands are multiplied in full precision unless AMP_MATMUL_TF32 allows tf32.
 */

/* The bias gradient of a product: a sum, rounded once. cuBLASLt computes it in its own order and precision if its
 * epilogue can (see amp_device_matmul_explain), otherwise it is summed in double. */
enum {
    AMP_BIAS_GRAD_NONE = 0, /* no bias gradient */
    AMP_BIAS_GRAD_D = 1,    /* the columns of d, [n]: gradient of the bias before the activation, with `backward` */
    AMP_BIAS_GRAD_A = 2,    /* the rows of op(a), [m]: for the product of a weight gradient with the output gradient in
                               a */
    AMP_BIAS_GRAD_B = 3     /* the columns of op(b), [n]: for the product of a weight gradient with the output gradient
                               in b */
};

/* The part of a product in training beyond amp_matmul_args. Functions accept NULL instead of it. */
typedef struct amp_device_epilogue {
    uint32_t struct_size;
    int32_t backward; /* 1: d = f'(aux) * (alpha * op(a) * op(b) + beta * c) with f the activation, bias NULL */
    /* Data for the backward form of the activation, written by the forward product (NULL: not needed), read by the
     * backward one. GELU: its argument, [m, n] in the type of d. ReLU: bit j % 8 of byte (i * ld_aux + j) / 8 is 1 if
     * element [i][j] is above 0. Aligned to 16 bytes. */
    void *aux;
    int64_t ld_aux, stride_aux; /* distances from row to row and product to product, in elements (ReLU: bits), multiples
                                   of 8 (ReLU: 128). 0: n rounded up to such a multiple, and m rows */
    int32_t bias_grad_of;       /* AMP_BIAS_GRAD_* */
    amp_dtype bias_grad_dtype;  /* fp32, fp16 or bf16 */
    void *bias_grad;            /* receives the bias gradient */
    int64_t stride_bias_grad;   /* elements from product to product (0: compact) */
    void *workspace; /* device memory free until the work is done, aligned to 256 bytes (NULL: memory of the list) */
    uint64_t workspace_size;    /* bytes of the workspace (32 MiB is enough for the fastest algorithms) */
} amp_device_epilogue;

#define AMP_DEVICE_EPILOGUE_INIT \
    { (uint32_t)sizeof(amp_device_epilogue), 0, NULL, 0, 0, 0, 0, NULL, 0, NULL, 0 }

/*
 * Computes the product that `args` describes, in device memory. device, stream, b_id and b_version of args are ignored.
 * a and b have the same type; c, bias and d are fp32, fp16 or bf16. If cuBLASLt cannot compute all of it in one call,
 * it writes FP32 sums and a kernel of libamp does the rest (see amp_device_matmul_explain). The algorithm is remembered
 * by shape, for up to 512 shapes a device. AMP_ERR_INVALID_ARGUMENT: as amp_matmul, an unaligned address or distance,
 * or a workspace that is too small, with the needed size. AMP_ERR_UNSUPPORTED: a and b of different types, or no
 * algorithm in cuBLASLt. AMP_ERR_BACKEND: cuBLASLt is missing or failed. On all other errors nothing was started.
 */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul(amp_device_list *list, void *stream, const amp_matmul_args *args,
                                                    const amp_device_epilogue *epilogue);

/* Times the algorithms that cuBLASLt proposes for this shape with events on the stream, and remembers the fastest for
 * later products of this shape on the device, until many other shapes have come. d, aux and bias_grad are written many
 * times. c must not be d. Waits for the stream. AMP_ERR_WRONG_STATE: the stream is being captured. */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul_measure(amp_device_list *list, void *stream,
                                                            const amp_matmul_args *args,
                                                            const amp_device_epilogue *epilogue);

/* Describes in words how the product would be computed, and how it could be faster. Computes nothing. text, capacity
 * and length as in amp_explain. */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul_explain(amp_device_list *list, const amp_matmul_args *args,
                                                            const amp_device_epilogue *epilogue, char *text,
                                                            size_t capacity, size_t *length);

#ifdef __cplusplus
}
#endif

#endif /* AMP_DEVICE_H */
