/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list functions of amp_kernels.h and amp_optim.h for tensors in the memory of a device. Those of CUDA are the
 * backend "cuda"'s, which the first amp_device_list_open loads; others are served by the host (amp_serve.h).
 *
 * All of it is asynchronous and runs on the caller's stream: nothing here waits for the device, and no result comes to
 * the host. Scales, norms, found_inf and step counts are in the device's memory too, so that what one call finds the
 * next one uses, and a whole iteration can be captured in a CUDA graph. A call is one launch for any number of tensors
 * of any types and sizes; norms and statistics are two, a step of an optimizer two, of LAMB four, and each list of
 * norms that its rule needs and was not given (of LAMB, NovoGrad and LARC the gradients', of LARC the parameters') two
 * more. It reads the lists from a table in the device's memory, which is written again only if an address, a size or a
 * type is another than in the call before.
 *
 *     amp_device_list *list;
 *     amp_device_list_open((amp_device){ 2, 0 }, &list);
 *     amp_factor unscale = { scale_on_device, 0.0f, AMP_FACTOR_INVERSE };
 *     amp_device_scale(list, stream, grads, grads, n, &unscale, found_inf_on_device);
 *
 * Numbers. Elementwise results have the bits of the functions for the CPU. Sums are added in an order that depends on
 * the lists alone: the same bits in every run and on every device, within the bound of docs/reference/numerics.md of
 * the CPU's.
 *
 * Captured graphs. A call that is captured keeps its table and its scratch as they are until the list is closed; what
 * changes afterwards gets new ones. So a list is closed after the graphs that used it have run for the last time.
 */
#ifndef AMP_DEVICE_H
#define AMP_DEVICE_H

#include "amp_optim.h"
#include "amp_pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tables of one place in a program that calls: one for the casts of a step, one for its unscaling. One thread at a
 * time; calls on one list must reach the device in their order: on one stream, or on streams that wait for each other.
 */
typedef struct amp_device_list amp_device_list;

/* A list for a device: type 2 (kDLCUDA), id as CUDA counts, or AMP_DEVICE_SERVED. AMP_ERR_BACKEND, AMP_ERR_NO_DEVICE:
 * no backend, no such device, or none that the backend has code for; AMP_ERR_UNSUPPORTED: another type;
 * AMP_ERR_NO_MEMORY. The caller's current device stays what it is, here and in all calls. Ended with
 * amp_device_list_close. */
AMP_API AMP_MUST_CHECK amp_status amp_device_list_open(amp_device device, amp_device_list **list);

/* Waits for the work on the stream of the list's last call, which must still be there and not be captured, and frees
 * what the list has. NULL: nothing. */
AMP_API void amp_device_list_close(amp_device_list *list);

/* amp_factor.how: what becomes of the number that pointer shows. */
enum {
    AMP_FACTOR_AS_IT_IS = 0, /* the number */
    AMP_FACTOR_INVERSE = 1,  /* one over it: unscaling by the loss scale */
    AMP_FACTOR_CLIP = 2      /* it is a norm: what brings it down to value, or 1, as amp_clip_norm_list has it */
};

/* A number that may be in the device's memory. */
typedef struct amp_factor {
    const float *pointer; /* in device memory, read when the kernel runs; NULL: value is the number */
    float value;          /* the number, where pointer is NULL; of AMP_FACTOR_CLIP the limit */
    int32_t how; /* AMP_FACTOR_... */
} amp_factor;

/*
 * In all of these: `stream` is the caller's cudaStream_t, of the list's device. NULL, CUDA's legacy default stream, on
 * which everything waits for everything, is refused. Spans, found_inf, norms are as in the functions for the CPU, in
 * memory that the device can reach. found_inf, norm, norms may be NULL. AMP_ERR_INVALID_ARGUMENT: as there, and
 * addresses that are not aligned for their type. AMP_ERR_NO_MEMORY: of the host or of the device. AMP_ERR_UNSUPPORTED:
 * more than 2^31 - 1 tensors or chunks of 16,384 elements. AMP_ERR_BACKEND: CUDA's error in words; an error of earlier
 * work on the device may be reported here. Otherwise on an error nothing was started.
 */

/* As amp_cast_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_cast(amp_device_list *list, void *stream, const amp_span *dst,
                                                  const amp_span *src, size_t n);

/* Every element of dst becomes +0. */
AMP_API AMP_MUST_CHECK amp_status amp_device_zero(amp_device_list *list, void *stream, const amp_span *dst, size_t n);

/* As amp_scale_list. With AMP_FACTOR_CLIP, dst and src are the same, and nothing is written if the factor is 1. */
AMP_API AMP_MUST_CHECK amp_status amp_device_scale(amp_device_list *list, void *stream, const amp_span *dst,
                                                   const amp_span *src, size_t n, const amp_factor *scale,
                                                   float *found_inf);

/* As amp_axpby_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_axpby(amp_device_list *list, void *stream, const amp_span *dst,
                                                   const amp_factor *a, const amp_span *x, const amp_factor *b,
                                                   const amp_span *y, size_t n, float *found_inf);

/* As amp_check_list; scale and factor NULL are 1, which makes it amp_l2norm_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_check(amp_device_list *list, void *stream, const amp_span *src, size_t n,
                                                   const amp_factor *scale, const amp_factor *factor, float *norm,
                                                   float *norms, float *found_inf);

/* As amp_statistics_list; `statistics`, n of them, are in the device's memory too, where the caller copied
 * AMP_STATISTICS_INIT, and are added to there: their struct_size is not looked at. Counts and extremes are the CPU's;
 * the sums are added in another order. Two launches. */
AMP_API AMP_MUST_CHECK amp_status amp_device_statistics(amp_device_list *list, void *stream, const amp_span *src,
                                                        size_t n, amp_statistics *statistics);

