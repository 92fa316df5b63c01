/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several GPUs, one a rank, over NCCL and the host's own communicator: the ranks' decision made on the devices, and
 * gradients averaged while backward runs. Nothing here waits for a device but opening and closing.
 *
 * Experimental: it has run over an NCCL of the tests' own, and on no machine with several GPUs. amp_initialize says so
 * once for a host with the hook reduce_on_device.
 *
 *     amp_nccl *nccl;
 *     amp_nccl_open(comm, &nccl);                                              a ncclComm_t of the host's
 *     host.reduce_on_device = reduce_on_device;                                one line: return amp_nccl_reduce(...)
 *     ...
 *     amp_nccl_average *average;                                               grads: sizes and types, last layer first
 *     amp_nccl_average_open(nccl, grads, n, NULL, &average);
 *     for (...) {
 *         amp_scale_loss_begin(&optimizer, loss, &scaled);
 *         amp_nccl_average_begin(average, stream);
 *         backward(scaled.loss);                        amp_nccl_average_ready(average, i, data) as gradients are done
 *         if (amp_nccl_average_finish(average)) amp_scale_loss_cancel(&scaled);            every rank skips then
 *         else if (amp_scale_loss_end(&scaled)) ...
 *     }
 *
 * The library is the one that made the communicator: libnccl.so.2, from 2.10 on, which the process has loaded already,
 * or the file that AMP_NCCL names by an absolute path. libamp is neither built nor linked with it. Communicators block
 * (ncclConfig_t.blocking, NCCL's default).
 *
 * Ranks. All make the same calls in the same order, with equal lists and options; libamp's calls and the host's own on
 * one communicator must come in one order too. What is averaged, and what is decided, has the same bits on each.
 *
 * Streams. `stream` is the caller's cudaStream_t, of the communicator's device; not NULL. Averaging has a stream of its
 * own: a bucket is sent when its gradients are done on `stream`, and finish makes `stream` come after all of it.
 *
 * Graphs. All but opening and closing can be captured. Gradients are at the same addresses in each replay, and objects
 * are closed after the graphs that used them have run for the last time.
 *
 * Errors. AMP_ERR_BACKEND: NCCL's error in words, or CUDA's; an error of earlier work may be reported here. Ranks of
 * which one could not send are out of step: end them all (ncclCommAbort) and go on from a checkpoint.
 * AMP_ERR_INVALID_ARGUMENT, AMP_ERR_WRONG_STATE, AMP_ERR_NO_MEMORY: nothing was sent, unless it is said.
 *
 * Threads. An object is one thread's at a time, and so is a communicator with all that was opened on it.
 */
#ifndef AMP_NCCL_H
#define AMP_NCCL_H

#include "amp_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator of the host's as libamp uses it. */
typedef struct amp_nccl amp_nccl;

/* `comm` is the host's ncclComm_t; kept, and the host's to destroy, after amp_nccl_close. AMP_ERR_BACKEND: there is no
 * NCCL, or it is too old, with what to install; AMP_ERR_UNSUPPORTED: the communicator does not block. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_open(void *comm, amp_nccl **nccl);

/* After the averages that were opened on it. Waits for their stream. NULL: nothing. */
AMP_API void amp_nccl_close(amp_nccl *nccl);

/* `n` floats in the device's memory, combined over all ranks in place, in the order of `stream`: what the hook
 * amp_host.reduce_on_device has to do. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_reduce(amp_nccl *nccl, amp_reduction reduction, void *stream, float *values,
                                                  size_t n);

/* How gradients are averaged; NULL or zeros: each sum in the gradient's own type, divided by the number of ranks.
 * Source: apex.parallel.DistributedDataParallel; its names are behind. */
typedef struct amp_nccl_options {
    uint32_t struct_size;
    amp_switch fp32;       /* ON: fp16 and bf16 are added up, and multiplied, in FP32 (allreduce_always_fp32) */
    amp_switch average;    /* OFF: not divided by the number of ranks (gradient_average = False) */
    int32_t reserved;      /* 0 */
    uint64_t bucket_bytes; /* gradients are sent together until they are so many; 0: 25 MiB (message_size) */
    double predivide;      /* gradients are multiplied by 1 / predivide, rounded to the type that they are added in, and
                              by predivide / ranks afterwards; 0: 1 (gradient_predivide_factor) */
} amp_nccl_options;

#define AMP_NCCL_OPTIONS_INIT AMP_SIZED_(amp_nccl_options)

/* A list of gradients that is averaged over and over, and its buckets in the device's memory. */
typedef struct amp_nccl_average amp_nccl_average;

/* `grads`: sizes and types of compact gradients, in the order in which backward is done with them, the last layer's
 * first; borrowed, their data is not looked at. They are cut into buckets in this order, whatever their types, which
 * together are as large as the gradients (with `fp32` as if they were FP32; fp64 stays). A call of all ranks, which
 * waits until each has come. AMP_ERR_CONFLICT: the ranks' lists or options are not equal. Gradients have no names here:
 * two of one size and type that change places on one rank are not found. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_open(amp_nccl *nccl, const amp_span *grads, size_t n,
                                                        const amp_nccl_options *options, amp_nccl_average **average);

/* Waits for what was sent. NULL: nothing. */
AMP_API void amp_nccl_average_close(amp_nccl_average *average);

/* From here to finish gradients are announced. `stream`: that on which backward works. AMP_ERR_BACKEND: something that
 * was sent before has failed meanwhile. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_begin(amp_nccl_average *average, void *stream);

/* Gradient `index` lies at `data`, once what is on the stream now has run, and is the host's again behind finish: it is
 * averaged in place. Sends each bucket that is complete, if all before it are sent. In any order, but each once; not
 * those that a later backward adds to. On an error of sending the others are announced and finish is called all the
 * same, so that no rank waits for this one. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_ready(amp_nccl_average *average, size_t index, void *data);

/* Sends what is left, and makes the stream wait for all of it. A gradient that was not announced counts as zeros on
 * this rank, so that no other rank waits for it: AMP_ERR_WRONG_STATE names the first, and all is sent. After any error
 * the gradients of this rank are not what the others have: cancel the bracket. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_finish(amp_nccl_average *average);

#ifdef __cplusplus
}
#endif

#endif /* AMP_NCCL_H */
