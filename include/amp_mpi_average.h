/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients averaged over the ranks, in buckets sent during backward. Included by amp_mpi.h.
 *
 * Messages. FP32 (the default): MPI_Iallreduce computes the sums. 16-bit gradients are widened first and rounded once
 * afterwards. FP16 and BF16 halve the bytes. A sum by MPI would round after every addition, by up to one unit in the
 * last place a rank, and a sum of ones would stop at 256 in bf16. So each rank receives one share of the bucket from
 * all others (MPI_Ialltoall), sums it in FP32 in the order of the ranks, divides, rounds once, and all shares are
 * gathered (MPI_Iallgather). There are two roundings for any number of ranks, an average of finite numbers is finite,
 * the bits do not depend on the algorithms of MPI, and the number of bytes is that of a ring allreduce.
 *
 * Gradients are averaged inside the bracket, multiplied by the loss scale: an infinity on one rank, or in a message,
 * reaches all ranks, and all skip. The bits are the same on every rank: for 16 bits by construction, for FP32 if the
 * MPI allreduce gives all ranks the same result, as Open MPI and MPICH do.
 */
#ifndef AMP_MPI_AVERAGE_H
#define AMP_MPI_AVERAGE_H

#include "amp_mpi_ranks.h"

/* Options of an average. NULL or zeros: FP32 messages, divided by the number of ranks. Source:
 * apex.parallel.DistributedDataParallel, with its names in parentheses. */
typedef struct amp_mpi_average_options {
    uint32_t struct_size;
    amp_dtype wire;        /* type of messages: AMP_FLOAT32 (0 too), AMP_FLOAT16 or AMP_BFLOAT16 */
    amp_switch average;    /* OFF: sums, without the division by the number of ranks (gradient_average = False) */
    int32_t reserved;      /* 0 */
    uint64_t bucket_bytes; /* size of a bucket in its messages, message_size (0: 25 MiB) */
    double predivide;      /* gradients are multiplied by 1 / predivide before, and sums by predivide / ranks; 2^-10 to
                              2^20; 0: 1 (gradient_predivide_factor) */
} amp_mpi_average_options;

#define AMP_MPI_AVERAGE_OPTIONS_INIT AMP_SIZED_(amp_mpi_average_options)

/* A part of the list that is sent as one: its gradients, a mark for each, and zeros up to a multiple of the ranks. */
struct amp_mpi_bucket_ {
    size_t begin, end, missing; /* range in the list, and number of gradients not yet announced */
    uint64_t size;              /* elements in a message */
    char *send, *receive;       /* message buffers (receive: 16 bits only) */
    MPI_Request request;
};

/* A list of parameters with gradients to average in every iteration. Members are private. */
typedef struct amp_mpi_average {
    amp_mpi *mpi;           /* the ranks */
    MPI_Comm first, second; /* duplicates, each with its collectives in the order of the buckets */
    amp_dtype wire;         /* type of messages */
    float before, after;    /* factors before and after the sum */
    size_t n, n_buckets;    /* length of the arrays below */
    void **handles;         /* parameters in the order in which backward completes them, the last first */
    struct amp_mpi_tensor_ *slots; /* name of each parameter, and its part of the bucket */
    amp_span *grads;        /* gradients in the memory of the host (data NULL: none on this rank) */
    size_t *bucket_of;      /* bucket of each gradient */
    char *announced;        /* 1: the gradient is complete */
    struct amp_mpi_bucket_ *buckets; /* buckets in the order of sending */
    float *sum;                      /* FP32 sum of the share of this rank */
    size_t sent, added, guess;       /* buckets sent, buckets summed, first index that amp_mpi_ready tries */
    int passing;                     /* 1 between begin and finish */
    amp_status failed;               /* first error of the pass */
    char why[600];                   /* its message */
} amp_mpi_average;

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Frees the average. A call of all ranks, outside a pass, before amp_mpi_close. NULL: no effect. */
static inline void amp_mpi_average_close(amp_mpi_average *average) {
    if (!average || average->mpi->lost) return;
    for (size_t b = 0; average->buckets && b < average->n_buckets; b++) {
        free(average->buckets[b].send);
        free(average->buckets[b].receive);
    }
    if (average->first != MPI_COMM_NULL) MPI_Comm_free(&average->first);
    if (average->second != MPI_COMM_NULL) MPI_Comm_free(&average->second);
    free(average->handles);
    free(average->slots);
    free(average->grads);
    free(average->bucket_of);
    free(average->announced);
    free(average->buckets);
    free(average->sum);
    free(average);
}