/* As amp_optim_list; all that `tensors` points to but the lists themselves is in the device's memory: steps, found_inf,
 * inv_scale, grad_norm, grad_norms. Whether found_inf lets the step happen is decided there. */
AMP_API AMP_MUST_CHECK amp_status amp_device_optim(amp_device_list *list, void *stream, const amp_optim *rule,
                                                   const amp_optim_tensors *tensors);

/* As amp_split_list; one launch. The list `remainders` is the host's, what it points to the device's, where bits of
 * elements that are no ties stay as they are. */
AMP_API AMP_MUST_CHECK amp_status amp_device_split(amp_device_list *list, void *stream, const amp_span *dst,
                                                   void *const *remainders, const amp_span *src, size_t n);

/* As amp_join_list. */
AMP_API AMP_MUST_CHECK amp_status amp_device_join(amp_device_list *list, void *stream, const amp_span *dst,
                                                  const amp_span *src, void *const *remainders, size_t n);

/* As amp_pack, of one tensor, with the same bytes; all that `args` points to is in the device's memory. One launch. */
AMP_API AMP_MUST_CHECK amp_status amp_device_pack(amp_device_list *list, void *stream, const amp_pack_args *args);

/* As amp_unpack. */
AMP_API AMP_MUST_CHECK amp_status amp_device_unpack(amp_device_list *list, void *stream, const amp_unpack_args *args);

/*
 * Products on a device, by cuBLASLt, which is looked for when the first one is asked for (docs/internals/backends.md).
 * Sums are FP32; fp32 operands are multiplied as they are, unless AMP_MATMUL_TF32 allows tf32.
 */

/* amp_device_epilogue.bias_grad_of: what is summed and rounded once: by cuBLASLt, in its own order and precision, where
 * its epilogue does it (amp_device_matmul_explain tells), else in double. */
enum {
    AMP_BIAS_GRAD_NONE = 0, /* nothing */
    AMP_BIAS_GRAD_D = 1,    /* the columns of d, [n]: the gradient of the bias before the activation; with `backward` */
    AMP_BIAS_GRAD_A = 2,    /* the rows of op(a), [m]: where a product for a weight's gradient has the outputs' in a */
    AMP_BIAS_GRAD_B = 3     /* the columns of op(b), [n]: where it has them in b */
};

/* What a product does beyond amp_matmul_args, for training. NULL in its place: nothing. */
typedef struct amp_device_epilogue {
    uint32_t struct_size;
    int32_t backward; /* 1: d = f'(aux) * (alpha * op(a) * op(b) + beta * c), f being the activation; bias is NULL */
    /* What the activation's backward form needs: written forward (NULL: not needed), read backward. GELUs: their
     * argument, [m, n] of d's type. ReLU: bit j % 8 of byte (i * ld_aux + j) / 8 is 1 where element [i][j] was above 0.
     * Aligned to 16 bytes. */
    void *aux;
    int64_t ld_aux, stride_aux; /* elements, ReLU: bits, from row to row and product to product; multiples of 8, ReLU:
                                   128. 0: n rounded up to it; m rows of it */
    int32_t bias_grad_of;       /* AMP_BIAS_GRAD_... */
    amp_dtype bias_grad_dtype;  /* fp32, fp16 or bf16 */
    void *bias_grad;            /* written */
    int64_t stride_bias_grad;   /* elements from product to product; 0: compact */
    void *workspace;            /* memory of the device's that may be used until the work is done, aligned to 256 bytes;
                                   NULL: the list's own */
    uint64_t workspace_size;    /* its bytes: 32 MiB let cuBLASLt do its best */
} amp_device_epilogue;

#define AMP_DEVICE_EPILOGUE_INIT \
    { (uint32_t)sizeof(amp_device_epilogue), 0, NULL, 0, 0, 0, 0, NULL, 0, NULL, 0 }

/*
 * The product that `args` describes, in the device's memory; its device, stream, b_id and b_version are not looked at.
 * a and b are of one type; c, bias and d of any of fp32, fp16 and bf16. Where cuBLASLt has not all of it at once, it
 * leaves its sums in FP32 and a kernel of libamp's does the rest: amp_device_matmul_explain tells. Which algorithm is
 * remembered by shape, for 512 shapes of a device at most. AMP_ERR_INVALID_ARGUMENT: as amp_matmul's; addresses or
 * distances that are not aligned; a workspace that is too small, with the size that is needed. AMP_ERR_UNSUPPORTED: a
 * and b of different types, or what cuBLASLt has no algorithm for. AMP_ERR_BACKEND: there is no cuBLASLt, or it failed.
 * Otherwise on an error nothing was started.
 */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul(amp_device_list *list, void *stream, const amp_matmul_args *args,
                                                    const amp_device_epilogue *epilogue);

/* Tries the algorithms that cuBLASLt proposes for this shape, by the stream's own events, and remembers the fastest for
 * all products of this shape on the device, until many others have come. d, aux and bias_grad are written many times; c
 * must not be d. Waits for the stream. AMP_ERR_WRONG_STATE: the stream is being captured. */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul_measure(amp_device_list *list, void *stream,
                                                            const amp_matmul_args *args,
                                                            const amp_device_epilogue *epilogue);

/* How it would be done, and what would make it faster, in words; computes nothing. text, capacity and length as in
 * amp_explain. */
AMP_API AMP_MUST_CHECK amp_status amp_device_matmul_explain(amp_device_list *list, const amp_matmul_args *args,
                                                            const amp_device_epilogue *epilogue, char *text,
                                                            size_t capacity, size_t *length);

#ifdef __cplusplus
}
#endif

#endif /* AMP_DEVICE_H */
