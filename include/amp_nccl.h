/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several GPUs, one per rank, over NCCL and a communicator of the host: the ranks decide together on the devices, and
 * gradients are averaged during backward. Only opening and closing wait for a device.
 *
 * Experimental: it has run over an NCCL of the tests, and on no machine with several GPUs. amp_initialize warns once
 * about it on a host with the hook reduce_on_device.
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
 * Library. libamp uses the library that made the communicator: libnccl.so.2, version 2.10 or later, already loaded by
 * the process, or the file that the environment variable AMP_NCCL names by an absolute path. libamp is neither built
 * nor linked with NCCL. Communicators must block (ncclConfig_t.blocking, the default of NCCL).
 *
 * Ranks. All ranks make the same calls in the same order, with equal lists and options. Calls of libamp and of the host
 * on one communicator must have one order too. Averages and decisions have the same bits on each rank.
 *
 * Streams. `stream` is a cudaStream_t of the caller on the device of the communicator, not NULL. An average has its own
 * stream: a bucket is sent after its gradients are complete on `stream`, and finish orders `stream` after all of it.
 *
 * Graphs. All functions except opening and closing can be captured. Gradients must have the same addresses in each
 * replay. Close the objects after the last run of the graphs that use them.
 *
 * Errors. AMP_ERR_BACKEND: an error of NCCL or CUDA, in words, possibly of earlier work. If one rank could not send,
 * the ranks are out of step: end them all (ncclCommAbort) and continue from a checkpoint. AMP_ERR_INVALID_ARGUMENT,
 * AMP_ERR_WRONG_STATE, AMP_ERR_NO_MEMORY: nothing was sent, unless stated otherwise.
 *
 * Threads. One thread at a time may use an object, and so a communicator with everything opened on it.
 */
#ifndef AMP_NCCL_H
#define AMP_NCCL_H

#include "amp_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator of the host in use by libamp. */
typedef struct amp_nccl amp_nccl;

/* Opens the ncclComm_t `comm` of the host. It is kept, and the host destroys it after amp_nccl_close. AMP_ERR_BACKEND:
 * NCCL is missing or too old, and the message names the package. AMP_ERR_UNSUPPORTED: the communicator does not
 * block. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_open(void *comm, amp_nccl **nccl);

/* Closes the communicator for libamp, after the averages opened on it. Waits for their stream. NULL: no effect. */
AMP_API void amp_nccl_close(amp_nccl *nccl);

/* Reduces `n` floats in device memory over all ranks, in place, in the order of `stream`, as the hook
 * amp_host.reduce_on_device must. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_reduce(amp_nccl *nccl, amp_reduction reduction, void *stream, float *values,
                                                  size_t n);

/* Options of an average. NULL or zeros: each sum in the type of the gradient, divided by the number of ranks. Source:
 * apex.parallel.DistributedDataParallel, with its names in parentheses. */
typedef struct amp_nccl_options {
    uint32_t struct_size;
    amp_switch fp32;       /* ON: fp16 and bf16 are summed and multiplied in FP32 (allreduce_always_fp32) */
    amp_switch average;    /* OFF: sums, without the division by the number of ranks (gradient_average = False) */
    int32_t reserved;      /* 0 */
    uint64_t bucket_bytes; /* size of a bucket, sent as one, message_size (0: 25 MiB) */
    double predivide;      /* gradients are multiplied by 1 / predivide, rounded to the type of the sum, and later by
                              predivide / ranks; 0: 1 (gradient_predivide_factor) */
} amp_nccl_options;

#define AMP_NCCL_OPTIONS_INIT AMP_SIZED_(amp_nccl_options)

/* A list of gradients to average in every iteration, with its buckets in device memory. */
typedef struct amp_nccl_average amp_nccl_average;

/* Opens an average. `grads`: sizes and types of compact gradients, in the order in which backward completes them, the
 * last layer first. They are borrowed, and their data is not read. Consecutive gradients of any types form buckets,
 * which together are as large as the gradients (with `fp32` as large as FP32 gradients, except for fp64). All ranks
 * must call it, and it waits for all of them. AMP_ERR_CONFLICT: lists or options differ between ranks. Gradients have
 * no names here: two of the same size and type in another order on one rank are not detected. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_open(amp_nccl *nccl, const amp_span *grads, size_t n,
                                                        const amp_nccl_options *options, amp_nccl_average **average);

/* Waits for the messages sent, and frees the average. NULL: no effect. */
AMP_API void amp_nccl_average_close(amp_nccl_average *average);

/* Begins a pass, in which gradients are announced until finish. `stream`: the stream of backward. AMP_ERR_BACKEND: an
 * earlier message has failed. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_begin(amp_nccl_average *average, void *stream);

/* Announces gradient `index`, which is complete at `data` after the work now on the stream. libamp averages it in place
 * and owns it until finish. Sends each complete bucket once all earlier ones are sent. Gradients come in any order,
 * each once, after the last backward that adds to them. If a send fails, announce the others and call finish all the
 * same, so that no rank waits for this one. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_ready(amp_nccl_average *average, size_t index, void *data);

/* Sends the remaining buckets and makes the stream wait for all of them. A gradient that was not announced counts as
 * zeros on this rank, so that no other rank waits for it. AMP_ERR_WRONG_STATE names the first such gradient, and all is
 * sent. After any error the gradients of this rank differ from the others: cancel the bracket. */
AMP_API AMP_MUST_CHECK amp_status amp_nccl_average_finish(amp_nccl_average *average);

#ifdef __cplusplus
}
#endif

#endif /* AMP_NCCL_H */