static inline amp_status amp_mpi_average_check_(amp_mpi *mpi, const amp_mpi_average_options *given,
                                                amp_mpi_average_options *options) {
    static const amp_mpi_average_options none = AMP_MPI_AVERAGE_OPTIONS_INIT;
    *options = none;
    if (given && given->struct_size != sizeof *given)
        return amp_mpi_fail_(mpi, AMP_ERR_ABI_MISMATCH,
                             "amp_mpi_average_open: begin with AMP_MPI_AVERAGE_OPTIONS_INIT");
    if (given) *options = *given;
    if (!options->wire) options->wire = AMP_FLOAT32;
    if (options->predivide == 0.0) options->predivide = 1.0;
    if (!options->bucket_bytes) options->bucket_bytes = (uint64_t)25 << 20;
    if (options->wire < AMP_FLOAT32 || options->wire > AMP_BFLOAT16)
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT,
                             "amp_mpi_average_open: wire is %d: AMP_FLOAT32, AMP_FLOAT16 or AMP_BFLOAT16",
                             options->wire);
    if (!(options->predivide >= 1.0 / 1024 && options->predivide <= 1048576.0))
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT,
                             "amp_mpi_average_open: predivide is %g: from 2^-10 to 2^20, or 0 for 1",
                             options->predivide);
    if (mpi->host.grad) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_MISSING_HOOK, "amp_mpi_average_open: the model's host has no hook grad");
}

/* Cuts the list into buckets. */
static inline void amp_mpi_average_cut_(amp_mpi_average *average, uint64_t bucket_bytes) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < average->n; i++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[average->n_buckets];
        average->bucket_of[i] = average->n_buckets;
        bucket->end = i + 1;
        bucket->size += average->slots[i].span.size + 1;
        bytes += average->slots[i].span.size * amp_mpi_width_(average->wire);
        if (bytes < bucket_bytes && i + 1 < average->n) continue;
        average->buckets[++average->n_buckets].begin = i + 1;
        bytes = 0;
    }
}

static inline amp_status amp_mpi_average_room_(amp_mpi_average *average) {
    const uint64_t width = amp_mpi_width_(average->wire), ranks = (uint64_t)average->mpi->size;
    uint64_t most = 0;
    for (size_t b = 0; b < average->n_buckets; b++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[b];
        bucket->size = (bucket->size + ranks - 1) / ranks * ranks;
        most = bucket->size > most ? bucket->size : most;
        if (bucket->size > INT_MAX)
            return amp_mpi_fail_(average->mpi, AMP_ERR_UNSUPPORTED,
                                 "amp_mpi_average_open: a bucket of %llu elements: MPI "
                                 "counts to 2^31",
                                 (unsigned long long)bucket->size);
        bucket->send = (char *)calloc((size_t)bucket->size, (size_t)width);
        if (width == 2) bucket->receive = (char *)calloc((size_t)bucket->size, (size_t)width);
        if (!bucket->send || (width == 2 && !bucket->receive)) return AMP_ERR_NO_MEMORY;
        char *at = bucket->send;
        for (size_t i = bucket->begin; i < bucket->end; at += average->slots[i++].span.size * width)
            average->slots[i].span.data = at;
    }
    average->sum = (float *)calloc((size_t)(most / ranks) + 1, sizeof *average->sum);
    return average->sum ? AMP_OK : AMP_ERR_NO_MEMORY;
}

static inline amp_status amp_mpi_average_fill_(amp_mpi_average *average, void *const *params, size_t n,
                                               uint64_t bucket_bytes) {
    average->handles = (void **)calloc(n + 1, sizeof *average->handles);
    average->slots = (struct amp_mpi_tensor_ *)calloc(n + 1, sizeof *average->slots);
    average->grads = (amp_span *)calloc(n + 1, sizeof *average->grads);
    average->bucket_of = (size_t *)calloc(n + 1, sizeof *average->bucket_of);
    average->announced = (char *)calloc(n + 1, 1);
    average->buckets = (struct amp_mpi_bucket_ *)calloc(n + 1, sizeof *average->buckets);
    if (!average->handles || !average->slots || !average->grads || !average->bucket_of || !average->announced ||
        !average->buckets)
        return AMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        void *handle = average->handles[i] = params[n - 1 - i];
        struct amp_mpi_tensor_ *slot = &average->slots[i];
        slot->name = amp_mpi_name_(average->mpi, handle);
        const amp_status status = amp_mpi_look_(average->mpi, handle, "parameter", slot->name, &slot->span);
        if (status != AMP_OK) return status;
        slot->span.dtype = average->wire;
    }
    average->n = n;
    amp_mpi_average_cut_(average, bucket_bytes);
    return amp_mpi_average_room_(average);
}

static inline uint64_t amp_mpi_average_hash_(const amp_mpi_average_options *options) {
    uint64_t hash = amp_mpi_hash_(0, &options->wire, sizeof options->wire);
    hash = amp_mpi_hash_(hash, &options->average, sizeof options->average);
    hash = amp_mpi_hash_(hash, &options->bucket_bytes, sizeof options->bucket_bytes);
    return amp_mpi_hash_(hash, &options->predivide, sizeof options->predivide);
}

/* Opens an average. `params`: handles of the trained parameters of the model, in the order of forward, like
 * amp_optimizer.params (with AMP_OPTIMIZER_SHARDED: those of all ranks). The array is borrowed. Buckets are cut from
 * its end. A call of all ranks. AMP_ERR_CONFLICT: the lists (names, sizes and order of parameters) or the options
 * differ between ranks. AMP_ERR_MISSING_HOOK: no hook `grad`. AMP_ERR_UNSUPPORTED: memory of another device than the
 * CPU, or a bucket of more than 2^31 elements. */
AMP_MUST_CHECK static inline amp_status amp_mpi_average_open(amp_mpi *mpi, void *const *params, size_t n,
                                                             const amp_mpi_average_options *given,
                                                             amp_mpi_average **average) {
    amp_mpi_average_options options;
    amp_mpi_average *made = (amp_mpi_average *)calloc(1, sizeof *made);
    amp_status status = amp_mpi_average_check_(mpi, given, &options);
    if (!made) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_average_open: out of memory");
    status = amp_mpi_agree_(mpi, status, "amp_mpi_average_open");
    if (status != AMP_OK) {
        free(made);
        return status;
    }
    made->mpi = mpi, made->wire = options.wire;
    made->first = made->second = MPI_COMM_NULL;
    status = amp_mpi_code_(mpi, amp_mpi_dup_(mpi->comm, &made->first), "amp_mpi_average_open");
    if (status == AMP_OK) status = amp_mpi_code_(mpi, amp_mpi_dup_(mpi->comm, &made->second), "amp_mpi_average_open");
    made->before = (float)(1.0 / options.predivide);
    made->after = (float)(options.average == AMP_OFF ? options.predivide : options.predivide / mpi->size);
    if (status == AMP_OK) status = amp_mpi_average_fill_(made, params, n, options.bucket_bytes);
    if (status == AMP_ERR_NO_MEMORY) amp_mpi_fail_(mpi, status, "amp_mpi_average_open: out of memory");
    status =
        amp_mpi_agree_list_(mpi, status, made->slots, n, amp_mpi_average_hash_(&options), "amp_mpi_average_open");
    if (status == AMP_OK) *average = made;
    else amp_mpi_average_close(made);
    return status;
}

#endif /* AMP_MPI_AVERAGE_H */
